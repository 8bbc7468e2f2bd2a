"""What the models ask of a file of weights, whatever its format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from anex.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]

_INTEGERS = re.compile(r"[IU]\d+|BOOL")
"""Names of storage types of GGUF and safetensors; those of quantised numbers are longer."""


class TensorDescription(Protocol):
    """One tensor of a file."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        ...

    @property
    def storage(self) -> str:
        """How its numbers are stored, for people."""
        ...

    @property
    def nbytes(self) -> int:
        """Size of the stored data."""
        ...


def check_numbers(tensor: str, description: TensorDescription, where: str) -> None:
    """Refuse a weight whose numbers are integers: nothing says what they stand for.

    Raises:
        InputError: They are.
    """
    if _INTEGERS.fullmatch(description.storage):
        raise InputError(
            f"tensor '{tensor}' holds integers ({description.storage}), not the numbers of a weight",
            where=where,
        )


class TensorSource(Protocol):
    """An open file, or several that belong together; tensors are found by name."""

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorDescription]: ...

    def rows(self, tensor: str, start: int, stop: int, dtype: npt.DTypeLike = ...) -> Array:
        """Rows of a tensor, `[stop - start, width]`, as float32 or float16.

        Raises:
            InputError: A number is beyond the range of float16.
            UnsupportedError: The storage type has no float form here.
        """
        ...

    def array(self, tensor: str, dtype: npt.DTypeLike = ...) -> Array:
        """A whole tensor in its shape; raises as `rows`."""
        ...

    def fingerprint(self) -> bytes:
        """A digest of everything that describes the tensors, and of samples of their data."""
        ...

    def close(self) -> None: ...
