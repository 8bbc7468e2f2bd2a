"""Regenerates `tests/data/{llama,families}/*.npz`: llama.cpp's logits of the tiny random models.

    python tools/goldens/llama.py --binding <llama-cpp-python> --libraries <folder with libllama>

The weights and the KV cache are F32 and flash attention is off, so that what is
stored is llama.cpp's arithmetic at its most exact.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "models"))

import tiny_families  # noqa: E402
import tiny_llama  # noqa: E402


def silence() -> None:
    """Stop llama.cpp's log."""
    import llama_cpp as c

    callback = c.llama_log_callback(lambda level, text, data: None)
    _KEPT.append(callback)
    c.llama_log_set(callback, ctypes.c_void_p(0))


_KEPT: list[object] = []
"""Callbacks that C code holds; Python must not free them."""


def logits(path: Path, ids: np.ndarray[Any, Any], prompt: int, context: int = 512) -> np.ndarray[Any, Any]:
    """Logits of every token: `prompt` tokens in one batch, the others one by one."""
    import llama_cpp as c

    model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not load {path.name}")
    params = c.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = context
    params.type_k = params.type_v = c.GGML_TYPE_F32
    params.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_threads = params.n_threads_batch = 1
    context = c.llama_init_from_model(model, params)
    vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    rows: list[np.ndarray[Any, Any]] = []
    for start, stop in [(0, prompt), *((i, i + 1) for i in range(prompt, len(ids)))]:
        batch = c.llama_batch_init(stop - start, 0, 1)
        batch.n_tokens = stop - start
        for k, position in enumerate(range(start, stop)):
            batch.token[k], batch.pos[k] = int(ids[position]), position
            batch.n_seq_id[k], batch.seq_id[k][0], batch.logits[k] = 1, 0, 1
        if c.llama_decode(context, batch) != 0:
            raise SystemExit(f"llama.cpp fails on {path.name} at token {start}")
        for k in range(stop - start):
            found = ctypes.cast(c.llama_get_logits_ith(context, k), ctypes.POINTER(ctypes.c_float))
            rows.append(np.ctypeslib.as_array(found, (vocab,)).copy())
        c.llama_batch_free(batch)
    c.llama_free(context)
    c.llama_model_free(model)
    return np.stack(rows)


def survived(path: Path, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The last two rows of logits, or None where llama.cpp refuses the file, or dies of it."""
    with tempfile.TemporaryFile() as answer:
        if not (child := os.fork()):
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                np.save(answer, logits(path, ids, len(ids))[-2:].astype(np.float32))
                answer.flush()
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            return None
        answer.seek(0)
        rows: np.ndarray[Any, Any] = np.load(answer)
        return rows


def mutations(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """`model/key=value` → logits, for every change that llama.cpp lives with."""
    found = {}
    for model in (m for m in tiny_families.FAMILIES if m.name in tiny_families.MUTATED):
        for key, value in tiny_families.MUTATIONS:
            path = tiny_families.mutated(folder, model, key, value)
            rows = survived(path, model.ids[: tiny_families.MUTATED_TOKENS])
            if rows is not None:
                found[f"{model.name}/{key}={value}"] = rows
        print(f"{model.name}: {sum(name.startswith(model.name + '/') for name in found)} changes", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binding", help="folder that holds the package llama_cpp")
    parser.add_argument("--libraries", help="folder of libllama (else LLAMA_CPP_LIB_PATH)")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "tests" / "data")
    args = parser.parse_args()
    if args.binding:
        sys.path.insert(0, args.binding)
    if args.libraries:
        os.environ["LLAMA_CPP_LIB_PATH"] = args.libraries
    silence()
    with tempfile.TemporaryDirectory() as folder:
        for make, models, output in (
            (tiny_llama.make, tiny_llama.TINY, args.output / "llama"),
            (tiny_families.make, tiny_families.FAMILIES, args.output / "families"),
        ):
            output.mkdir(parents=True, exist_ok=True)
            for model in models:
                found = logits(make(Path(folder), model), model.ids, tiny_llama.PROMPT)
                stored = found[list(tiny_llama.POSITIONS)].astype(np.float32)
                np.savez_compressed(output / f"{model.name}.npz", logits=stored)
                print(f"{model.name}: {stored.shape}, std {stored.std():.3f}", flush=True)
        np.savez_compressed(args.output / "families" / "mutations.npz", **mutations(Path(folder)))


if __name__ == "__main__":
    main()
