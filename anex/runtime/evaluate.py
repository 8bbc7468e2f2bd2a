"""How well a model knows a text, and how far it is from a reference: perplexity, Kullback-Leibler divergence.

Two ways to cut a text into windows of `context` tokens:

* without a stride as `llama-perplexity` does: the windows follow each other and do not overlap, what is left
  at the end is not used, the first token of a window is replaced by BOS where the tokenizer adds one, and of
  each window only the second half is scored, so that every scored token has half a window before it;
* with a stride the window slides by so many tokens, and each scores what no window before it has; the first
  scores all but its first token, and the last one may be shorter.  With a short stride this is what a model
  would say that always had a full context, at a cost of `context / stride`.

A token that is scored costs `-ln p(token | those before it in its window)`; the perplexity is `exp` of their
mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.errors import InputError
from anex.models import CHUNKS, Progress
from anex.runtime.sampling import check_finite
from anex.runtime.session import Logits, Session

if TYPE_CHECKING:
    from anex.runtime.model import Model

DEFAULT_WINDOW = 512
"""Tokens of a window; as in llama.cpp."""

SMALLEST_WINDOW = 4

_LOGIT_BYTES = 128 << 20
"""Most bytes of logits that are held at the same time, of one model."""

_BLOCK = 32
"""Rows whose probabilities are computed at the same time, in float64."""

Doubles = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that a model sees together.

    Attributes:
        first: Index of the first token that is scored, at least 1.
    """

    ids: Sequence[int]
    first: int


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What a model makes of a text.

    Attributes:
        tokens: Of the text.
        window: Tokens of a window.
        windows: How many of them the model saw.
        losses: `-ln p` of each scored token.
        nbytes: Of the text of the scored tokens.
    """

    tokens: int
    window: int
    windows: int
    losses: Doubles
    nbytes: int

    @property
    def mean(self) -> float:
        """Nats per token."""
        return float(self.losses.mean())

    @property
    def value(self) -> float:
        """The perplexity."""
        return float(np.exp(self.mean))

    @property
    def error(self) -> float:
        """Standard error of the perplexity, as if the tokens were independent; 0 for a single one."""
        count = self.losses.size
        return self.value * float(self.losses.std(ddof=1)) / count**0.5 if count > 1 else 0.0

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs for a byte of the text."""
        return float(self.losses.sum()) / math.log(2) / self.nbytes if self.nbytes else math.nan


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model is from a reference, an entry for each scored token.

    Attributes:
        losses: `-ln p` of the token by the reference.
        kl: `KL(reference ‖ model)` of the next token, in nats.
        same_top: 1 where both have the same most likely token, else 0.
        top_change: Probability of the reference's most likely token, by the model minus by the reference.
        token_change: The same of the token that the text has.
    """

    losses: Doubles
    kl: Doubles
    same_top: Doubles
    top_change: Doubles
    token_change: Doubles


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found; `divergence` is None without a reference."""

    perplexity: Perplexity
    divergence: Divergence | None


def evaluate(
    model: Model,
    text: str,
    *,
    reference: Model | None = None,
    context: int | None = None,
    stride: int | None = None,
    windows: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Let a model read a text.

    Args:
        text: Texts of control tokens in it are text.
        reference: A model with the same tokenizer, to compare with.
        context: Tokens of a window; 512, or the model's context if that is shorter.
        stride: Slide the window; see above.
        windows: Most windows; all that the text has if None.
        progress: Told about windows, as stage "evaluate".

    Raises:
        InputError: The text is too short for one window, an argument is out of range, or the reference has
            other tokens.
        EvaluateError: The logits are not finite numbers.
    """
    size = min(DEFAULT_WINDOW, model.context) if context is None else context
    ids = model.tokenizer.encode(text, parse_special=False)
    models = [model] if reference is None else [model, reference]
    for m in models:
        _check(m, size, stride, windows)
    if reference is not None:
        _check_same(model, reference, ids, text)
    plan = list(_windows(model, ids, size, stride))[:windows]
    readers = [Session(m.functions, context=size) for m in models]
    report = progress or (lambda stage, done, total: None)
    rows: list[tuple[Doubles, ...]] = []
    for done, window in enumerate(plan):
        report("evaluate", done, len(plan))
        blocks = zip(*(_log_probabilities(reader, window) for reader in readers), strict=True)
        for start, block in zip(range(window.first, len(window.ids), _BLOCK), blocks, strict=True):
            rows.append(_score(window.ids[start : start + _BLOCK], *block))
    report("evaluate", len(plan), len(plan))
    losses, *compared = (np.concatenate(column) for column in zip(*rows, strict=True))
    scored = [token for window in plan for token in window.ids[window.first :]]
    perplexity = Perplexity(len(ids), size, len(plan), losses, _nbytes(model, scored))
    return Evaluation(perplexity, Divergence(*compared) if compared else None)


def _windows(model: Model, ids: Sequence[int], size: int, stride: int | None) -> Iterator[Window]:
    """The windows of a text; see above."""
    tokenizer = model.tokenizer
    if len(ids) < (size if stride is None else 2):
        raise InputError(
            f"the text has {len(ids)} tokens, a window {size}", hint="a longer text, or a smaller -c"
        )
    if stride is None:
        begin = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
        for start in range(0, len(ids) - size + 1, size):
            yield Window([*begin, *ids[start + len(begin) : start + size]], size // 2 + 1)
        return
    end = 1  # the first token has nothing before it
    for start in range(0, len(ids), stride):
        yield Window(ids[start : start + size], end - start)
        end = start + size
        if end >= len(ids):
            return


def _log_probabilities(session: Session, window: Window) -> Iterator[Doubles]:
    """Logarithms of the probabilities at each token that is scored, `[≤ _BLOCK, vocabulary]` at a time."""
    session.begin()
    first, last = window.first - 1, len(window.ids) - 1
    if first:
        session.take(window.ids[:first])
    row = 4 * session.config.vocab_size
    step = max((chunk for chunk in CHUNKS if chunk * row <= _LOGIT_BYTES), default=CHUNKS[0])
    # Blocks are cut alike for all models: whole ones, but for the last.
    step = max(step, _BLOCK) // _BLOCK * _BLOCK
    for start in range(first, last, step):
        logits = session.logits(window.ids[start : min(start + step, last)])
        for block in range(0, len(logits), _BLOCK):
            yield _log_softmax(logits[block : block + _BLOCK])


def _log_softmax(logits: Logits) -> Doubles:
    check_finite(logits)
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _score(tokens: Sequence[int], log_p: Doubles, log_r: Doubles | None = None) -> tuple[Doubles, ...]:
    """The losses of some tokens, and with a reference the columns of `Divergence`."""
    at = np.arange(len(tokens)), np.asarray(tokens)
    losses = -log_p[at]
    if log_r is None:
        return (losses,)
    p, r, top = np.exp(log_p), np.exp(log_r), log_r.argmax(axis=1)
    best = np.arange(len(tokens)), top
    # A probability of 0 adds nothing, whatever the other one is.
    kl = np.sum(r * np.where(r > 0, log_r - log_p, 0.0), axis=1)
    same = (top == log_p.argmax(axis=1)).astype(np.float64)
    return losses, -log_r[at], kl, same, p[best] - r[best], p[at] - r[at]


def _nbytes(model: Model, ids: Sequence[int]) -> int:
    tokenizer = model.tokenizer
    return sum(len(tokenizer.token(token)) for token in ids if not tokenizer.is_control(token))


def _check(model: Model, size: int, stride: int | None, windows: int | None) -> None:
    if not SMALLEST_WINDOW <= size <= model.context:
        raise InputError(f"a window of {size} tokens", hint=f"{SMALLEST_WINDOW} … {model.context} work")
    if stride is not None and not 0 < stride < size:
        raise InputError(f"a stride of {stride} tokens", hint=f"1 … {size - 1} work for a window of {size}")
    if windows is not None and windows < 1:
        raise InputError(f"{windows} windows", hint="at least one")


def _check_same(model: Model, reference: Model, ids: Sequence[int], text: str) -> None:
    sizes = [m.config.vocab_size for m in (model, reference)]
    if sizes[0] != sizes[1]:
        what = f"its vocabulary has {sizes[1]} tokens, that of the model {sizes[0]}"
    elif reference.tokenizer.encode(text, parse_special=False) != ids:
        what = "its tokenizer reads the text as other tokens"
    else:
        return
    raise InputError(what, where="reference", hint="compare models with the same tokenizer")
