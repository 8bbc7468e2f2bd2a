"""llama.cpp as the peer of the benchmarks: thin calls into its ctypes bindings."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def bindings(folder: Path) -> Any:
    """The `llama_cpp` module of a folder that tools/build_llama_cpp.py made."""
    os.environ.setdefault("LLAMA_CPP_LIB_PATH", str((folder / "lib").resolve()))
    sys.path.insert(0, str((folder / "python").resolve()))
    import llama_cpp

    @llama_cpp.llama_log_callback
    def silent(level: int, text: bytes, data: Any) -> None:
        """llama.cpp's own chatter does not belong into a table."""

    llama_cpp.llama_log_set(silent, None)
    llama_cpp.anex_keeps_alive = silent
    return llama_cpp


class Peer:
    """One model in llama.cpp.

    Args:
        flash: Flash attention on or off.
        wide_cache: Keep the KV cache in F32 (needs flash attention off).
    """

    def __init__(
        self, folder: Path, model: Path, *, threads: int, context: int, flash: bool, wide_cache: bool = False
    ) -> None:
        self.lib = bindings(folder)
        lib = self.lib
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1 if flash else 0
        if wide_cache:
            params.type_k = params.type_v = lib.GGML_TYPE_F32
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(512, 0, 1)

    def eval(self, ids: list[int], start: int, all_logits: bool = False) -> float:
        """Decode up to 512 tokens at positions `start…` and return the seconds it took."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, start + i, 1, 0
            batch.logits[i] = all_logits or i == len(ids) - 1
        begin = time.perf_counter()
        status = self.lib.llama_decode(self.context, batch)
        self.lib.llama_synchronize(self.context)
        assert status == 0, status
        return time.perf_counter() - begin

    def row(self, index: int) -> Array:
        pointer = self.lib.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(pointer, (self.vocab_size,)).copy()

    def logits(self, ids: list[int]) -> Array:
        """Logits of every position of one batch, float32 `[len(ids), vocabulary]`."""
        self.clear()
        self.eval(ids, 0, all_logits=True)
        return np.stack([self.row(i) for i in range(len(ids))])

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def close(self) -> None:
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)
