"""Arithmetic levels: how a declared fp16 value is stored and rounded.

`fp32`: nothing is rounded, the same program and blob.  `fp16`: an op is
computed wide as a whole and each declared fp16 result is rounded once, to
nearest even, subnormals kept (host.md: a convert to float16 does that;
`lax.reduce_precision` would flush subnormals).
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from anex.errors import UnsupportedError
from anex.mil import DType, TensorType


class Level(enum.Enum):
    """An arithmetic level; the value is what `--numerics` takes."""

    FP32 = "fp32"
    FP16 = "fp16"

    @classmethod
    def named(cls, name: str) -> Level:
        """The level of that name.

        Raises:
            UnsupportedError: There is none.
        """
        for level in cls:
            if level.value == name:
                return level
        known = ", ".join(level.value for level in cls)
        raise UnsupportedError(f"numerics level '{name}'", hint=f"known: {known}")


_WIDE_64 = frozenset({DType.FP64, DType.INT64, DType.UINT64})


def storage(kind: TensorType, level: Level) -> np.dtype[Any]:
    """The numpy dtype in which the emulator holds a computed value of a declared type.

    Raises:
        UnsupportedError: The emulator has no such element type.
    """
    if kind.dtype is DType.STRING or kind.dtype in _WIDE_64:
        raise UnsupportedError(f"{kind.dtype.value} values in the emulator")
    if level is Level.FP32 and kind.dtype is DType.FP16:
        return np.dtype(np.float32)
    return kind.dtype.numpy
