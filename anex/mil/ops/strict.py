"""Nonsense that coremltools' type inference accepts and anex refuses, as one table.

Each line of `REFUSALS` names the ops, the mistake, and why it is one.  The
checks of an op run before its type rule: `rule=strict(same_as_x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from anex.mil.ops.decl import Call, Rule
from anex.mil.ops.rules import Dim, fits, known_to_differ, show
from anex.mil.types import Type

Finding = str | None
Check = Callable[[Call], Finding]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of nonsense; `find` says what is wrong with a call, or None."""

    name: str
    kinds: tuple[str, ...]
    reason: str
    find: Check


def strict(rule: Rule) -> Rule:
    """The rule behind the refusals of its op."""

    def checked(call: Call) -> tuple[Type, ...]:
        for refusal in _BY_KIND.get(call.decl.kind, ()):
            found = refusal.find(call)
            if found is not None:
                raise call.error(found)
        return rule(call)

    return checked


def _bounds_in_order(call: Call) -> Finding:
    low, high = call.const("alpha"), call.const("beta")
    if low is None or high is None or low <= high:
        return None
    return f"alpha {low} is not below beta {high}"


def _condition_fits(call: Call) -> Finding:
    cond, sides = call.type("cond").shape, (call.type("a").shape, call.type("b").shape)
    rank = max(map(len, sides))
    if len(cond) > rank:
        return f"cond {show(cond)} has a higher rank than a and b"
    for i, dim in enumerate(reversed(cond)):
        others = [side[-1 - i] for side in sides if i < len(side)]
        if dim == 1 or dim is None or None in others:
            continue
        if max(d for d in others if d is not None) != dim:
            return f"cond {show(cond)} does not broadcast to {' and '.join(map(show, sides))}"
    return None


def _per_channel(least: int, most: int, *names: str) -> Check:
    def find(call: Call) -> Finding:
        x = call.type("x")
        if not least <= x.rank <= most:
            return f"x has rank {x.rank}, takes {least} to {most}"
        for name in names:
            if name in call and not fits(call.type(name).shape, (x.shape[1],)):
                return f"{name} is {call.type(name)}, takes {x.shape[1]} values"
        return None

    return find


def _beta_like_gamma(call: Call) -> Finding:
    if "gamma" not in call or "beta" not in call:
        return None
    gamma, beta = call.type("gamma"), call.type("beta")
    return f"gamma is {gamma}, beta {beta}" if not fits(beta.shape, gamma.shape) else None


def _at_least(least: int, *names: str) -> Check:
    def find(call: Call) -> Finding:
        for name in names:
            value = call.const(name)
            if value is not None and np.any(np.less(value, least)):
                return f"{name} {value} is below {least}"
        return None

    return find


def _rank_spatial(call: Call) -> Finding:
    rank = call.type("x").rank
    return None if 3 <= rank <= 5 else f"x has rank {rank}, takes 3 to 5"


def _pad_is_used(call: Call) -> Finding:
    pad_type, pad = call.const("pad_type", "valid"), call.const("pad", [])
    used = pad_type.lower() == "custom" or not any(pad or [])
    return None if used else f"pad {pad} has no effect with pad_type '{pad_type}'"


def _groups_divide(call: Call) -> Finding:
    groups, weight = call.const("groups", 1), call.type("weight").shape
    if not weight or weight[0] is None or groups < 1 or weight[0] % groups == 0:
        return None
    return f"{weight[0]} output channels over {groups} groups"


def _transpose_channels(call: Call) -> Finding:
    x, weight, groups = call.type("x").shape, call.type("weight").shape, call.const("groups", 1)
    if len(x) < 2 or len(weight) < 1:
        return None
    if groups < 1 or (x[1] is not None and x[1] % groups):
        return f"{x[1]} channels over {groups} groups"
    return f"x has {x[1]} channels, weight {weight[0]}" if known_to_differ(x[1], weight[0]) else None


def _transpose_sizes(call: Call) -> Finding:
    """Whether the wanted or resulting size is one that conv maps back to the size of x."""
    x, weight = call.type("x"), call.type("weight")
    rank, pad_type = x.rank - 2, call.const("pad_type", "valid")
    vectors = {n: call.value(n, [d] * rank) for n, d in (("strides", 1), ("dilations", 1))}
    pad = call.value("pad", [0] * 2 * rank) if pad_type == "custom" else [0] * 2 * rank
    wanted = call.value("output_shape")
    if any(len(v) != rank for v in vectors.values()) or len(pad) != 2 * rank:
        return None
    for i, (size, kernel) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=False)):
        stride, dilation = vectors["strides"][i], vectors["dilations"][i]
        if size is None or kernel is None or stride < 1:
            continue
        least = (size - 1) * stride + (kernel - 1) * dilation + 1 - pad[2 * i] - pad[2 * i + 1]
        if pad_type == "same":
            least = (size - 1) * stride + 1
        if wanted is None and pad_type != "same" and least < 1:
            return f"spatial dimension {i} gets the size {least}"
        if wanted is not None and len(wanted) == x.rank:
            given = wanted[2 + i]
            if not least <= given < least + stride:
                return f"output_shape {wanted} at {2 + i}: takes {least} to {least + stride - 1}"
    return None


def _same_family(*names: str) -> Check:
    def find(call: Call) -> Finding:
        dtypes = [call.type(n).dtype for n in names if n in call]
        mixed = len({d.is_float for d in dtypes}) > 1
        return f"mixes {' and '.join(d.value for d in dtypes)}" if mixed else None

    return find


def _vector_and_batch(call: Call) -> Finding:
    x, y = call.type("x"), call.type("y")
    return f"x {x} is a vector, y {y} a batch" if x.rank == 1 and y.rank > 2 else None


def _einsum_operands(call: Call) -> Finding:
    types, equation = call.types("values"), call.const("equation")
    for kind in types:
        if not kind.dtype.is_float:
            return f"values are {kind.dtype.value}, takes fp16 or fp32"
        if kind.rank != len(equation.split(",")[0]):
            return f"equation '{equation}' for a value of rank {kind.rank}"
    return None


def _mask_fits(call: Call) -> Finding:
    if "attn_mask" not in call:
        return None
    query, mask = call.type("query"), call.type("attn_mask")
    if mask.dtype.is_float and mask.dtype is not query.dtype:
        return f"query is {query.dtype.value}, mask {mask.dtype.value}"
    rows = mask.shape[:-1]
    if len(rows) > query.rank - 1 or any(
        dim != 1 and known_to_differ(dim, query.shape[-2 - i]) for i, dim in enumerate(reversed(rows))
    ):
        return f"mask {show(mask.shape)} does not broadcast to query {show(query.shape)}"
    return None


def _window_meets_image(call: Call) -> Finding:
    """A window that lies in the padding or behind the image has no maximum and no mean."""
    x, kernel = call.type("x"), call.value("kernel_sizes")
    if len(kernel) != x.rank - 2:
        return None
    rank = len(kernel)
    strides = call.value("strides", [1] * rank)
    custom = str(call.const("pad_type")).lower() == "custom"
    pad = call.value("pad", [0] * 2 * rank) if custom else [0] * 2 * rank
    if len(pad) != 2 * rank or len(strides) != rank:
        return None
    for i, size in enumerate(kernel):
        if max(pad[2 * i : 2 * i + 2]) >= size:
            return f"pad {pad} is as large as the window {kernel}"
        extent, stride = x.shape[2 + i], strides[i]
        if call.const("ceil_mode", False) and extent is not None and stride > 0:
            last = -(-(extent + 2 * pad[2 * i] - size) // stride) * stride
            if not pad[2 * i] and last >= extent:
                return f"spatial dimension {i}: the last window starts at {last}, behind the image"
    return None


def _ceil_not_same(call: Call) -> Finding:
    same = str(call.const("pad_type")).lower() == "same_lower"
    return "ceil_mode with pad_type 'same_lower'" if same and call.const("ceil_mode", False) else None


def _lstm_shapes(call: Call) -> Finding:
    x, hidden = call.type("x"), call.type("weight_hh")
    if x.rank != 3 or hidden.rank != 2:
        return None
    size, directions = hidden.shape[1], 2 if call.const("direction") == "bidirectional" else 1
    if size is None:
        return None
    wanted: list[tuple[str, tuple[Dim, ...]]] = [
        (name, (x.shape[1], directions * size)) for name in ("initial_h", "initial_c")
    ]
    for end in ("", "_back")[:directions]:
        wanted += [(f"weight_ih{end}", (4 * size, x.shape[2])), (f"weight_hh{end}", (4 * size, size))]
        wanted += [(f"bias{end}", (4 * size,)), (f"peephole{end}", (3 * size,))]
    for name, shape in wanted:
        if name in call and not fits(call.type(name).shape, shape):
            return f"{name} is {call.type(name)}, takes {show(shape)}"
    return None


_POOLS = ("avg_pool", "l2_pool", "max_pool")

REFUSALS: tuple[Refusal, ...] = (
    Refusal("clip-order", ("clip",),
            "before ios17 an empty range passes", _bounds_in_order),
    Refusal("select-cond", ("select",),
            "cond takes no part in the inferred shape, but it does in the result", _condition_fits),
    Refusal("batch_norm-channels", ("batch_norm",),
            "lengths of the per-channel values are never looked at",
            _per_channel(3, 5, "mean", "variance", "gamma", "beta")),
    Refusal("instance_norm-channels", ("instance_norm",),
            "lengths of the per-channel values are never looked at", _per_channel(3, 4, "gamma", "beta")),
    Refusal("layer_norm-beta", ("layer_norm",),
            "the shape of beta is never looked at (that of gamma is compared twice)", _beta_like_gamma),
    Refusal("lrn-rank", ("local_response_norm",),
            "defined for one or two spatial dimensions", _per_channel(3, 4)),
    Refusal("lrn-size", ("local_response_norm",),
            "a window of no channels", _at_least(1, "size")),
    Refusal("spatial-rank", ("conv", "conv_transpose", *_POOLS),
            "defined for one to three spatial dimensions", _rank_spatial),
    Refusal("window-step", ("conv", "conv_transpose", *_POOLS),
            "a window that walks backwards", _at_least(1, "strides", "dilations", "kernel_sizes")),
    Refusal("negative-pad", ("conv", "conv_transpose", *_POOLS),
            "padding is a number of zeros; cropping is an op of its own", _at_least(0, "pad")),
    Refusal("unused-pad", ("conv", *_POOLS),
            "pad only counts with pad_type 'custom'; numbers elsewhere are a mistake",
            _pad_is_used),
    Refusal("conv-groups", ("conv",),
            "4 outputs over 3 groups", _groups_divide),
    Refusal("conv_transpose-channels", ("conv_transpose",),
            "coremltools compares the batch size where it means the channels", _transpose_channels),
    Refusal("conv_transpose-size", ("conv_transpose",),
            "sizes below 1, or an output_shape that conv does not map back to x", _transpose_sizes),
    Refusal("linear-mixed", ("linear",),
            "an integer product with floating-point numbers", _same_family("x", "weight")),
    Refusal("matmul-mixed", ("matmul",),
            "an integer product with floating-point numbers", _same_family("x", "y")),
    Refusal("matmul-vector-batch", ("matmul",),
            "of a vector times a batch of matrices the batch dimension is dropped", _vector_and_batch),
    Refusal("einsum-operands", ("einsum",),
            "the equation's rank is never compared with the values'; integers are not documented",
            _einsum_operands),
    Refusal("attention-mask", ("scaled_dot_product_attention",),
            "the mask may not enlarge the result, and a float mask has the dtype of the query", _mask_fits),
    Refusal("pool-empty-window", _POOLS,
            "a window without a single value of the image", _window_meets_image),
    Refusal("pool-ceil-same", _POOLS,
            "'same' already has the size that ceil_mode would give, for 'same_lower' it is lost",
            _ceil_not_same),
    Refusal("lstm-shapes", ("lstm",),
            "only the ratio of the weights' sizes is looked at", _lstm_shapes),
)  # fmt: skip


def _by_kind(refusals: Iterable[Refusal]) -> dict[str, list[Refusal]]:
    table: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        for kind in refusal.kinds:
            table.setdefault(kind, []).append(refusal)
    return table


_BY_KIND = _by_kind(REFUSALS)
