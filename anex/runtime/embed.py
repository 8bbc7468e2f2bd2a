"""An encoder on an engine: texts in, one vector for each out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.engines import engine as find_engine
from anex.errors import InputError
from anex.files import StrPath
from anex.models import Progress
from anex.models.encoder import (
    POOLINGS,
    EncoderConfig,
    PreparedEncoder,
    convert_encoder,
    encode_name,
    load_encoder_file,
)
from anex.runtime import store
from anex.runtime.functions import Compiled
from anex.runtime.model import DEFAULT_ENGINE, DEFAULT_NUMERICS
from anex.runtime.session import checked_context

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

Embeddings = np.ndarray[Any, np.dtype[np.float32]]
Text = str | Sequence[int]
"""A text, or its token ids with the special ones."""

_SHORTEST = float(np.finfo(np.float32).tiny)


class Encoder:
    """A sentence encoder: a text becomes a vector, near those of texts that mean the same.

    with anex.load("all-MiniLM-L6-v2") as model:
        a, b = model.embed(["It rains.", "The weather is wet."])
        print(a @ b)

    Threads may use one; calls of the engine follow each other.

    Attributes:
        config: The encoder it is.
    """

    def __init__(self, prepared: PreparedEncoder, functions: Compiled) -> None:
        self.config: EncoderConfig = prepared.config
        self._prepared = prepared
        self._functions = functions
        self._bound: dict[str, _Function] = {}
        self._lock = threading.Lock()

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer; raises as `anex.models.encoder.EncoderFile.tokenizer`."""
        return self._prepared.tokenizer

    def embed(
        self,
        texts: str | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Embeddings:
        """One vector for each text.

        Args:
            texts: Texts or token ids; one string is one text.
            pooling: `mean`, `cls`, `last` or `mean_sqrt_len`; what the model says if None.
            normalize: Make the vectors as long as 1; what the model says if None.
            truncate: Of a text with more tokens than the model takes use the first ones.
            progress: Called with the number of texts that are done.

        Returns:
            float32 `[len(texts), D]`.

        Raises:
            InputError: A text is too long, has no tokens, or an option has a value that there is not.
            UnsupportedError: The tokenizer is not supported.
            EvaluateError: The encoder is closed.
        """
        self._functions.check_open()
        weights = POOLINGS[self._pooling(pooling)]
        unit = self.config.pooling.normalize if normalize is None else normalize
        tokens = self._tokens([texts] if isinstance(texts, str) else texts, truncate)
        out = np.empty((len(tokens), self.config.dim), np.float32)
        for done, (ids, function) in enumerate(zip(tokens, self._compiled(tokens), strict=True), 1):
            out[done - 1] = function.pooled(ids, weights(len(ids)))
            if progress is not None:
                progress(done)
        return _unit(out) if unit else out

    def hidden_states(self, text: Text, *, truncate: bool = False) -> Embeddings:
        """The vector of each token of a text, not pooled: float32 `[tokens, D]`; raises as `embed`."""
        self._functions.check_open()
        tokens = self._tokens([text], truncate)
        (function,) = self._compiled(tokens)
        return function.hidden(tokens[0])

    def tokens(self, text: Text, *, truncate: bool = False) -> list[int]:
        """The token ids that `embed` computes a text from; raises as `embed`."""
        (ids,) = self._tokens([text], truncate)
        return ids

    def describe(self) -> Mapping[str, Any]:
        """What the engine says about itself, once something was compiled."""
        return self._functions.describe()

    def close(self) -> None:
        """Release memory; the encoder cannot be used any more."""
        self._bound = {}
        self._functions.close()
        self._prepared.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pooling(self, given: str | None) -> str:
        mode = given or self.config.pooling.mode
        if mode is None:
            raise InputError(
                "the model does not say how the vectors of its tokens become one",
                hint=f"choose a pooling: {', '.join(POOLINGS)}; BERT-like sentence encoders take mean or cls",
            )
        if mode not in POOLINGS:
            raise InputError(f"no pooling '{mode}'", hint=f"one of {', '.join(POOLINGS)}")
        return mode

    def _tokens(self, texts: Sequence[Text], truncate: bool) -> list[list[int]]:
        return [self._ids(number, text, truncate) for number, text in enumerate(texts, 1)]

    def _ids(self, number: int, text: Text, truncate: bool) -> list[int]:
        ids = self._encoded(text) if isinstance(text, str) else list(text)
        if not ids:
            raise InputError(f"text {number} has no tokens")
        longest = self.config.max_tokens
        if len(ids) <= longest:
            return ids
        if not truncate:
            raise InputError(
                f"text {number} has {len(ids)} tokens, the model takes {longest}",
                hint="split it, or use its beginning (truncate, --truncate)",
            )
        return self._shortened(text, ids) if isinstance(text, str) else ids[:longest]

    def _encoded(self, text: str, *, add_special: bool = True) -> list[int]:
        pooling = self.config.pooling
        text = text.strip() if pooling.strip else text
        text = text.lower() if pooling.lower else text
        return self.tokenizer.encode(text, add_special=add_special)

    def _shortened(self, text: str, ids: list[int]) -> list[int]:
        """As many tokens as the model takes; the special ones after the text are among them."""
        own = self._encoded(text, add_special=False)
        extra = len(ids) - len(own)
        before = next(i for i in range(extra + 1) if ids[i : i + len(own)] == own)
        kept = own[: max(0, self.config.max_tokens - extra)]
        return (ids[:before] + kept + ids[before + len(own) :])[: self.config.max_tokens]

    def _compiled(self, tokens: Sequence[Sequence[int]]) -> list[_Function]:
        """The function for each text; those that are missing are compiled together."""
        names = [encode_name(self.config, len(ids)) for ids in tokens]
        self._functions.compile(list(dict.fromkeys(names)))
        with self._lock:
            for name in dict.fromkeys(names):
                if name not in self._bound:
                    self._bound[name] = _Function(self._prepared, self._functions, name, self._lock)
        return [self._bound[name] for name in names]


class _Function:
    """A compiled function bound to surfaces of its own."""

    def __init__(
        self, prepared: PreparedEncoder, functions: Compiled, name: str, lock: threading.Lock
    ) -> None:
        self._prepared = prepared
        self._signature = prepared.signature(name)
        self._bound, self._inputs, self._outputs = functions.bound(name, {})
        self._lock = lock

    def pooled(self, ids: Sequence[int], weights: np.ndarray[Any, np.dtype[np.float64]]) -> Embeddings:
        """The sum of the hidden states by weights; what fp16 takes of a weight is given back in fp32."""
        halves = weights.astype(np.float16)
        factor = np.float32(weights.max() / np.float64(halves.max()))
        with self._lock:
            self._run(ids, halves)
            out: Embeddings = self._outputs[self._signature.pooled].array.astype(np.float32)
        return out.reshape(-1)[: self._prepared.config.dim] * factor

    def hidden(self, ids: Sequence[int]) -> Embeddings:
        with self._lock:
            self._run(ids, np.zeros(len(ids)))
            out: Embeddings = (
                self._outputs[self._signature.hidden].array[0, :, 0, : len(ids)].astype(np.float32)
            )
        return np.ascontiguousarray(out.T)

    def _run(self, ids: Sequence[int], weights: np.ndarray[Any, np.dtype[Any]]) -> None:
        for port, values in self._signature.feed(self._prepared.rows(ids), weights).items():
            self._inputs[port].array[...] = values
        self._bound.run()


def _unit(vectors: Embeddings) -> Embeddings:
    """Every row divided by its Euclidean length; zeros stay zeros."""
    length = np.sqrt((vectors.astype(np.float64) ** 2).sum(-1, keepdims=True))
    out: Embeddings = (vectors / np.maximum(length, _SHORTEST)).astype(np.float32)
    return out


def load_encoder(
    path: StrPath,
    *,
    engine: str = DEFAULT_ENGINE,
    numerics: str = DEFAULT_NUMERICS,
    context: int | None = None,
    cache_dir: StrPath | None = None,
    threads: int | None = None,
    text: bool = True,
    progress: Progress | None = None,
) -> Encoder:
    """Make an encoder ready to run; arguments and errors as `anex.runtime.load_decoder`.

    Args:
        path: A GGUF file, or a folder with `config.json` and safetensors, and, of a sentence-transformers
            model, `modules.json`.
    """
    root, most = store.folder(cache_dir), store.limit()
    with ExitStack() as opened:
        file = opened.enter_context(load_encoder_file(path))
        file.config = replace(file.config, max_tokens=checked_context(context, file.config.max_tokens))
        if text:
            _ = file.tokenizer
        chosen = find_engine(engine, numerics=numerics, threads=threads, cache=store.compiled(root))
        prepared = opened.enter_context(convert_encoder(file, store.models(root), progress))
        functions = opened.enter_context(Compiled(prepared, chosen, progress=progress, compilers=threads))
        store.settle(root, (prepared.folder, store.compiled(root)), most)
        opened.pop_all()  # the encoder closes them
        return Encoder(prepared, functions)
