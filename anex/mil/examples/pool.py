"""Examples of pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anex.mil.examples.build import big, const, fp16, fp32, small
from anex.mil.examples.case import Example, examples_of

_KINDS = ("max_pool", "avg_pool", "l2_pool")

_ROUND = {"pad_type": "custom", "pad": [1, 1, 1, 1]}
_WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    # name: shape of x, constants
    "valid": ((2, 3, 7, 6), {"kernel_sizes": [3, 2], "pad_type": "valid"}),
    "strided": ((1, 2, 9, 8), {"kernel_sizes": [2, 3], "strides": [2, 3], "pad_type": "valid"}),
    "same": ((1, 2, 7, 6), {"kernel_sizes": [3, 4], "strides": [2, 2], "pad_type": "same"}),
    "same_lower": ((1, 2, 7, 6), {"kernel_sizes": [2, 4], "strides": [1, 1], "pad_type": "same_lower"}),
    "custom": ((1, 2, 5, 6), {"kernel_sizes": [3, 3], "pad_type": "custom", "pad": [2, 0, 1, 1]}),
    "upper-case": ((1, 2, 5, 6), {"kernel_sizes": [2, 2], "pad_type": "VALID"}),
    "ceil": (
        (1, 2, 6, 5), {"kernel_sizes": [3, 2], "strides": [2, 2], "pad_type": "valid", "ceil_mode": True},
    ),
    "ceil-padded": ((1, 2, 6, 7), {"kernel_sizes": [3, 3], "strides": [2, 2], **_ROUND, "ceil_mode": True}),
    "ceil-drops": ((1, 1, 4, 4), {"kernel_sizes": [2, 2], "strides": [3, 3], **_ROUND, "ceil_mode": True}),
    "one-dimension": ((2, 3, 11), {"kernel_sizes": [4], "strides": [3], "pad_type": "custom", "pad": [1, 2]}),
    "global": ((1, 3, 4, 5), {"kernel_sizes": [4, 5], "pad_type": "valid"}),
}  # fmt: skip


@examples_of(*_KINDS)
def windows() -> Iterator[Example]:
    for kind in _KINDS:
        for name, (shape, constants) in _WINDOWS.items():
            opset = "ios16" if constants["pad_type"] == "same_lower" else "ios15"
            args = {"x": fp16(kind + name, *shape), **{key: const(value) for key, value in constants.items()}}
            if kind == "avg_pool" and "ceil_mode" in constants:
                # A mean that counts what lies behind the padding is not defined.
                args["exclude_padding_from_average"] = const(True)
            yield Example(kind, name, args, opset, fp32=2e-6, scale=3.0 if kind == "avg_pool" else None)
        args = {"x": fp32(kind, 1, 2, 5, 5), "kernel_sizes": const([2, 2]), "pad_type": const("valid")}
        yield Example(kind, "fp32", args, fp32=2e-6, scale=3.0)
        whole = {"kernel_sizes": const([2, 3]), "pad_type": const("valid")}
        yield Example(kind, "big", {"x": big(1, 2, 4, 6), **whole}, scale=1e5)
        yield Example(kind, "small", {"x": small(1, 2, 4, 6), **whole}, fp32=2e-6, scale=1e-3)


@examples_of("avg_pool", "max_pool")
def three_dimensions() -> Iterator[Example]:
    x = fp16("pool3", 1, 2, 4, 5, 3)
    args = {"x": x, "kernel_sizes": const([2, 3, 2]), "strides": const([1, 2, 1]), "pad_type": const("same")}
    for kind in ("avg_pool", "max_pool"):
        yield Example(kind, "three-dimensions", args, "ios15", scale=3.0)


@examples_of("avg_pool")
def exclude_padding() -> Iterator[Example]:
    for exclude in (False, True):
        for pad_type in ("same", "custom"):
            args = {
                "x": fp16("exclude", 1, 2, 5, 6), "kernel_sizes": const([3, 2]), "strides": const([2, 1]),
                "pad_type": const(pad_type), "exclude_padding_from_average": const(exclude),
            }  # fmt: skip
            if pad_type == "custom":
                args["pad"] = const([1, 2, 0, 1])
            yield Example("avg_pool", f"{pad_type}-{'exclude' if exclude else 'count'}", args, scale=3.0)


@examples_of("max_pool")
def special_values() -> Iterator[Example]:
    x = np.array([[[np.nan, 1, 2, -np.inf, -np.inf, -np.inf, np.inf, 0]]], np.float16)
    args = {"x": x, "kernel_sizes": const([2]), "pad_type": const("custom"), "pad": const([1, 1])}
    yield Example("max_pool", "special", args)
    negative = {"kernel_sizes": const([3]), "pad_type": const("same")}
    yield Example("max_pool", "negative", {"x": fp16("negative", 1, 2, 7, low=-9, high=-1), **negative})
