"""Examples of normalisations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import big, const, fp16, fp32, small
from anex.mil.examples.case import Example, examples_of
from anex.mil.types import DType


@examples_of("batch_norm")
def batch_norm() -> Iterator[Example]:
    mean, variance = const(fp16("mean", 3)), const(fp16("variance", 3, low=0.1, high=4))
    gamma, beta = const(fp16("gamma", 3)), const(fp16("beta", 3))
    stats = {"mean": mean, "variance": variance}
    for shape in ((2, 3, 5), (2, 3, 4, 5), (1, 3, 2, 3, 2)):
        x = fp16("batch_norm", *shape)
        yield Example("batch_norm", f"rank{len(shape)}", {"x": x, **stats}, fp32=2e-6, scale=4.0)
    x = fp16("batch_norm", 2, 3, 4, 5)
    args = {"x": x, **stats, "gamma": gamma, "beta": beta, "epsilon": const(0.01, x)}
    yield Example("batch_norm", "affine", args, "ios15", fp32=2e-6, scale=9.0)
    wide = {name: const(fp32(name, 3, low=0.1)) for name in ("mean", "variance", "gamma", "beta")}
    yield Example("batch_norm", "mixed", {"x": x, **wide}, fp32=2e-6, scale=9.0)
    yield Example("batch_norm", "fp32", {"x": fp32("batch_norm", 1, 3, 7), **wide}, fp32=4e-6, scale=9.0)
    yield Example("batch_norm", "big", {"x": big(2, 3, 9), **stats}, fp32=2e-6)


@examples_of("instance_norm")
def instance_norm() -> Iterator[Example]:
    gamma, beta = const(fp16("gamma", 3)), const(fp16("beta", 3))
    for shape in ((2, 3, 5), (2, 3, 4, 5)):
        x = fp16("instance_norm", *shape)
        yield Example("instance_norm", f"rank{len(shape)}", {"x": x}, fp32=2e-6, scale=4.0)
        args = {"x": x, "gamma": gamma, "beta": beta, "epsilon": const(0.01, x)}
        yield Example("instance_norm", f"affine{len(shape)}", args, "ios15", fp32=2e-6, scale=9.0)
    yield Example("instance_norm", "fp32", {"x": fp32("instance_norm", 1, 2, 4, 7)}, fp32=4e-6, scale=4.0)
    yield Example("instance_norm", "big", {"x": big(2, 3, 9)}, fp32=4e-6, scale=2.0)
    constant = np.full((1, 2, 4), 7, np.float16)
    args = {"x": constant, "epsilon": const(1e-3, DType.FP16)}
    yield Example("instance_norm", "constant", args, scale=1.0)


@examples_of("layer_norm")
def layer_norm() -> Iterator[Example]:
    x = fp16("layer_norm", 2, 5, 3, 4)
    for name, axes in {
        "last": [-1],
        "channel": [1],
        "two": [2, 3],
        "apart": [1, -1],
        "unsorted": [3, 1],
    }.items():
        shape = [x.shape[a] for a in sorted(a % 4 for a in axes)]
        args = {"x": x, "axes": const(axes)}
        yield Example("layer_norm", name, args, fp32=2e-6, scale=4.0)
        args |= {"gamma": const(fp16("gamma", *shape)), "beta": const(fp16("beta", *shape))}
        yield Example(
            "layer_norm", f"{name}-affine", {**args, "epsilon": const(1e-3, x)}, fp32=2e-6, scale=9.0
        )
    yield Example("layer_norm", "default", {"x": x}, "ios15", fp32=2e-6, scale=4.0)
    gamma = const(fp32("gamma", 4))
    args = {"x": x, "axes": const([3]), "gamma": gamma}
    yield Example("layer_norm", "mixed", args, fp32=2e-6, scale=9.0)
    wide = fp32("layer_norm", 3, 33)
    yield Example("layer_norm", "fp32", {"x": wide, "axes": const([1])}, fp32=4e-6, scale=4.0)
    yield Example("layer_norm", "big", {"x": big(3, 33), "axes": const([1])}, fp32=4e-6, scale=4.0)
    args = {"x": small(3, 33), "axes": const([1]), "epsilon": const(2.0**-24, x)}
    yield Example("layer_norm", "small", args, fp32=4e-6, scale=4.0)


@examples_of("l2_norm")
def l2_norm() -> Iterator[Example]:
    for shape in ((3, 4, 5), (2, 3, 4, 5), (2, 2, 3, 1, 5)):
        yield Example("l2_norm", f"rank{len(shape)}", {"x": fp16("l2_norm", *shape)}, fp32=2e-6)
    args = {"x": fp32("l2_norm", 2, 3, 2, 4), "epsilon": const(0.5, DType.FP32)}
    yield Example("l2_norm", "fp32", args, "ios15", fp32=2e-6)
    yield Example(
        "l2_norm", "mixed", {"x": fp16("l2_norm", 2, 3, 4), "epsilon": const(0.5, DType.FP32)}, fp32=2e-6
    )
    yield Example("l2_norm", "big", {"x": big(2, 3, 3, 3)}, fp32=2e-6)
    yield Example("l2_norm", "small", {"x": small(2, 3, 3, 3), "epsilon": const(0.0, DType.FP16)}, fp32=2e-6)


@examples_of("local_response_norm")
def local_response_norm() -> Iterator[Example]:
    x = fp16("lrn", 2, 7, 3, 4)
    for size in (1, 3, 5, 4):
        args = {
            "x": x,
            "size": const(size),
            "alpha": const(0.5, x),
            "beta": const(0.75, x),
            "k": const(2.0, x),
        }
        yield Example("local_response_norm", f"size{size}", args, fp32=4e-6)
    yield Example(
        "local_response_norm", "default", {"x": fp16("lrn3", 2, 6, 5), "size": const(3)}, "ios15", fp32=4e-6
    )
    args = {"x": fp32("lrn", 1, 5, 4), "size": const(3), "alpha": const(1.5, DType.FP32)}
    yield Example("local_response_norm", "fp32", args, fp32=4e-6)
    args = {"x": x, "size": const(3), "alpha": const(0.7, DType.FP32)}
    yield Example("local_response_norm", "mixed", args, fp32=4e-6)
