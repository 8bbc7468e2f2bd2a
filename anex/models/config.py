"""The numbers that define a decoder, grouped by what they belong to.

Every field means something to the program or to the host (`anex.models.decoder`,
`anex.models.feed`, `anex.models.weights`): a field that nobody reads would be a
feature that is silently left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anex.models.rope import Rope


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm before each block and before the head.

    Attributes:
        eps: Added to the mean square.
    """

    eps: float


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with a rotary position embedding.

    Attributes:
        n_kv_heads: Heads of keys and values; each is shared by `n_heads / n_kv_heads` query heads.
        scale: Factor of the scores.
        window: Columns a query sees, itself included; None is all.
        biases: Linear layers that add one, by role: wq wk wv wo.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    biases: frozenset[str] = frozenset()

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Channels of one layer's keys, or values."""
        return self.n_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Mlp:
    """The gated feed-forward network.

    Attributes:
        dim: Its inner width.
        activation: Of the gate, a name in `anex.models.decoder.ACTIVATIONS`.
        biases: Linear layers that add one, by role: w_gate w_up w_down.
    """

    dim: int
    activation: str = "silu"
    biases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constants that some families scale with.

    Attributes:
        embedding: Of the embedding rows (on the host).
        residual: Of what a block adds to the residual stream (in the weights).
        logits: Of the logits (on the host).
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer, with the names of the literature.

    Attributes:
        family: Its entry in `families.toml`.
        dim: Width of the residual stream.
        context_length: Positions the model was trained for.
        vocab_size: Rows of the embedding table.
        tied: The output head is the embedding table.
    """

    family: str
    n_layers: int
    dim: int
    vocab_size: int
    context_length: int
    norm: Norm
    attention: Attention
    mlp: Mlp
    rope: Rope
    multipliers: Multipliers = field(default_factory=Multipliers)
    tied: bool = False

    @property
    def biases(self) -> frozenset[str]:
        """Linear layers that add a bias, by role."""
        return self.attention.biases | self.mlp.biases
