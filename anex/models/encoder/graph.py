"""The transformer encoder as MIL: one function of ops, read from top to bottom.

Activations are `[1, C, 1, T]`: channels, then the tokens of one text, with
columns after them that nobody looks at.  Linear layers are 1×1 convolutions.

The host does what the engine cannot (`anex.models.encoder.feed`): it adds the
rows of the embedding tables, writes the mask, computes cos and sin, and divides
by the length of the vector, which in fp16 would be one more rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anex.mil import Builder, DType, Function, Value
from anex.models.emit import ACTIVATIONS, Scope, Weights, concat, conv, part
from anex.models.encoder.config import EncoderConfig, Learned, Rotary
from anex.models.encoder.signature import EncoderSignature
from anex.models.layout import LANE, padded

SMALLEST = 2.0**-14
"""Smallest normal number of fp16."""


def layer_norm(emit: Scope, x: Value, role: str, eps: float) -> Value:
    """`(x - mean) / sqrt(var + eps) · gamma + beta` over D channels, safe in fp16 (Ba et al. 2016).

    With `m = max|x|`, `y = x / m`, `c = y - mean(y)`, `q = sqrt(eps·D) / m`,
    `k = max(max|c|, q)`, `z = c / k` and `e = q / k`

        (x - mean) / sqrt(var + eps) · gamma  =  z · (sum(z²) + e²)^(-1/2) · (gamma·sqrt(D))

    exactly; the weight holds gamma·sqrt(D), multiplied before its one rounding.

    Nothing overflows: |y| ≤ 1, so sum(y) and, as |z| ≤ 1, sum(z²) are at most D ≤ 32752,
    below the engine's cliff at 2¹⁵.  The term under the root lies in [1, D + 1], as either
    the largest z² or e² is 1.  m and q are at least 2⁻¹⁴, so that nothing is divided by
    zero, not even where a column is constant.  For m that changes no number; q then stands
    for an eps of 2⁻²⁸·m²/D, less than 10⁻² of the variance of the rounding of such a column.
    BERT's own sqrt(eps·D), 2·10⁻⁵, is no normal fp16 number: its root s is, and q = s/m·s.

    The mean is a sum and a division: some compilers have no reduce_mean (facts: ane.md no. 24).
    """
    n = emit.within(role + "_")
    (_, dim, _, _) = x.tensor.dims
    s = (eps * dim) ** 0.25

    def largest(name: str, value: Value, floor: Value | float) -> Value:
        found = n("reduce_max", name, x=n("abs", f"{name}_abs", x=value), axes=[1], keep_dims=True)
        return n("maximum", f"{name}_floor", x=found, y=floor)

    def summed(name: str, value: Value) -> Value:
        return n("reduce_sum", name, x=value, axes=[1], keep_dims=True)

    m = largest("m", x, SMALLEST)
    y = n("real_div", "y", x=x, y=m)
    c = n("sub", "c", x=y, y=n("real_div", "mean", x=summed("total", y), y=float(dim)))
    q = n("mul", "q_small", x=n("real_div", "s", x=s, y=m), y=s)
    q = n("maximum", "q", x=q, y=SMALLEST)
    k = largest("k", c, q)
    z = n("real_div", "z", x=c, y=k)
    e = n("real_div", "e", x=q, y=k)
    under = n("add", "under", x=summed("squares", n("mul", "z2", x=z, y=z)), y=n("mul", "e2", x=e, y=e))
    unit = n("mul", "unit", x=z, y=n("pow", "inverse", x=under, y=-0.5))
    out = n("mul", "out", x=unit, y=emit.weight(role))
    return _biased(emit, out, f"{role}_b", f"{role}_shifted")


def _biased(emit: Scope, x: Value, role: str, name: str) -> Value:
    """Plus a bias where the model has one."""
    if emit.prefix + role not in emit.weights:
        return x
    return emit("add", name, x=x, y=emit.weight(role))


def linear(emit: Scope, x: Value, role: str, name: str) -> Value:
    """`W x`, plus a bias where the model has one: `[1, Ci, 1, T]` → `[1, Co, 1, T]`."""
    return _biased(emit, conv(emit, x, role, name), "b" + role.removeprefix("w"), f"{name}_biased")


@dataclass(frozen=True, slots=True)
class View:
    """What a layer is told of the tokens.

    Attributes:
        mask: `[1, 1, 1, T]` or, where not all see the same, `[1, 1, T, T]`; added to the scores.
        cos: `[1, 1, head_dim / 2, T]`; None without RoPE.
        sin: The same.
    """

    mask: Value
    cos: Value | None = None
    sin: Value | None = None


def rotate(emit: Scope, x: Value, name: str, view: View) -> Value:
    """RoPE on `[1, H, head_dim, T]`: channel j of a head turns with channel j + head_dim/2."""
    if view.cos is None or view.sin is None:
        return x
    n, half = emit.within(name + "_"), x.tensor.dims[2] // 2
    a, b = part(n, x, "a", 2, 0, half), part(n, x, "b", 2, half, half)
    turned_a = n("sub", "ra", x=n("mul", "ac", x=a, y=view.cos), y=n("mul", "bs", x=b, y=view.sin))
    turned_b = n("add", "rb", x=n("mul", "bc", x=b, y=view.cos), y=n("mul", "as", x=a, y=view.sin))
    return concat(n, [turned_a, turned_b], "rope", axis=2)


def attention(emit: Scope, config: EncoderConfig, x: Value, view: View) -> Value:
    """Softmax attention of every token to every real token; the weights of q hold the scale."""
    columns = x.tensor.dims[3]
    heads = [1, config.n_heads, config.head_dim, columns]
    q, k, v = (
        emit("reshape", f"{name}_heads", x=linear(emit, x, f"w{name}", name), shape=heads) for name in "qkv"
    )
    q, k = rotate(emit, q, "q", view), rotate(emit, k, "k", view)
    scores = emit("matmul", "scores", x=q, y=k, transpose_x=True, transpose_y=False)
    p = emit("softmax", "p", x=emit("add", "masked", x=scores, y=view.mask), axis=-1)
    mixed = emit("matmul", "mixed", x=v, y=p, transpose_x=False, transpose_y=True)
    attended = emit("reshape", "attended", x=mixed, shape=[1, config.dim, 1, columns])
    return linear(emit, attended, "wo", "o")


NAMES: Mapping[str, str] = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Activation by transformers' name → by ours."""


def feed_forward(emit: Scope, config: EncoderConfig, x: Value) -> Value:
    """`W_down f(W_up x)`, or gated (Shazeer 2020): `W_down (f(W_gate x) · W_up x)`."""
    activation = ACTIVATIONS[NAMES[config.activation]]
    up = linear(emit, x, "w_up", "up")
    if emit.prefix + "w_gate" in emit.weights:
        inner = emit("mul", "gated", x=activation(emit, linear(emit, x, "w_gate", "gate")), y=up)
    else:
        inner = activation(emit, up)
    return linear(emit, inner, "w_down", "down")


def layer(emit: Scope, config: EncoderConfig, x: Value, view: View) -> Value:
    """One block: attention and feed-forward network, each added to what it read."""

    def norm(value: Value, role: str) -> Value:
        return layer_norm(emit, value, role, config.eps)

    if not config.norm_first:
        x = norm(emit("add", "attn_out", x=x, y=attention(emit, config, x, view)), "attn_norm")
        return norm(emit("add", "out", x=x, y=feed_forward(emit, config, x)), "ffn_norm")
    # ModernBERT's first layer has no norm: the embeddings come normalised.
    read = norm(x, "attn_norm") if emit.prefix + "attn_norm" in emit.weights else x
    x = emit("add", "attn_out", x=x, y=attention(emit, config, read, view))
    return emit("add", "out", x=x, y=feed_forward(emit, config, norm(x, "ffn_norm")))


def build(config: EncoderConfig, weights: Weights, signature: EncoderSignature) -> Function:
    """The function with the ports of a signature: hidden states, and their weighted sum as rows of 32."""
    b = Builder(signature.name)
    emit = Scope(b, weights)
    ports = {host.name: b.input(port, DType.FP16, host.shape(signature.columns))
             for port, host in signature.inputs.items()}  # fmt: skip
    x = layer_norm(emit, ports["x"], "embed_norm", config.eps)
    for index in range(config.n_layers):
        x = layer(emit.within(f"l{index}_"), config, x, _view(config, index, ports))
    if "norm" in weights:
        x = layer_norm(emit, x, "norm", config.eps)
    return b.finish({signature.hidden: x, signature.pooled: _pooled(emit, x, ports["pool"])})


def _view(config: EncoderConfig, index: int, ports: Mapping[str, Value]) -> View:
    match config.positions:
        case Learned():
            return View(ports["mask"])
        case Rotary(every=every):
            kind = "" if index % every == 0 else "local_"
            return View(ports[f"{kind}mask"], ports[f"{kind}cos"], ports[f"{kind}sin"])


def _pooled(emit: Scope, x: Value, pool: Value) -> Value:
    """The sum of the columns by weights `[1, 1, 1, T]`: one product, so one rounding."""
    (_, dim, _, columns) = x.tensor.dims
    rows = emit("reshape", "columns", x=x, shape=[1, 1, dim, columns])
    summed = emit("matmul", "summed", x=rows, y=pool, transpose_x=False, transpose_y=True)
    if missing := -dim % LANE:
        pad = [0, 0, 0, 0, 0, missing, 0, 0]
        summed = emit("pad", "summed_padded", x=summed, pad=pad, mode="constant", constant_val=0.0)
    return emit("reshape", "pooled", x=summed, shape=[1, padded(dim) // LANE, 1, LANE])
