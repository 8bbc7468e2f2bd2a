"""The decoder-only transformer as MIL: one function of ops, read from top to bottom.

Activations are `[1, C, 1, T]`: channels, then the columns (tokens) that are
computed together.  Linear layers are 1×1 convolutions.  Every layer is the same
sequence of ops, named `l0_…`, `l1_…`; an engine may compile one and call it for all.

The host does what the engine cannot: it looks up embedding rows, computes cos
and sin, and writes the mask (`anex.models.rope`, `anex.models.masks`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anex.mil import Builder, DType, Function, Literal, Value
from anex.models.config import DecoderConfig
from anex.models.layout import LANE, CacheSurface, cache_surfaces, padded, padded_vocab

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

    def has(self, role: str) -> bool:
        return self.prefix + role in self.weights

    def within(self, prefix: str) -> Scope:
        return Scope(self.builder, self.weights, self.prefix + prefix)


def rms_norm(emit: Scope, x: Value, role: str, eps: float) -> Value:
    """`x / sqrt(mean(x²) + eps) · gamma` over the channels, safe in fp16 (Zhang & Sennrich 2019).

    Residual streams of real models reach 2·10⁴, whose square is far beyond
    fp16.  With `m = max(max|x|, sqrt(eps))`, `y = x / m` and `e = sqrt(eps) / m`

        x / sqrt(mean(x²) + eps)  =  y / sqrt(mean(y²) + e²)

    exactly, and nothing can overflow: |y| ≤ 1, so y² ≤ 1 and its sum lies in
    [0, D]; e ≤ 1, so the term under the root lies in (0, 2] (at least 1/D when
    m is max|x|, exactly 1 and more when m is sqrt(eps)), its root's inverse is
    at most sqrt(D), and y times that is at most sqrt(D).  Squares that fall
    below fp16's smallest number are at most 2⁻²⁴ of the largest one, which is 1.
    """
    n = emit.within(role + "_")
    (_, dim, _, _) = x.tensor.dims
    root_eps = math.sqrt(eps)
    largest = n("reduce_max", "largest", x=n("abs", "abs", x=x), axes=[1], keep_dims=True)
    m = n("maximum", "m", x=largest, y=root_eps)
    y = n("real_div", "y", x=x, y=m)
    total = n("reduce_sum", "total", x=n("mul", "square", x=y, y=y), axes=[1], keep_dims=True)
    mean = n("mul", "mean", x=total, y=1.0 / dim)
    e = n("real_div", "e", x=root_eps, y=m)
    under = n("add", "under", x=mean, y=n("mul", "e2", x=e, y=e))
    unit = n("mul", "unit", x=y, y=n("pow", "inverse", x=under, y=-0.5))
    return n("mul", "out", x=unit, y=emit.weight(role))


def linear(emit: Scope, x: Value, role: str, name: str) -> Value:
    """`W x`, plus a bias where the model has one: `[1, Ci, 1, T]` → `[1, Co, 1, T]`."""
    out = emit(
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
    # A separate add, not conv's bias: some compilers refuse that (facts: ane.md §3.6).
    bias = "b" + role.removeprefix("w")
    return emit("add", f"{name}_biased", x=out, y=emit.weight(bias)) if emit.has(bias) else out


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
        cos: `[1, 1, rope dims / 2, T]`.
        sin: `[1, 1, rope dims / 2, T]`.
        mask: `[1, 1, T, C + T]`, added to the scores.
        caches: The surfaces of the cache, empty where C is 0.
    """

    count: int
    cached: int
    cos: Value
    sin: Value
    mask: Value
    caches: Sequence[tuple[CacheSurface, Value]]


KeysValues = tuple[Value, Value]
"""Keys and values of one layer, `[1, KV, head_dim, columns]` each."""


def cached_keys_values(emit: Scope, config: DecoderConfig, layer: int, columns: Columns) -> KeysValues | None:
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
    emit: Scope, config: DecoderConfig, q: Value, new: KeysValues, old: KeysValues | None, columns: Columns
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


def feed_forward(emit: Scope, x: Value) -> Value:
    """SwiGLU (Shazeer 2020): `W_down (silu(W_gate x) · W_up x)`.

    silu is spelt out: the engine's own table is off by 0.001 at 0, its sigmoid is not.
    """
    gate = linear(emit, x, "w_gate", "gate")
    silu = emit("mul", "silu", x=gate, y=emit("sigmoid", "sigmoid", x=gate))
    product = emit("mul", "gated", x=silu, y=linear(emit, x, "w_up", "up"))
    return linear(emit, product, "w_down", "down")


def layer(emit: Scope, config: DecoderConfig, x: Value, index: int, columns: Columns) -> tuple[Value, Value]:
    """One pre-norm block; returns the residual stream and the new `[1, 2·kv_dim, 1, T]` columns."""
    flat = [1, config.kv_dim, 1, columns.count]

    def heads(name: str, y: Value, count: int) -> Value:
        return emit("reshape", name, x=y, shape=[1, count, config.head_dim, columns.count])

    h = rms_norm(emit, x, "attn_norm", config.norm_eps)
    q = emit("mul", "q_scaled", x=linear(emit, h, "wq", "q"), y=1.0 / math.sqrt(config.head_dim))
    k, v = linear(emit, h, "wk", "k"), linear(emit, h, "wv", "v")
    q = rotate(emit, heads("q_heads", q, config.n_heads), "q", columns, config.rope.dims)
    k_heads = rotate(emit, heads("k_heads", k, config.n_kv_heads), "k", columns, config.rope.dims)
    new = (k_heads, heads("v_heads", v, config.n_kv_heads))
    old = cached_keys_values(emit, config, index, columns)
    attended = attention(emit, config, q, new, old, columns)
    x = emit("add", "attn_out", x=x, y=linear(emit, attended, "wo", "o"))
    h = rms_norm(emit, x, "ffn_norm", config.norm_eps)
    x = emit("add", "out", x=x, y=feed_forward(emit, h))
    return x, concat(emit, [emit("reshape", "k_flat", x=k_heads, shape=flat), v], "kv", axis=1)


def decoder(
    emit: Scope, config: DecoderConfig, x: Value, columns: Columns
) -> tuple[Value, list[tuple[CacheSurface, Value]]]:
    """All layers and the final norm; returns hidden `[1, D, 1, T]` and the new columns per cache surface."""
    new = []
    for index in range(config.n_layers):
        x, kv = layer(emit.within(f"l{index}_"), config, x, index, columns)
        new.append(kv)
    hidden = rms_norm(emit, x, "norm", config.norm_eps)
    surfaces = cache_surfaces(config)
    return hidden, [
        (s, concat(emit, new[s.first : s.first + s.layers], f"kv{s.index}", axis=1)) for s in surfaces
    ]


def prefill(config: DecoderConfig, weights: Weights, name: str, count: int, cached: int) -> Function:
    """Computes `count` columns at once after `cached` ones (0: there is no cache port).

    Ports (fp16): `i00_x [1,D,1,T]`, `i01_cos` and `i02_sin [1,1,dims/2,T]`,
    `i03_mask [1,1,T,C+T]`, `i04_cache… [1,2·layers·kv_dim,1,C]` → `o00_hidden
    [1,D,1,T]` after the final norm, `o01_kv… [1,2·layers·kv_dim,1,T]`.
    """
    b = Builder(name)
    half = config.rope.dims // 2
    x = b.input("i00_x", DType.FP16, (1, config.dim, 1, count))
    cos, sin = (b.input(port, DType.FP16, (1, 1, half, count)) for port in ("i01_cos", "i02_sin"))
    mask = b.input("i03_mask", DType.FP16, (1, 1, count, cached + count))
    columns = Columns(count, cached, cos, sin, mask, _caches(b, config, cached))
    hidden, new = decoder(Scope(b, weights), config, x, columns)
    return b.finish({"o00_hidden": hidden} | {surface.output: kv for surface, kv in new})


def decode(config: DecoderConfig, weights: Weights, name: str, cached: int) -> Function:
    """Computes one column after `cached` ones, and its logits.

    Ports as in `prefill`, but `LANE` wide where one column would be narrower
    than 64 bytes (the first column counts; of the mask the first C + 1), and
    results are rows: `o00_logits [1,1,1,vocabulary]`, `o01_kv… [1,1,1,2·layers·kv_dim]`,
    both rounded up to a multiple of `LANE`.
    """
    b = Builder(name)
    emit = Scope(b, weights)
    half = config.rope.dims // 2

    def first(port: str, shape: tuple[int, ...], width: int) -> Value:
        return part(emit, b.input(port, DType.FP16, shape), port[4:], 3, 0, width)

    x = first("i00_x", (1, config.dim, 1, LANE), 1)
    cos, sin = (first(port, (1, 1, half, LANE), 1) for port in ("i01_cos", "i02_sin"))
    mask = first("i03_mask", (1, 1, 1, cached + LANE), cached + 1)
    columns = Columns(1, cached, cos, sin, mask, _caches(b, config, cached))
    hidden, new = decoder(emit, config, x, columns)
    logits = linear(emit, hidden, "head", "logits")
    rows = {"o00_logits": _row(emit, logits, "logits_row", padded_vocab(config))}
    for surface, kv in new:
        rows[surface.output] = _row(emit, kv, f"kv{surface.index}_row", surface.channels)
    return b.finish(rows)


def head(config: DecoderConfig, weights: Weights, name: str, count: int) -> Function:
    """Logits of `count` columns: `i00_hidden [1,D,1,T]` → `o00_logits [1,1,T,vocabulary]`."""
    b = Builder(name)
    emit = Scope(b, weights)
    hidden = b.input("i00_hidden", DType.FP16, (1, config.dim, 1, count))
    logits = linear(emit, hidden, "head", "logits")
    return b.finish({"o00_logits": emit("transpose", "logits_row", x=logits, perm=[0, 2, 3, 1])})


def _caches(b: Builder, config: DecoderConfig, cached: int) -> list[tuple[CacheSurface, Value]]:
    if not cached:
        return []
    surfaces = cache_surfaces(config)
    return [(s, b.input(s.input, DType.FP16, (1, s.channels, 1, cached))) for s in surfaces]


def _row(emit: Scope, column: Value, name: str, width: int) -> Value:
    """`[1, C, 1, 1]` as a row, widened with zeros to a multiple of `LANE`."""
    row = emit("reshape", name, x=column, shape=[1, 1, 1, width])
    if not (missing := padded(width) - width):
        return row
    return emit("pad", f"{name}_padded", x=row, pad=[0, missing], mode="constant", constant_val=0.0)
