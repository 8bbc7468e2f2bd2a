"""Pools: the maximum, mean or l2 norm of a window that slides over an image."""

from __future__ import annotations

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.strict import strict
from anex.mil.ops.window import window_of
from anex.mil.types import TensorType, Type


def _pool(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank < 3:
        raise call.error(f"x has rank {x.rank}, takes 3 to 5")
    if call.decl.kind == "l2_pool" and x.rank > 4:
        raise call.error(f"x has rank {x.rank}, takes 3 or 4")
    rank, ceil = x.rank - 2, call.value("ceil_mode", False)
    pad_type = call.value("pad_type").lower()
    window = window_of(call, call.value("kernel_sizes", length=rank), pad_type)
    pad = call.value("pad", [0] * 2 * rank, length=2 * rank)
    if ceil and (rank > 2 or pad_type == "same" or pad[::2] != pad[1::2]):
        raise call.error("ceil_mode takes 1 or 2 dimensions, symmetric pad and not pad_type 'same'")
    return (TensorType(x.dtype, (*x.shape[:2], *window.outputs(call, x.shape[2:], ceil))),)


_WINDOW = (
    "x: T, kernel_sizes: const int32[], strides?: const int32[], pad_type: const string, "
    "pad?: const int32[], ceil_mode?: const bool"
)
_POOLS = [
    ("avg_pool", ", exclude_padding_from_average?: const bool", "The mean of each window."),
    ("l2_pool", "", "The square root of the sum of squares of each window."),
    ("max_pool", "", "The largest value of each window."),
]
for _kind, _more, _doc in _POOLS:
    for _opset in ("ios15", "ios16"):  # the same parameters; pad_type 'same_lower' came with ios16
        declare(_kind, _opset, _WINDOW + _more, T="fp16 fp32", rule=strict(_pool), doc=_doc)
