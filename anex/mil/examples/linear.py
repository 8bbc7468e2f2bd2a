"""Examples of dense products: convolutions, linear, matmul, einsum, attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anex.mil.examples.build import boolean, const, fp16, fp32, int32
from anex.mil.examples.case import Example, examples_of

_CONV: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # name: shape of x, shape of weight, other constants
    "pointwise": ((1, 12, 1, 32), (8, 12, 1, 1), {}),
    "pointwise-groups": ((1, 12, 2, 5), (6, 4, 1, 1), {"groups": 3}),
    "pointwise-strided": ((1, 4, 5, 7), (3, 4, 1, 1), {"strides": [2, 3]}),
    "pointwise-padded": ((1, 4, 3, 4), (3, 4, 1, 1), {"pad_type": "custom", "pad": [1, 0, 0, 2]}),
    "valid": ((2, 3, 7, 6), (4, 3, 3, 2), {"pad_type": "valid"}),
    "strided": ((1, 3, 9, 8), (4, 3, 3, 3), {"strides": [2, 3]}),
    "dilated": ((1, 2, 9, 8), (3, 2, 3, 2), {"dilations": [2, 3]}),
    "same": ((1, 2, 7, 6), (3, 2, 4, 3), {"pad_type": "same", "strides": [2, 2]}),
    "same-dilated": ((1, 2, 7, 6), (3, 2, 2, 3), {"pad_type": "same", "dilations": [3, 2]}),
    "same_lower": ((1, 2, 7, 6), (3, 2, 4, 2), {"pad_type": "same_lower", "strides": [1, 2]}),
    "custom": ((1, 2, 5, 6), (3, 2, 3, 3), {"pad_type": "custom", "pad": [2, 0, 1, 3]}),
    "groups": ((1, 6, 5, 4), (4, 3, 3, 2), {"groups": 2}),
    "depthwise": ((1, 5, 4, 6), (10, 1, 3, 3), {"groups": 5, "pad_type": "same"}),
    "one-dimension": ((2, 3, 11), (4, 3, 4), {"strides": [2], "pad_type": "custom", "pad": [3, 1]}),
    "three-dimensions": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"strides": [1, 2, 1], "pad_type": "same"}),
}


@examples_of("conv")
def conv() -> Iterator[Example]:
    for name, (shape, weights, more) in _CONV.items():
        constants = {key: const(value) for key, value in more.items()}
        opset = "ios16" if more.get("pad_type") == "same_lower" else "ios15"
        args = {"x": fp16(name, *shape), "weight": const(fp16(name + "w", *weights)), **constants}
        yield Example("conv", name, args, opset, fp32=2e-6, scale=9.0)
        wide = {"x": fp32(name, *shape), "weight": const(fp32(name + "w", *weights)), **constants}
        yield Example("conv", f"{name}-fp32", wide, fp32=2e-6, scale=9.0)
    x, weight, bias = fp16("conv", 1, 4, 3, 8), fp16("weight", 6, 4, 1, 1), const(fp16("bias", 6))
    yield Example(
        "conv", "bias", {"x": x, "weight": const(weight), "bias": bias}, "ios15", fp32=2e-6, scale=9.0
    )
    yield Example("conv", "run-time-weight", {"x": x, "weight": weight}, fp32=2e-6, scale=9.0)
    args = {"x": x, "weight": const(fp32("weight", 6, 4, 1, 1)), "bias": const(fp32("bias", 6))}
    yield Example("conv", "mixed", args, fp32=2e-6, scale=9.0)
    yield Example(
        "conv", "overflow", {"x": np.full((1, 4, 1, 2), 6e4, np.float16), "weight": const(weight)}, scale=1e5
    )


_TRANSPOSE: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "valid": ((2, 3, 4, 5), (3, 2, 3, 2), {}),
    "strided": ((1, 3, 4, 3), (3, 2, 3, 4), {"strides": [2, 3]}),
    "dilated": ((1, 2, 3, 4), (2, 3, 2, 3), {"dilations": [2, 3]}),
    "same": ((1, 2, 4, 3), (2, 3, 4, 3), {"pad_type": "same", "strides": [2, 2]}),
    "custom": ((1, 2, 4, 5), (2, 3, 3, 3), {"pad_type": "custom", "pad": [1, 0, 2, 1], "strides": [2, 1]}),
    "output_shape": (
        (1, 2, 4, 3), (2, 3, 3, 3),
        {"pad_type": "custom", "pad": [1, 1, 1, 1], "strides": [2, 2], "output_shape": [1, 3, 8, 5]},
    ),
    "groups": ((1, 4, 3, 4), (4, 3, 2, 3), {"groups": 2}),
    "depthwise": ((1, 3, 4, 4), (3, 1, 2, 2), {"groups": 3, "strides": [2, 2]}),
    "one-dimension": ((2, 3, 5), (3, 2, 4), {"strides": [3]}),
    "three-dimensions": ((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), {"strides": [1, 2, 1]}),
}  # fmt: skip


@examples_of("conv_transpose")
def conv_transpose() -> Iterator[Example]:
    for name, (shape, weights, more) in _TRANSPOSE.items():
        constants = {key: const(value) for key, value in more.items()}
        args = {"x": fp16(name, *shape), "weight": const(fp16(name + "w", *weights)), **constants}
        yield Example("conv_transpose", name, args, "ios15", fp32=2e-6, scale=9.0)
    x, weight, bias = fp32("ct", 1, 4, 3), fp32("weight", 4, 3, 2), fp32("bias", 6)
    args = {"x": x, "weight": const(weight), "bias": const(bias), "groups": const(2)}
    yield Example("conv_transpose", "bias-fp32", args, fp32=2e-6, scale=9.0)


@examples_of("linear")
def linear() -> Iterator[Example]:
    for name, shape in {"vector": (6,), "matrix": (5, 6), "rank4": (1, 2, 3, 6)}.items():
        weight, bias = const(fp16("linear", 4, 6)), const(fp16("bias", 4))
        yield Example("linear", name, {"x": fp16(name, *shape), "weight": weight}, fp32=2e-6, scale=9.0)
        args = {"x": fp16(name, *shape), "weight": weight, "bias": bias}
        yield Example("linear", f"{name}-bias", args, "ios15", fp32=2e-6, scale=9.0)
    args = {"x": fp32("linear", 7, 9), "weight": const(fp32("w", 3, 9)), "bias": const(fp32("b", 3))}
    yield Example("linear", "fp32", args, fp32=2e-6, scale=9.0)
    mixed = {"x": fp16("linear", 7, 9), "weight": const(fp32("w", 3, 9))}
    yield Example("linear", "mixed", mixed, fp32=2e-6, scale=9.0)
    ints = {"x": int32("linear", 2, 5), "weight": const(int32("w", 3, 5)), "bias": const(int32("b", 3))}
    yield Example("linear", "int32", ints)


_MATMUL: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, bool]]] = {
    "plain": ((5, 7), (7, 3), {}),
    "vector": ((7,), (7, 3), {}),
    "transpose_x": ((7, 5), (7, 3), {"transpose_x": True}),
    "transpose_y": ((5, 7), (3, 7), {"transpose_y": True}),
    "both": ((2, 7, 5), (2, 3, 7), {"transpose_x": True, "transpose_y": True}),
    "heads": ((1, 3, 4, 8), (1, 3, 8, 5), {"transpose_x": False, "transpose_y": False}),
    "broadcast": ((2, 1, 4, 6), (3, 6, 5), {}),
    "broadcast-transposed": ((3, 6, 4), (2, 1, 5, 6), {"transpose_x": True, "transpose_y": True}),
    "row": ((1, 1, 1, 33), (1, 1, 33, 8), {}),
    "long": ((2, 300), (300, 3), {}),
}


@examples_of("matmul")
def matmul() -> Iterator[Example]:
    for name, (x, y, flags) in _MATMUL.items():
        constants = {key: const(value) for key, value in flags.items()}
        args = {"x": fp16(name, *x), "y": fp16(name + "y", *y), **constants}
        yield Example("matmul", name, args, "ios15", fp32=2e-6, scale=30.0)
        wide = {"x": fp32(name, *x), "y": const(fp32(name + "y", *y)), **constants}
        yield Example("matmul", f"{name}-fp32", wide, fp32=2e-6, scale=30.0)
    yield Example("matmul", "int32", {"x": int32("x", 3, 4), "y": int32("y", 4, 2)})
    mixed = {"x": fp16("mixed", 4, 6), "y": const(fp32("mixedy", 6, 3))}
    yield Example("matmul", "constant-fp32", mixed, fp32=2e-6, scale=9.0)
    yield Example(
        "matmul", "constant-x", {"x": const(fp32("m", 4, 6)), "y": fp16("my", 6, 3)}, fp32=2e-6, scale=9.0
    )
    rows = np.array([[60000, 60000, 1], [65504, -65504, 2]], np.float16)
    columns = np.array([[1, 1], [1, -1], [0.5, 0.25]], np.float16)
    yield Example("matmul", "overflow", {"x": rows, "y": columns}, scale=1e5)
    special = np.array([[np.inf, 1], [np.nan, 1], [-np.inf, 2]], np.float16)
    yield Example("matmul", "special", {"x": special, "y": np.array([[1.0], [2.0]], np.float16)})
    tiny = np.array([[2.0**-24, 2.0**-14, -(2.0**-20)]], np.float16)
    yield Example("matmul", "subnormal", {"x": tiny, "y": np.array([[1], [0.5], [3]], np.float16)})


@examples_of("einsum")
def einsum() -> Iterator[Example]:
    shapes = {"plain": ((2, 3, 4, 5), (2, 5, 4, 6)), "broadcast": ((1, 3, 4, 5), (2, 5, 1, 6))}
    for name, (x, y) in shapes.items():
        args = {"values": (fp16(name, *x), fp16(name + "y", *y)), "equation": const("nchw,nwhu->nchu")}
        yield Example("einsum", name, args, "ios15", fp32=2e-6, scale=9.0)
    args = {"values": (fp16("a", 3, 4, 5), fp16("b", 5, 4, 2)), "equation": const("chw,whr->chr")}
    yield Example("einsum", "rank3", args, fp32=2e-6, scale=9.0)
    args = {"values": (fp32("a", 1, 2, 3, 4), fp32("b", 1, 4, 3, 2)), "equation": const("abcd,adce->abce")}
    yield Example("einsum", "letters-fp32", args, fp32=2e-6, scale=9.0)


@examples_of("scaled_dot_product_attention")
def attention() -> Iterator[Example]:
    kind = "scaled_dot_product_attention"
    q, k, v = fp16("q", 1, 2, 3, 8), fp16("k", 1, 2, 5, 8), fp16("v", 1, 2, 5, 4)
    plain = {"query": q, "key": k, "value": v}
    yield Example(kind, "plain", plain, fp32=4e-6, scale=3.0)
    keep = boolean("mask", 3, 5)
    keep[:, 0] = True
    yield Example(kind, "bool-mask", {**plain, "attn_mask": keep}, fp32=4e-6, scale=3.0)
    yield Example(kind, "float-mask", {**plain, "attn_mask": fp16("mask", 1, 1, 3, 5)}, fp32=4e-6, scale=3.0)
    causal = np.where(np.arange(5) <= np.arange(3)[:, None] + 2, 0, -np.inf).astype(np.float16)
    yield Example(kind, "causal", {**plain, "attn_mask": causal[None]}, fp32=4e-6, scale=3.0)
    yield Example(kind, "row-mask", {**plain, "attn_mask": fp16("row", 5)}, fp32=4e-6, scale=3.0)
    rank3 = {"query": fp32("q", 2, 4, 6), "key": fp32("k", 2, 3, 6), "value": fp32("v", 2, 3, 6)}
    yield Example(kind, "rank3-fp32", rank3, fp32=4e-6, scale=3.0)
