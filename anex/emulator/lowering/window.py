"""The window of a convolution or a pool, from its constants."""

from __future__ import annotations

from collections.abc import Sequence

from anex.emulator.lowering.registry import Lowered
from anex.mil.ops import Window


def window_of(low: Lowered, kernel: Sequence[int]) -> Window:
    """The window that an op's strides, dilations, pad type and pad describe.

    Args:
        kernel: Sizes of the kernel without dilation, one for each spatial dimension.
    """
    rank = len(kernel)
    strides, dilations = (low.const(name, [1] * rank) for name in ("strides", "dilations"))
    pad_type = low.const("pad_type", "valid").lower()
    pad = low.const("pad", [0] * 2 * rank) if pad_type == "custom" else []
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pairs = tuple(zip(pad[::2], pad[1::2], strict=True))
    return Window(tuple(extents), tuple(strides), pad_type, pairs)
