"""A model that writes text: `load_decoder` and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from anex.engines import Engine
from anex.engines import engine as find_engine
from anex.errors import InputError
from anex.files import StrPath
from anex.models import DecoderConfig, ModelFile, Prepared, Progress, convert
from anex.models import load as open_model
from anex.models.tokenizer import Tokenizer
from anex.runtime import store
from anex.runtime.conversation import ContextFull, Conversation, Options
from anex.runtime.functions import Functions
from anex.runtime.generate import Completion
from anex.runtime.sampling import Sampling, make_sampler
from anex.runtime.session import Logits, Session, checked_context

DEFAULT_TOKENS = 256
"""Tokens of a completion where the caller names no number."""

DEFAULT_ENGINE, DEFAULT_NUMERICS = "emulator", "fp16"

_SAMPLING = Sampling()


class Model:
    """A model on an engine, with one conversation.

    with anex.load("model.gguf") as model:
        for piece in model.generate("Once upon a time"):
            print(piece, end="", flush=True)

    Attributes:
        config: The decoder it is.
        session: Its conversation.
        functions: What is compiled of it; further conversations are `Session(model.functions)`.
    """

    def __init__(self, prepared: Prepared, functions: Functions, context: int | None = None) -> None:
        self.config: DecoderConfig = prepared.config
        self.session = Session(functions, context=context)
        self.functions = functions
        self._prepared = prepared

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer.

        Raises:
            InputError: The file has none, or it is malformed.
            UnsupportedError: Its kind or one of its keys is not supported.
        """
        return self._prepared.tokenizer

    @property
    def file(self) -> ModelFile:
        """The file it was made of."""
        return self._prepared.model

    @property
    def context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self.session.limit

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = DEFAULT_TOKENS,
        temperature: float = _SAMPLING.temperature,
        top_k: int = _SAMPLING.top_k,
        top_p: float = _SAMPLING.top_p,
        min_p: float = _SAMPLING.min_p,
        repeat_penalty: float = _SAMPLING.repeat_penalty,
        repeat_last_n: int = _SAMPLING.repeat_last_n,
        seed: int | None = None,
        stop: Sequence[str] = (),
        reuse: bool = False,
    ) -> Completion:
        """Complete a text; iterating over the result computes it.

        Args:
            prompt: Text (special tokens in it are read as such), or token ids.
            n_predict: Most tokens; -1 goes on to the end of the text or of the context.
            temperature: 0 is greedy; this and the next ones as in `Sampling`.
            stop: Strings that end the text; they are not part of it.
            reuse: Compute only what follows the tokens that the session holds already.  The same tokens in
                other calls round differently, so that a seed may then give another text.

        Raises:
            InputError: The prompt is empty or longer than the context, or an option is out of range.
            EvaluateError: The model is closed.
        """
        self.functions.check_open()
        if n_predict < -1:
            raise InputError(f"n_predict is {n_predict}", hint="-1 is no limit")
        sampling = Sampling(temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, seed).seeded()
        if isinstance(prompt, str) and not prompt:
            raise InputError("the prompt is empty", hint="give at least one character")
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return Completion(
            self.session,
            self.tokenizer,
            ids,
            make_sampler(sampling, forbidden=self.tokenizer.suppressed),
            limit=n_predict,
            stop=(stop,) if isinstance(stop, str) else stop,
            seed=sampling.seed,
            reuse=reuse,
        )

    def chat(
        self,
        system: str | None = None,
        *,
        template: str | None = None,
        context_full: ContextFull = "drop",
        **options: Unpack[Options],
    ) -> Conversation:
        """A conversation in the model's chat template; see `Conversation` for arguments and errors.

        Args:
            options: Those of `generate`, but that an answer has no limit where `n_predict` is not given.
        """
        self.functions.check_open()
        options.setdefault("n_predict", -1)
        return Conversation(self, system, template=template, context_full=context_full, options=options)

    def logits(self, ids: Sequence[int]) -> Logits:
        """Logits after each of some tokens, float32 `[len(ids), vocabulary]`.

        Raises:
            InputError: There are none, too many, or one that is not in the vocabulary.
            EvaluateError: The model is closed.
        """
        self.functions.check_open()
        self.session.begin()
        return self.session.logits(ids)

    def describe(self) -> Mapping[str, Any]:
        """What the engine says about itself, once something was compiled."""
        return self.session.describe()

    def close(self) -> None:
        """Release memory; the model cannot be used any more."""
        self.session.reset()
        self.functions.close()
        self._prepared.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_decoder(
    path: StrPath,
    *,
    engine: str = DEFAULT_ENGINE,
    numerics: str = DEFAULT_NUMERICS,
    context: int | None = None,
    cache_dir: StrPath | None = None,
    threads: int | None = None,
    text: bool = True,
    progress: Progress | None = None,
) -> Model:
    """Make a model that writes text ready to run; weights are converted once and kept in the cache.

    Args:
        path: A GGUF file, or a folder with `config.json` and safetensors.
        engine: Name of an engine.
        numerics: Arithmetic level, `fp16` or `fp32`.
        context: Most tokens; the model's own context if None.
        cache_dir: By default as `anex.runtime.store.folder` says.
        threads: Most threads that compute, in the whole process; one per core if None.
        text: Refuse a model whose tokenizer is missing or unknown; without it, token ids still work.
        progress: Called with a stage, what is done and what there is to do.

    Raises:
        InputError: The file or an argument is malformed.
        UnsupportedError: The model needs something that anex does not have; it is named.
        ResourceError: The cache cannot be written.
        LoadError: There is no such engine here.
    """
    root, most = store.folder(cache_dir), store.limit()
    with ExitStack() as opened:
        file = opened.enter_context(open_model(path))
        checked_context(context, file.config.context_length)
        if text:
            _ = file.tokenizer
        chosen = find_engine(engine, numerics=numerics, threads=threads, cache=store.compiled(root))
        opened.pop_all()  # from here on `_ready` closes it
    return _ready(file, chosen, root, most, context, threads, progress)


def _ready(
    file: ModelFile,
    engine: Engine,
    root: Path,
    most: int,
    context: int | None,
    compilers: int | None,
    progress: Progress | None,
) -> Model:
    """The model, its weights in the cache at `root`, which then holds at most `most` bytes; or all closed."""
    with ExitStack() as opened:
        prepared = opened.enter_context(convert(file, store.models(root), progress))
        functions = opened.enter_context(Functions(prepared, engine, progress=progress, compilers=compilers))
        model = Model(prepared, functions, context)
        store.settle(root, (prepared.folder, store.compiled(root)), most)
        opened.pop_all()  # the model closes them
        return model
