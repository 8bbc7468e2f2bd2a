"""The decoder-only transformer as MIL: one function of ops, read from top to bottom.

Activations are `[1, C, 1, T]`: channels, then the columns (tokens) that are
computed together.  Linear layers are 1×1 convolutions.  Every layer is the same
sequence of ops, named `l0_…`, `l1_…`; an engine may compile one and call it for all.

The host does what the engine cannot: it looks up embedding rows, computes cos
and sin, and writes the mask (`anex.models.feed`).  Ports are those of the
function's `Signature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anex.mil import Builder, DType, Function, Literal, Value
from anex.models.config import Attention, DecoderConfig
from anex.models.layout import CacheSurface, vocab_tiles
from anex.models.signature import Kind, Role, Signature, caches, host_ports

Weights = Mapping[str, Literal]
"""Role of each weight (see `anex.models.weights`) to its literal in the blob."""

FAN_IN = 8
"""Most inputs of one concat: from 12 on, the engine's compiler searches for seconds."""


class Scope:
    """Emits ops whose names start with a prefix.

    Args:
        weights: What `weight` looks up, under the same prefix.
    """

    def __init__(self, builder: Builder, weights: Weights, prefix: str = "") -> None:
        self.builder = builder
        self.weights = weights
        self.prefix = prefix

    def __call__(self, kind: str, name: str, **inputs: Any) -> Value:
        return self.builder.op(kind, name=self.prefix + name, **inputs)

    def weight(self, role: str) -> Value:
        name = self.prefix + role
        return self.builder.const(self.weights[name], name=name)

    def within(self, prefix: str) -> Scope:
        return Scope(self.builder, self.weights, self.prefix + prefix)


def rms_norm(emit: Scope, x: Value, role: str, eps: float) -> Value:
    """`x / sqrt(mean(x²) + eps) · gamma` over D channels, safe in fp16 (Zhang & Sennrich 2019).

    Residual streams of real models reach 2·10⁴, whose square is far beyond
    fp16.  With `r = sqrt(eps·D)`, `m = max(max|x|, r)`, `y = x / m` and `e = r / m`

        x / sqrt(mean(x²) + eps) · gamma  =  y · (sum(y²) + e²)^(-1/2) · (gamma·sqrt(D))

    exactly; the weight holds gamma·sqrt(D), multiplied before its one rounding
    to fp16, and the only rounded constant is r, which moves eps by 2⁻¹⁰ of itself.

    Nothing overflows: |y| ≤ 1 and e ≤ 1, so the sum lies in [0, D], the term
    under the root in [1, D + 1] (its largest y² is 1 where m is max|x|, and e² is
    1 where m is r), its root's inverse in [1/sqrt(D + 1), 1], and y times that in
    [-1, 1].  D ≤ 32752 keeps the sum below the engine's cliff at 2¹⁵.  What
    underflows does not count: each square is off by at most 2⁻²⁵, their sum by at
    most D·2⁻²⁵ ≤ 2⁻¹⁰ beside a term of at least 1.

    r has to be a normal fp16 number, or it would lose bits and, flushed to zero,
    a column of zeros would be 0 / 0: `anex.models.metadata` refuses models below that.
    """
    n = emit.within(role + "_")
    (_, dim, _, _) = x.tensor.dims
    r = math.sqrt(eps * dim)
    largest = n("reduce_max", "largest", x=n("abs", "abs", x=x), axes=[1], keep_dims=True)
    m = n("maximum", "m", x=largest, y=r)
    y = n("real_div", "y", x=x, y=m)
    total = n("reduce_sum", "total", x=n("mul", "square", x=y, y=y), axes=[1], keep_dims=True)
    e = n("real_div", "e", x=r, y=m)
    under = n("add", "under", x=total, y=n("mul", "e2", x=e, y=e))
    unit = n("mul", "unit", x=y, y=n("pow", "inverse", x=under, y=-0.5))
    return n("mul", "out", x=unit, y=emit.weight(role))


def conv(emit: Scope, x: Value, role: str, name: str) -> Value:
    """`W x`: `[1, Ci, 1, T]` → `[1, Co, 1, T]`."""
    return emit(
        "conv",
        name,
        x=x,
        weight=emit.weight(role),
        strides=[1, 1],
        pad_type="valid",
        pad=[0, 0, 0, 0],
        dilations=[1, 1],
        groups=1,
    )


def linear(emit: Scope, config: DecoderConfig, x: Value, role: str, name: str) -> Value:
    """`W x`, plus a bias where the model has one: `[1, Ci, 1, T]` → `[1, Co, 1, T]`."""
    out = conv(emit, x, role, name)
    if role not in config.biases:
        return out
    # A separate add, not conv's bias: some compilers refuse that (facts: ane.md §3.6).
    return emit("add", f"{name}_biased", x=out, y=emit.weight("b" + role.removeprefix("w")))


def part(emit: Scope, x: Value, name: str, axis: int, first: int, count: int) -> Value:
    """Positions `first … first + count - 1` of one axis."""
    begin, size = [0] * len(x.tensor.dims), list(x.tensor.dims)
    begin[axis], size[axis] = first, count
    return emit("slice_by_size", name, x=x, begin=begin, size=size)


def concat(emit: Scope, parts: Sequence[Value], name: str, axis: int) -> Value:
    """Joins any number of values, never more than `FAN_IN` in one op."""
    level = 0
    while len(parts) > FAN_IN:
        groups = [tuple(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
        parts = [
            emit("concat", f"{name}_{level}_{i}", values=g, axis=axis, interleave=False)
            if len(g) > 1
            else g[0]
            for i, g in enumerate(groups)
        ]
        level += 1
    if len(parts) == 1:
        return parts[0]
    return emit("concat", name, values=tuple(parts), axis=axis, interleave=False)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns (tokens) that a function computes together, and what they look at.

    Attributes:
        count: How many there are (T).
        cached: Columns of the cache (C).
        x: Embedding rows, `[1, D, 1, T]`.
        cos: `[1, 1, rope dims / 2, T]`.
        sin: `[1, 1, rope dims / 2, T]`.
        mask: `[1, 1, T, C + T]`, added to the scores.
        caches: The surfaces of the cache, empty where C is 0.
    """

    count: int
    cached: int
    x: Value
    cos: Value
    sin: Value
    mask: Value
    caches: Sequence[tuple[CacheSurface, Value]]


KeysValues = tuple[Value, Value]
"""Keys and values of one layer, `[1, KV, head_dim, columns]` each."""


def cached_keys_values(emit: Scope, config: Attention, layer: int, columns: Columns) -> KeysValues | None:
    """The cached columns of a layer; None where nothing is cached."""
    for surface, cache in columns.caches:
        if surface.first <= layer < surface.first + surface.layers:
            shape = [1, config.n_kv_heads, config.head_dim, columns.cached]
            k = part(emit, cache, "k_cached", 1, surface.keys(layer), config.kv_dim)
            v = part(emit, cache, "v_cached", 1, surface.values(layer), config.kv_dim)
            return emit("reshape", "k_old", x=k, shape=shape), emit("reshape", "v_old", x=v, shape=shape)
    return None


def rotate(emit: Scope, x: Value, name: str, columns: Columns, dims: int) -> Value:
    """RoPE on `[1, H, head_dim, T]`: channel j of a head turns with channel j + dims/2."""
    n = emit.within(name + "_")
    head_dim, half = x.tensor.dims[2], dims // 2
    a, b = part(n, x, "a", 2, 0, half), part(n, x, "b", 2, half, half)
    turned_a = n("sub", "ra", x=n("mul", "ac", x=a, y=columns.cos), y=n("mul", "bs", x=b, y=columns.sin))
    turned_b = n("add", "rb", x=n("mul", "bc", x=b, y=columns.cos), y=n("mul", "as", x=a, y=columns.sin))
    rest = [part(n, x, "rest", 2, dims, head_dim - dims)] if dims < head_dim else []
    return concat(n, [turned_a, turned_b, *rest], "rope", axis=2)


def attention(
    emit: Scope, config: Attention, q: Value, new: KeysValues, old: KeysValues | None, columns: Columns
) -> Value:
    """Softmax attention over cached and new columns: `[1, H, head_dim, T]` → `[1, H·head_dim, 1, T]`.

    The cache is not copied: scores against cached and new keys are joined, and
    the probabilities are split again.  Query heads that share a key head (GQA,
    Ainslie et al. 2023) become rows of one product, so that keys and values
    are not repeated.  `q` is already scaled.
    """
    width = columns.cached + columns.count
    by_head = [1, config.n_heads, columns.count]
    by_group = [1, config.n_kv_heads, config.n_heads // config.n_kv_heads * columns.count]

    def reshape(name: str, x: Value, rows: list[int], last: int) -> Value:
        return emit("reshape", name, x=x, shape=[*rows, last])

    def matmul(name: str, x: Value, y: Value, transpose_y: bool) -> Value:
        return emit("matmul", name, x=x, y=y, transpose_x=False, transpose_y=transpose_y)

    q = reshape("q_rows", emit("transpose", "q_t", x=q, perm=[0, 1, 3, 2]), by_group, config.head_dim)
    scores = matmul("scores_new", q, new[0], False)
    if old is not None:
        scores = concat(emit, [matmul("scores_old", q, old[0], False), scores], "scores", axis=3)
    masked = emit("add", "masked", x=reshape("scores_head", scores, by_head, width), y=columns.mask)
    p = reshape("p_rows", emit("softmax", "p", x=masked, axis=-1), by_group, width)
    if old is None:
        mixed = matmul("mixed", p, new[1], True)
    else:
        # A slice that starts inside a row loses numbers above 4094 on M1 and M2; these are at most 1.
        p_new = part(emit, p, "p_new", 3, columns.cached, columns.count)
        p_old = part(emit, p, "p_old", 3, 0, columns.cached)
        mixed_old = matmul("mixed_old", p_old, old[1], True)
        mixed = emit("add", "mixed", x=mixed_old, y=matmul("mixed_new", p_new, new[1], True))
    mixed = emit(
        "transpose", "mixed_t", x=reshape("mixed_head", mixed, by_head, config.head_dim), perm=[0, 1, 3, 2]
    )
    return emit("reshape", "attended", x=mixed, shape=[1, config.q_dim, 1, columns.count])


def silu(emit: Scope, gate: Value) -> Value:
    """Spelt out: the engine's own table is off by 0.001 at 0, its sigmoid is not."""
    return emit("mul", "silu", x=gate, y=emit("sigmoid", "sigmoid", x=gate))


ACTIVATIONS: Mapping[str, Callable[[Scope, Value], Value]] = {"silu": silu}
"""Functions of the gate of the feed-forward network."""


def feed_forward(emit: Scope, config: DecoderConfig, x: Value) -> Value:
    """A gated linear unit (Shazeer 2020): `W_down (f(W_gate x) · W_up x)`."""
    gate = ACTIVATIONS[config.mlp.activation](emit, linear(emit, config, x, "w_gate", "gate"))
    product = emit("mul", "gated", x=gate, y=linear(emit, config, x, "w_up", "up"))
    return linear(emit, config, product, "w_down", "down")


def layer(emit: Scope, config: DecoderConfig, x: Value, index: int, columns: Columns) -> tuple[Value, Value]:
    """One pre-norm block; returns the residual stream and the new `[1, 2·kv_dim, 1, T]` columns.

    The weights of q hold the scale of the scores.
    """
    a = config.attention
    flat = [1, a.kv_dim, 1, columns.count]

    def heads(name: str, y: Value, count: int) -> Value:
        return emit("reshape", name, x=y, shape=[1, count, a.head_dim, columns.count])

    h = rms_norm(emit, x, "attn_norm", config.norm.eps)
    q, k, v = (linear(emit, config, h, f"w{name}", name) for name in "qkv")
    q = rotate(emit, heads("q_heads", q, a.n_heads), "q", columns, config.rope.dims)
    k_heads = rotate(emit, heads("k_heads", k, a.n_kv_heads), "k", columns, config.rope.dims)
    new = (k_heads, heads("v_heads", v, a.n_kv_heads))
    old = cached_keys_values(emit, a, index, columns)
    attended = attention(emit, a, q, new, old, columns)
    x = emit("add", "attn_out", x=x, y=linear(emit, config, attended, "wo", "o"))
    h = rms_norm(emit, x, "ffn_norm", config.norm.eps)
    x = emit("add", "out", x=x, y=feed_forward(emit, config, h))
    return x, concat(emit, [emit("reshape", "k_flat", x=k_heads, shape=flat), v], "kv", axis=1)


def decoder(
    emit: Scope, config: DecoderConfig, x: Value, columns: Columns
) -> tuple[Value, list[tuple[CacheSurface, Value]]]:
    """All layers and the final norm; returns hidden `[1, D, 1, T]` and the new columns per cache surface."""
    new = []
    for index in range(config.n_layers):
        x, kv = layer(emit.within(f"l{index}_"), config, x, index, columns)
        new.append(kv)
    hidden = rms_norm(emit, x, "norm", config.norm.eps)
    return hidden, [
        (s, concat(emit, new[s.first : s.first + s.layers], f"kv{index}", axis=1))
        for index, s in enumerate(caches(config))
    ]


def build(config: DecoderConfig, weights: Weights, signature: Signature) -> Function:
    """The function with the ports of a signature."""
    b = Builder(signature.name)
    emit = Scope(b, weights)
    ports = {port.name: b.input(port.name, DType.FP16, port.shape) for port in signature.inputs}
    if signature.kind is Kind.HEAD:
        return b.finish(_logits(emit, config, ports["i00_hidden"]))
    columns = _columns(emit, config, signature, ports)
    hidden, new = decoder(emit, config, columns.x, columns)
    results = {surface.output: kv for surface, kv in new}
    if signature.kind is Kind.DECODE:
        results = _logits(emit, config, hidden) | results
        shapes = {port.name: port.shape for port in signature.outputs}
        return b.finish({name: _row(emit, value, name[4:], shapes[name]) for name, value in results.items()})
    return b.finish({signature.port(Role.HIDDEN).name: hidden} | results)


def _columns(emit: Scope, config: DecoderConfig, signature: Signature, ports: Mapping[str, Value]) -> Columns:
    """The host's inputs and the caches; of ports that are wider than their values, the first columns."""
    t, c = signature.columns, signature.cached
    host = {}
    for port, source in host_ports(config).items():
        value, width = ports[port], source.shape(t, c)[3]
        whole = value.tensor.dims[3] == width
        host[source.name] = value if whole else part(emit, value, source.name, 3, 0, width)
    held = [(surface, ports[surface.input]) for surface in caches(config) if c]
    return Columns(t, c, host["x"], host["cos"], host["sin"], host["mask"], held)


def _logits(emit: Scope, config: DecoderConfig, hidden: Value) -> dict[str, Value]:
    """Port → logits of a tile `[1, rows, 1, T]`."""
    return {
        tile.port: conv(emit, hidden, f"head{tile.number}", f"logits{tile.number}")
        for tile in vocab_tiles(config)
    }


def _row(emit: Scope, column: Value, name: str, shape: Sequence[int]) -> Value:
    """`[1, C, 1, 1]` in another shape, after zeros that fill it up."""
    if missing := math.prod(shape) - column.tensor.dims[1]:
        pad = [0, 0, 0, missing, 0, 0, 0, 0]
        column = emit("pad", f"{name}_padded", x=column, pad=pad, mode="constant", constant_val=0.0)
    return emit("reshape", name, x=column, shape=list(shape))
