"""The numbers that define an encoder, and how a text becomes one vector."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Learned:
    """Positions are rows of a table.

    Attributes:
        rows: Of the table.
        padding: Id of the padding token where the family counts from it: the n-th
            token (from 1) that is no padding has row `padding + n`, padding itself
            row `padding` (RoBERTa).  None: the n-th token (from 0) has row n.
    """

    rows: int
    padding: int | None = None

    @property
    def longest(self) -> int:
        """Most tokens of a text."""
        return self.rows if self.padding is None else self.rows - self.padding - 1


@dataclass(frozen=True, slots=True)
class Rotary:
    """Positions turn queries and keys; most layers look at a window only (ModernBERT).

    Attributes:
        theta: Base of the angles in layers that look at everything.
        local_theta: Base in the others.
        window: How far to each side the others look.
        every: Layers 0, `every`, 2·`every` … look at everything.
    """

    theta: float
    local_theta: float
    window: int
    every: int


@dataclass(frozen=True, slots=True)
class Pooling:
    """From the hidden states of the tokens to one vector.

    Attributes:
        mode: A name in `anex.models.encoder.POOLINGS`; None where the file does not say.
        normalize: Divide by the Euclidean length.
        lower: Texts are put in lower case first.
        strip: White space around a text is removed first.
    """

    mode: str | None = None
    normalize: bool = True
    lower: bool = False
    strip: bool = False


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A transformer encoder (Devlin et al. 2019 and its successors).

    Attributes:
        family: Its entry in `encoders.toml`.
        dim: Width of the hidden states.
        segments: Rows of the table of segments (token types); a text is all in the first. 0: no table.
        activation: A name in `anex.models.encoder.graph.NAMES`.
        norm_first: A block normalises what it reads, not what it returns.
        max_tokens: Most tokens of a text, special ones included.
    """

    family: str
    n_layers: int
    dim: int
    vocab_size: int
    n_heads: int
    ffn_dim: int
    activation: str
    eps: float
    max_tokens: int
    positions: Learned | Rotary
    segments: int = 0
    norm_first: bool = False
    pooling: Pooling = field(default_factory=Pooling)

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads
