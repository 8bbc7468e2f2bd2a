"""The numbers that define a decoder, grouped by what they belong to.

Every field means something to the program or to the host (`anex.models.decoder`,
`anex.models.feed`, `anex.models.weights`): a field that nobody reads would be a
feature that is silently left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anex.models.rope import Rope

PRE_NORMS = frozenset({"attn_norm", "ffn_norm"})


@dataclass(frozen=True, slots=True)
class Norm:
    """The norms of a layer, and the one before the head.

    Attributes:
        eps: Added to the mean square.
        kind: A name in `anex.models.decoder.NORMS`: `rms`, or `layer` (the mean is taken off first).
        roles: Those that a layer has, of attn_norm and ffn_norm (before a block),
            attn_post_norm and ffn_post_norm (after it, before it is added).
        biases: Norms that add a bias, by role, `norm` (the last one) among them.
    """

    eps: float
    kind: str = "rms"
    roles: frozenset[str] = PRE_NORMS
    biases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention.

    Attributes:
        n_kv_heads: Heads of keys and values; each is shared by `n_heads / n_kv_heads` query heads.
        scale: Factor of the scores.
        window: Columns a query sees, itself included; None is all.
        biases: Linear layers that add one, by role: wq wk wv wo.
        qk_norm: Norm of queries and keys: `head` (each head by itself, one weight for
            all), `heads` (each head by itself and with its own weight), `whole` (all
            heads as one vector), or none if empty.
        qk_norm_late: It comes after the rotation, not before.
        soft_cap: Scores are brought into ±soft_cap by a tanh; 0 leaves them.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    biases: frozenset[str] = frozenset()
    qk_norm: str = ""
    qk_norm_late: bool = False
    soft_cap: float = 0.0

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Channels of one layer's keys, or values."""
        return self.n_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward networks of which a router chooses a few for each token.

    Attributes:
        count: How many there are; the `dim` of `Mlp` is the width of each.
        used: How many a token goes through.
        scale: Factor of their weights.
        normalised: The weights of the chosen ones add up to 1 (before `scale`).
        shared_dim: Width of one more network that every token goes through; 0 is none.
    """

    count: int
    used: int
    scale: float = 1.0
    normalised: bool = True
    shared_dim: int = 0


@dataclass(frozen=True, slots=True)
class Mlp:
    """The feed-forward network.

    Attributes:
        dim: Its inner width.
        activation: A name in `anex.models.decoder.ACTIVATIONS`.
        biases: Linear layers that add one, by role: w_gate w_up w_down.
        gated: The activation is that of a gate, which the other branch is multiplied with.
        experts: There are several, and a router.
    """

    dim: int
    activation: str = "silu"
    biases: frozenset[str] = frozenset()
    gated: bool = True
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constants that some families scale with.

    Attributes:
        embedding: Of the embedding rows (on the host).
        residual: Of what a block adds to the residual stream (in the weights).
        logits: Of the logits (on the host).
        logit_cap: Logits are brought into ±logit_cap by a tanh (on the host); 0 leaves them.
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logit_cap: float = 0.0


@dataclass(frozen=True, slots=True)
class Local:
    """Layers whose attention looks elsewhere, or rotates otherwise, than that of the others.

    Attributes:
        layers: Their numbers.
        window: As in `Attention`, for these.
        rope: As in `DecoderConfig`, for these.
    """

    layers: frozenset[int]
    window: int | None
    rope: Rope | None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer, with the names of the literature.

    Attributes:
        family: Its entry in `families.toml`.
        dim: Width of the residual stream.
        context_length: Positions the model was trained for.
        vocab_size: Rows of the embedding table.
        rope: Rotation of queries and keys; None where there is none.
        tied: The output head is the embedding table.
        local: Layers with another window or rotation.
        parallel: Attention and feed-forward network read the same residual stream.
        positions: Rows of a table of learned positions, which the host adds; 0 is none.
        head_bias: The output head adds a bias.
    """

    family: str
    n_layers: int
    dim: int
    vocab_size: int
    context_length: int
    norm: Norm
    attention: Attention
    mlp: Mlp
    rope: Rope | None
    multipliers: Multipliers = field(default_factory=Multipliers)
    tied: bool = False
    local: Local | None = None
    parallel: bool = False
    positions: int = 0
    head_bias: bool = False

    @property
    def biases(self) -> frozenset[str]:
        """Linear layers that add a bias, by role."""
        return self.attention.biases | self.mlp.biases

    @property
    def rope_dims(self) -> int:
        """Channels of a head that turn in any layer; a layer without rotation turns them by 0."""
        ropes = [self.rope, self.local.rope if self.local else None]
        return max((rope.dims for rope in ropes if rope), default=0)
