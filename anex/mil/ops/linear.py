"""Dense products: convolutions, linear, matmul, einsum, attention."""

from __future__ import annotations

from itertools import pairwise

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import Dim, broadcast, broadcast_dim, known_to_differ, show
from anex.mil.ops.strict import strict
from anex.mil.ops.window import window_of
from anex.mil.types import TensorType, Type

_SPATIAL = "strides?: const int32[], {}dilations?: const int32[], groups?: const int32"


def _check_bias(call: Call, outputs: Dim) -> None:
    if "bias" not in call:
        return
    bias = call.type("bias")
    if bias.rank != 1 or known_to_differ(bias.shape[0], outputs):
        raise call.error(f"bias is {bias}, takes {outputs} values")


def _conv(call: Call) -> tuple[Type, ...]:
    x, weight = call.type("x"), call.type("weight")
    if x.rank < 3 or weight.rank != x.rank:
        raise call.error(f"x has rank {x.rank} and weight {weight.rank}; both take the same, 3 to 5")
    channels, groups = x.shape[1], call.value("groups", 1)
    _check_bias(call, weight.shape[0])
    if groups < 1:
        raise call.error(f"groups is {groups}")
    if channels is not None and channels % groups:
        raise call.error(f"{channels} channels over {groups} groups")
    if channels is not None and known_to_differ(channels // groups, weight.shape[1]):
        raise call.error(f"weight takes {weight.shape[1]} channels a group, x has {channels // groups}")
    window = window_of(call, weight.shape[2:], call.value("pad_type", "valid"))
    if not call.is_constant("weight") and any(d > 1 for d in call.value("dilations", [])):
        raise call.error("dilations need a constant weight")
    return (TensorType(x.dtype, (x.shape[0], weight.shape[0], *window.outputs(call, x.shape[2:]))),)


_CONV = "x: T, {}" + _SPATIAL.format("pad_type?: const string, pad?: const int32[], ")
_CONV_DOC = "Slides the weight [Cout, Cin / groups, ...] over the image x [N, Cin, ...]."
for _opset in ("ios15", "ios16"):
    declare(
        "conv", _opset, _CONV.format("weight: T, bias?: const T, "), T="fp16 fp32",
        rule=strict(_conv), doc=_CONV_DOC,
    )  # fmt: skip
declare(
    "conv", "ios17", _CONV.format("weight: U, bias?: U, "), T="fp16 fp32", U="fp16 fp32",
    rule=strict(_conv), doc=_CONV_DOC,
)  # fmt: skip


def _conv_transpose(call: Call) -> tuple[Type, ...]:
    x, weight = call.type("x"), call.type("weight")
    if x.rank < 3 or weight.rank != x.rank:
        raise call.error(f"x has rank {x.rank} and weight {weight.rank}; both take the same, 3 to 5")
    rank, per_group, groups = x.rank - 2, weight.shape[1], call.value("groups", 1)
    outputs = None if per_group is None else per_group * groups
    _check_bias(call, outputs)
    pad_type = call.value("pad_type", "valid")
    if pad_type not in ("valid", "same", "custom"):
        raise call.error(f"unknown pad_type '{pad_type}' (known: valid, same, custom)")
    window = window_of(call, weight.shape[2:], pad_type)
    if "output_shape" in call:
        wanted = call.value("output_shape", length=x.rank)
        if known_to_differ(x.shape[0], wanted[0]) or known_to_differ(outputs, wanted[1]):
            raise call.error(f"output_shape {wanted} does not start with {[x.shape[0], outputs]}")
        return (TensorType(x.dtype, tuple(wanted)),)
    sizes: list[Dim] = []
    for i in range(rank):
        size, stride, pad = x.shape[2 + i], window.strides[i], sum(window.pad[i]) if window.pad else 0
        full = 0 if pad_type == "same" else window.kernel[i] - stride - pad
        sizes.append(None if size is None else size * stride + full)
    return (TensorType(x.dtype, (x.shape[0], outputs, *sizes)),)


_TRANSPOSE = "x: T, {}pad?: const int32[], output_shape?: const int32[], " + _SPATIAL.format(
    "pad_type?: const string, "
)
_TRANSPOSE_DOC = "The gradient of conv for its input; the weight is [Cin, Cout / groups, ...]."
declare(
    "conv_transpose", "ios15", _TRANSPOSE.format("weight: const T, bias?: const T, "), T="fp16 fp32",
    rule=strict(_conv_transpose), doc=_TRANSPOSE_DOC,
)  # fmt: skip
declare(
    "conv_transpose", "ios17", _TRANSPOSE.format("weight: U, bias?: U, "), T="fp16 fp32", U="fp16 fp32",
    rule=strict(_conv_transpose), doc=_TRANSPOSE_DOC,
)  # fmt: skip


def _linear(call: Call) -> tuple[Type, ...]:
    x, weight = call.type("x"), call.type("weight")
    if x.rank < 1 or weight.rank != 2:
        raise call.error(f"x has rank {x.rank} and weight {weight.rank}, takes 1 or more and 2")
    if known_to_differ(x.shape[-1], weight.shape[1]):
        raise call.error(f"x ends with {x.shape[-1]}, weight with {weight.shape[1]}")
    _check_bias(call, weight.shape[0])
    return (TensorType(x.dtype, (*x.shape[:-1], weight.shape[0])),)


_LINEAR_DOC = "x times the transposed weight [out, in], plus bias."
_ANY = "fp16 fp32 int32"
declare(
    "linear", "ios15", "x: T, weight: const T, bias?: const T", T=_ANY, rule=strict(_linear),
    doc=_LINEAR_DOC,
)  # fmt: skip
declare(
    "linear", "ios17", "x: T, weight: const U, bias?: const U", T=_ANY, U=_ANY, rule=strict(_linear),
    doc=_LINEAR_DOC,
)  # fmt: skip


def _matrix(call: Call, name: str) -> tuple[Dim, ...]:
    """The shape of an operand of matmul as it is multiplied."""
    shape = call.type(name).shape
    transposed = call.value(f"transpose_{name}", False)
    least = 1 if name == "x" and not transposed else 2
    if len(shape) < least:
        raise call.error(f"{name} has rank {len(shape)}, takes {least} or more")
    if transposed:
        return (*shape[:-2], shape[-1], shape[-2])
    return shape


def _matmul(call: Call) -> tuple[Type, ...]:
    x, y = _matrix(call, "x"), _matrix(call, "y")
    if known_to_differ(x[-1], y[-2]):
        raise call.error(f"{show(x)} and {show(y)} do not multiply")
    batch = broadcast(call, x[:-2], y[:-2])
    rows = x[-2:-1]
    return (TensorType(call.type("x").dtype, (*batch, *rows, y[-1])),)


def _matmul_ios17(call: Call) -> tuple[Type, ...]:
    (result,) = _matmul(call)
    assert isinstance(result, TensorType)
    x, y = call.type("x").dtype, call.type("y").dtype
    # coremltools lets one constant have another dtype; the run-time operand decides.
    x_is_const, y_is_const = call.is_constant("x"), call.is_constant("y")
    if x is not y and x_is_const == y_is_const:
        raise call.error(f"x is {x.value}, y is {y.value}")
    return (TensorType(y if x_is_const else x, result.shape),)


_MATMUL = "x: T, y: {}, transpose_x?: const bool, transpose_y?: const bool"
_MATMUL_DOC = "The matrix product of the last two dimensions; the others broadcast."
declare("matmul", "ios15", _MATMUL.format("T"), T=_ANY, rule=strict(_matmul), doc=_MATMUL_DOC)
declare("matmul", "ios17", _MATMUL.format("U"), T=_ANY, U=_ANY, rule=strict(_matmul_ios17), doc=_MATMUL_DOC)

EINSUM_EQUATIONS = ("nchw,nwhu->nchu", "chw,whu->chu")


def canonical_equation(equation: str) -> str | None:
    """The equation in the letters of `EINSUM_EQUATIONS`; None where it is not one of them."""
    for known in EINSUM_EQUATIONS:
        letters = dict(zip(equation, known, strict=False))
        same = [letters.get(c) for c in equation] == list(known)
        if same and len(set(letters.values())) == len(letters):
            return known
    return None


def _einsum(call: Call) -> tuple[Type, ...]:
    if len(call.many("values")) != 2:
        raise call.error("takes two values")
    x, y = call.types("values")
    equation = canonical_equation(call.value("equation"))
    if x.dtype is not y.dtype:
        raise call.error(f"values are {x.dtype.value} and {y.dtype.value}")
    if equation is None:
        raise call.error(f"unknown equation (known: {', '.join(EINSUM_EQUATIONS)})")
    if x.rank != y.rank or x.rank < 3:
        raise call.error(f"values have the ranks {x.rank} and {y.rank}")
    if known_to_differ(x.shape[-1], y.shape[-3]):
        raise call.error(f"{x} and {y} do not multiply")
    try:
        batch = tuple(broadcast_dim(x.shape[i], y.shape[i]) for i in (-4, -2)[4 - x.rank :])
    except ValueError as error:
        raise call.error(str(error)) from None
    return (TensorType(x.dtype, (*batch[:-1], x.shape[-3], batch[-1], y.shape[-1])),)


declare(
    "einsum", "ios15", "values: many any, equation: const string", rule=strict(_einsum),
    doc="Multiplies dimension -1 of one by -3 of the other; all other dimensions broadcast.",
)  # fmt: skip


def _attention(call: Call) -> tuple[Type, ...]:
    query, key, value = (call.type(n) for n in ("query", "key", "value"))
    if not query.rank == key.rank == value.rank >= 3:
        raise call.error(f"ranks are {query.rank}, {key.rank} and {value.rank}, takes the same, 3 or more")
    if any(
        known_to_differ(a, b)
        for one, other in pairwise((query, key, value))
        for a, b in zip(one.shape[:-2], other.shape[:-2], strict=True)
    ):
        raise call.error(f"batches of {query}, {key} and {value} differ")
    if known_to_differ(query.shape[-1], key.shape[-1]):
        raise call.error(f"query {query} and key {key} do not multiply")
    if known_to_differ(key.shape[-2], value.shape[-2]):
        raise call.error(f"key {key} and value {value} have different lengths")
    if "attn_mask" in call:
        mask = call.type("attn_mask").shape
        if not mask or known_to_differ(mask[-1], key.shape[-2]):
            raise call.error(f"mask {show(mask)} does not end with the length of key {key}")
        broadcast(call, query.shape[:-1], mask[:-1])
    return (TensorType(query.dtype, (*query.shape[:-1], value.shape[-1])),)


declare(
    "scaled_dot_product_attention", "ios18", "query: T, key: T, value: T, attn_mask?: M",
    T="fp16 fp32", M="bool fp16 fp32", rule=strict(_attention),
    doc="softmax(query @ key^T / sqrt(E) + mask) @ value; a bool mask keeps where it holds.",
)  # fmt: skip
