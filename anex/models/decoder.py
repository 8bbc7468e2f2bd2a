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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anex.mil import Builder, DType, Function, Value
from anex.models.config import Attention, DecoderConfig
from anex.models.emit import ACTIVATIONS, NORMS, Scope, Weights, concat, conv, part
from anex.models.experts import routed
from anex.models.feed import LOCAL
from anex.models.layout import CacheSurface, vocab_tiles
from anex.models.signature import Kind, Role, Signature, caches, host_ports


def norm(emit: Scope, config: DecoderConfig, x: Value, role: str, axis: int = 1) -> Value:
    """The norm of a role, with its bias where the model has one."""
    out = NORMS[config.norm.kind](emit, x, role, config.norm.eps, axis)
    if role not in config.norm.biases:
        return out
    return emit("add", f"{role}_biased", x=out, y=emit.weight(f"b_{role}"))


def linear(emit: Scope, config: DecoderConfig, x: Value, role: str, name: str) -> Value:
    """`W x`, plus a bias where the model has one: `[1, Ci, 1, T]` → `[1, Co, 1, T]`."""
    out = conv(emit, x, role, name)
    if role not in config.biases:
        return out
    # A separate add, not conv's bias: some compilers refuse that (facts: ane.md §3.6).
    return emit("add", f"{name}_biased", x=out, y=emit.weight("b" + role.removeprefix("w")))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns (tokens) that a function computes together, and what they look at.

    Attributes:
        count: How many there are (T).
        cached: Columns of the cache (C).
        host: What the host wrote: `x` `[1, D, 1, T]`, `cos` and `sin`
            `[1, 1, rope dims / 2, T]`, `mask` `[1, 1, T, C + T]`, and those of local layers.
        caches: The surfaces of the cache, empty where C is 0.
    """

    count: int
    cached: int
    host: Mapping[str, Value]
    caches: Sequence[tuple[CacheSurface, Value]]

    def seen(self, name: str, local: bool) -> Value:
        """What a layer reads as `cos`, `sin` or `mask`."""
        return self.host.get(name + LOCAL, self.host[name]) if local else self.host[name]


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


def rotate(emit: Scope, x: Value, name: str, cos: Value, sin: Value) -> Value:
    """RoPE on `[1, H, head_dim, T]`: channel j of a head turns with channel j + dims/2."""
    n = emit.within(name + "_")
    head_dim, half = x.tensor.dims[2], cos.tensor.dims[2]
    a, b = part(n, x, "a", 2, 0, half), part(n, x, "b", 2, half, half)
    turned_a = n("sub", "ra", x=n("mul", "ac", x=a, y=cos), y=n("mul", "bs", x=b, y=sin))
    turned_b = n("add", "rb", x=n("mul", "bc", x=b, y=cos), y=n("mul", "as", x=a, y=sin))
    rest = [part(n, x, "rest", 2, 2 * half, head_dim - 2 * half)] if 2 * half < head_dim else []
    return concat(n, [turned_a, turned_b, *rest], "rope", axis=2)


def heads(emit: Scope, config: DecoderConfig, y: Value, name: str, columns: Columns, local: bool) -> Value:
    """Queries or keys, normalised and rotated: `[1, H·head_dim, 1, T]` → `[1, H, head_dim, T]`."""
    a = config.attention
    if a.qk_norm == "whole":
        y = norm(emit, config, y, f"{name}_norm")
    shape = [1, y.tensor.dims[1] // a.head_dim, a.head_dim, columns.count]
    y = emit("reshape", f"{name}_heads", x=y, shape=shape)
    each = a.qk_norm in ("head", "heads")
    if each and not a.qk_norm_late:
        y = norm(emit, config, y, f"{name}_norm", axis=2)
    if config.rope_dims:
        y = rotate(emit, y, name, columns.seen("cos", local), columns.seen("sin", local))
    if each and a.qk_norm_late:
        y = norm(emit, config, y, f"{name}_norm", axis=2)
    return y


def attention(
    emit: Scope, config: Attention, q: Value, new: KeysValues, old: KeysValues | None, mask: Value
) -> Value:
    """Softmax attention over cached and new columns: `[1, H, head_dim, T]` → `[1, H·head_dim, 1, T]`.

    The cache is not copied: scores against cached and new keys are joined, and
    the probabilities are split again.  Query heads that share a key head (GQA,
    Ainslie et al. 2023) become rows of one product, so that keys and values
    are not repeated.  `q` is already scaled, and divided by the soft cap where there is one.
    """
    count, width = mask.tensor.dims[2:]
    by_head = [1, config.n_heads, count]
    by_group = [1, config.n_kv_heads, config.n_heads // config.n_kv_heads * count]

    def reshape(name: str, x: Value, rows: list[int], last: int) -> Value:
        return emit("reshape", name, x=x, shape=[*rows, last])

    def matmul(name: str, x: Value, y: Value, transpose_y: bool) -> Value:
        return emit("matmul", name, x=x, y=y, transpose_x=False, transpose_y=transpose_y)

    q = reshape("q_rows", emit("transpose", "q_t", x=q, perm=[0, 1, 3, 2]), by_group, config.head_dim)
    scores = matmul("scores_new", q, new[0], False)
    if old is not None:
        scores = concat(emit, [matmul("scores_old", q, old[0], False), scores], "scores", axis=3)
    if config.soft_cap:
        scores = emit("mul", "capped", x=emit("tanh", "cap_tanh", x=scores), y=config.soft_cap)
    masked = emit("add", "masked", x=reshape("scores_head", scores, by_head, width), y=mask)
    p = reshape("p_rows", emit("softmax", "p", x=masked, axis=-1), by_group, width)
    if old is None:
        mixed = matmul("mixed", p, new[1], True)
    else:
        # A slice that starts inside a row loses numbers above 4094 on M1 and M2; these are at most 1.
        p_new = part(emit, p, "p_new", 3, width - count, count)
        p_old = part(emit, p, "p_old", 3, 0, width - count)
        mixed_old = matmul("mixed_old", p_old, old[1], True)
        mixed = emit("add", "mixed", x=mixed_old, y=matmul("mixed_new", p_new, new[1], True))
    mixed = emit(
        "transpose", "mixed_t", x=reshape("mixed_head", mixed, by_head, config.head_dim), perm=[0, 1, 3, 2]
    )
    return emit("reshape", "attended", x=mixed, shape=[1, config.q_dim, 1, count])


def feed_forward(emit: Scope, config: DecoderConfig, x: Value) -> Value:
    """`W_down (f(W_gate x) · W_up x)` (Shazeer 2020), or `W_down f(W_up x)` without a gate, or experts."""
    mlp = config.mlp
    if mlp.experts:
        return routed(emit, mlp, mlp.experts, x)
    activation = ACTIVATIONS[mlp.activation]
    if mlp.gated:
        gate = activation(emit, linear(emit, config, x, "w_gate", "gate"))
        inner = emit("mul", "gated", x=gate, y=linear(emit, config, x, "w_up", "up"))
    else:
        inner = activation(emit, linear(emit, config, x, "w_up", "up"))
    return linear(emit, config, inner, "w_down", "down")


def layer(emit: Scope, config: DecoderConfig, x: Value, index: int, columns: Columns) -> tuple[Value, Value]:
    """One layer; returns the residual stream and the new `[1, 2·kv_dim, 1, T]` columns.

    The weights of q hold the scale of the scores, those of the last linear layer of a block the
    multiplier of the residual stream.
    """
    a, local = config.attention, config.local is not None and index in config.local.layers

    def normed(y: Value, role: str) -> Value:
        return norm(emit, config, y, role) if role in config.norm.roles else y

    h = normed(x, "attn_norm")
    q, k, v = (linear(emit, config, h, f"w{name}", name) for name in "qkv")
    q, k = (heads(emit, config, y, name, columns, local) for y, name in ((q, "q"), (k, "k")))
    new = (k, emit("reshape", "v_heads", x=v, shape=k.tensor.dims))
    old = cached_keys_values(emit, a, index, columns)
    attended = attention(emit, a, q, new, old, columns.seen("mask", local))
    attended = normed(linear(emit, config, attended, "wo", "o"), "attn_post_norm")
    if config.parallel:
        # Both blocks read x; where the second has no norm of its own they share one.
        h = normed(x, "ffn_norm") if "ffn_norm" in config.norm.roles else h
        x = emit("add", "attn_out", x=x, y=attended)
    else:
        x = emit("add", "attn_out", x=x, y=attended)
        h = normed(x, "ffn_norm")
    x = emit("add", "out", x=x, y=normed(feed_forward(emit, config, h), "ffn_post_norm"))
    flat = emit("reshape", "k_flat", x=k, shape=v.tensor.dims)
    return x, concat(emit, [flat, v], "kv", axis=1)


def decoder(
    emit: Scope, config: DecoderConfig, x: Value, columns: Columns
) -> tuple[Value, list[tuple[CacheSurface, Value]]]:
    """All layers and the final norm; returns hidden `[1, D, 1, T]` and the new columns per cache surface."""
    new = []
    for index in range(config.n_layers):
        x, kv = layer(emit.within(f"l{index}_"), config, x, index, columns)
        new.append(kv)
    hidden = norm(emit, config, x, "norm")
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
    hidden, new = decoder(emit, config, columns.host["x"], columns)
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
    return Columns(t, c, host, held)


def _logits(emit: Scope, config: DecoderConfig, hidden: Value) -> dict[str, Value]:
    """Port → logits of a tile `[1, rows, 1, T]`."""
    logits = {}
    for tile in vocab_tiles(config):
        out = conv(emit, hidden, f"head{tile.number}", f"logits{tile.number}")
        if config.head_bias:
            bias = emit.weight(f"b_head{tile.number}")
            out = emit("add", f"logits{tile.number}_biased", x=out, y=bias)
        logits[tile.port] = out
    return logits


def _row(emit: Scope, column: Value, name: str, shape: Sequence[int]) -> Value:
    """`[1, C, 1, 1]` in another shape, after zeros that fill it up."""
    if missing := math.prod(shape) - column.tensor.dims[1]:
        pad = [0, 0, 0, missing, 0, 0, 0, 0]
        column = emit("pad", f"{name}_padded", x=column, pad=pad, mode="constant", constant_val=0.0)
    return emit("reshape", name, x=column, shape=list(shape))
