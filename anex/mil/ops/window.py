"""Sizes of what slides a window over an image: convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anex.mil.ops.decl import Call
from anex.mil.ops.rules import Dim

PAD_TYPES = ("valid", "same", "custom", "same_lower")


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial dimensions, one entry for each.

    Attributes:
        kernel: Extent with dilation: (size - 1) * dilation + 1.
        pad: (before, after) for pad type `custom`; else ignored.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pad_type: str = "valid"
    pad: tuple[tuple[int, int], ...] = ()

    def padding(self, sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Zeros before and after each spatial dimension of an image.

        `same` gives ceil(size / stride) outputs and puts an odd zero behind,
        `same_lower` puts it in front.
        """
        if self.pad_type == "custom":
            return self.pad
        if self.pad_type == "valid":
            return ((0, 0),) * len(self.kernel)
        pairs = []
        for size, extent, stride in zip(sizes, self.kernel, self.strides, strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + extent - size)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if self.pad_type == "same" else (more, less))
        return tuple(pairs)

    def outputs(self, call: Call, sizes: Sequence[Dim], ceil: bool = False) -> tuple[Dim, ...]:
        """The spatial size of the result; with `ceil` a last, partly covered window counts.

        Raises:
            InputError: The image is smaller than the window.
        """
        paddings = self.padding([1 if d is None else d for d in sizes])
        result: list[Dim] = []
        for i, (size, (before, after)) in enumerate(zip(sizes, paddings, strict=True)):
            if size is None:
                result.append(None)
                continue
            stride, room = self.strides[i], size + before + after - self.kernel[i]
            count = (room + (stride - 1) * ceil) // stride + 1
            # The last window must start inside the image or the padding before it.
            if ceil and before + after > 0 and (count - 1) * stride >= size + (before + after) / 2:
                count -= 1
            if count <= 0:
                raise call.error(f"spatial dimension {i} has size {size}, less than its window")
            result.append(count)
        return tuple(result)


def window_of(call: Call, kernel: Sequence[Dim], pad_type: str) -> Window:
    """The window that a call's strides, pad and dilations describe.

    Raises:
        InputError: A length differs from the number of spatial dimensions, a
            stride is zero, a pad type is unknown, or a kernel size is.
    """
    rank = len(kernel)
    strides = call.value("strides", [1] * rank, length=rank)
    dilations = [1] * rank
    if call.decl.param("dilations") is not None:
        dilations = call.value("dilations", dilations, length=rank)
    if pad_type not in PAD_TYPES:
        raise call.error(f"unknown pad_type '{pad_type}' (known: {', '.join(PAD_TYPES)})")
    if pad_type == "same_lower" and call.decl.opset == "ios15":
        raise call.error("pad_type 'same_lower' needs opset ios16")
    if None in kernel:
        raise call.error("the kernel size must be known")
    if 0 in strides:
        raise call.error("a stride is 0")
    pairs: tuple[tuple[int, int], ...] = ()
    if pad_type == "custom":
        pad = call.value("pad", [0] * 2 * rank, length=2 * rank)
        pairs = tuple(zip(pad[::2], pad[1::2], strict=True))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True) if k is not None]
    return Window(tuple(extents), tuple(strides), pad_type, pairs)
