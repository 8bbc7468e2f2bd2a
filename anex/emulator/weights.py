"""The constants of a program as JAX arrays that alias the memory map of their blob file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.errors import InputError
from anex.mil import BlobFile, Literal, TensorType

if TYPE_CHECKING:
    import jax

Array = np.ndarray[Any, np.dtype[Any]]


class Weights:
    """Constants by where they lie; each is brought to the device once, whoever uses it.

    Args:
        files: Blob files by the path under which the program refers to them.
    """

    def __init__(self, files: Mapping[str, BlobFile]) -> None:
        self._files = files
        self._arrays: dict[tuple[str, int, TensorType], jax.Array] = {}

    def read(self, literal: Literal) -> Array:
        """The numbers of a tensor literal; a view of the blob where they lie there.

        Raises:
            InputError: Its file was not given, or its record is malformed.
        """
        if not literal.is_blob:
            return literal.array
        path = literal.data.path
        if path not in self._files:
            raise InputError(f"the program refers to the weight file '{path}', but it was not given")
        return self._files[path].array(literal)

    def device(self, literal: Literal) -> jax.Array:
        """The same as a JAX array; shared between all functions that use it."""
        if not literal.is_blob or not isinstance(literal.type, TensorType):
            return aliased(self.read(literal))
        key = (literal.data.path, literal.data.offset, literal.type)
        if key not in self._arrays:
            # Functions are prepared side by side: whoever comes second takes the first one's array.
            self._arrays.setdefault(key, aliased(self.read(literal)))
        return self._arrays[key]


def aliased(array: Array) -> jax.Array:
    """A JAX array on the same memory where it is aligned to 64 bytes, else a copy."""
    import jax

    alias: jax.Array = jax.device_put(array, may_alias=True)
    return alias
