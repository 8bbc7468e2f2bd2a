"""The emulator's dense products and sums: every contraction of a lowering comes here.

Two implementations: the native kernel (`native/matmul.cpp`: fp16 operands read
as they are, a summation order that depends on K alone) and XLA's own dot.
Both accumulate in fp32 and round once, to `out`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import jax

_PAIRS = frozenset({np.dtype(np.float16), np.dtype(np.float32)})


class Matmul(Protocol):
    """Batched product of stored operands; `native` says which implementation it is."""

    native: bool

    def __call__(
        self,
        x: jax.Array,
        y: jax.Array,
        *,
        transpose_x: bool = False,
        transpose_y: bool = False,
        out: np.dtype[Any],
    ) -> jax.Array:
        """`x[..., M, K] @ y[..., K, N]` after the transposes of the last two axes.

        Batch dimensions broadcast.  Operands are fp16, fp32 or int32.
        """
        ...

    def weight(self, w: jax.Array, x: jax.Array, *, out: np.dtype[Any]) -> jax.Array:
        """`w[M, K] @ x[..., K, S]` for a constant `w`: the 1x1 convolution."""
        ...

    def sum(self, x: jax.Array, axes: Sequence[int]) -> jax.Array:
        """Sum over axes, which are kept with size one; `x` is fp32 or an integer type."""
        ...


class XlaMatmul:
    """XLA's dot: on every machine, any float or integer type."""

    native = False

    def __call__(
        self,
        x: jax.Array,
        y: jax.Array,
        *,
        transpose_x: bool = False,
        transpose_y: bool = False,
        out: np.dtype[Any],
    ) -> jax.Array:
        import jax
        import jax.numpy as jnp

        wide = jnp.int32 if np.issubdtype(x.dtype, np.integer) else jnp.float32
        x, y = x.astype(wide), y.astype(wide)
        x = jnp.swapaxes(x, -1, -2) if transpose_x else x
        y = jnp.swapaxes(y, -1, -2) if transpose_y else y
        return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST).astype(out)

    def weight(self, w: jax.Array, x: jax.Array, *, out: np.dtype[Any]) -> jax.Array:
        return self(w, x, out=out)

    def sum(self, x: jax.Array, axes: Sequence[int]) -> jax.Array:
        import jax.numpy as jnp

        return jnp.sum(x, axis=tuple(axes), keepdims=True, dtype=x.dtype)


class NativeMatmul:
    """The native kernel where both operands are floating point, else XLA."""

    native = True

    def __init__(self) -> None:
        self._xla = XlaMatmul()

    def __call__(
        self,
        x: jax.Array,
        y: jax.Array,
        *,
        transpose_x: bool = False,
        transpose_y: bool = False,
        out: np.dtype[Any],
    ) -> jax.Array:
        import jax
        import jax.numpy as jnp

        if not {x.dtype, y.dtype, out} <= _PAIRS or 0 in x.shape or 0 in y.shape:
            return self._xla(x, y, transpose_x=transpose_x, transpose_y=transpose_y, out=out)
        x, y, batch = _with_batches(x, y)
        m = x.shape[-1] if transpose_x else x.shape[-2]
        n = y.shape[-2] if transpose_y else y.shape[-1]
        if transpose_y and transpose_x:
            x, transpose_x = jnp.swapaxes(x, -1, -2), False
        result = jax.ShapeDtypeStruct((*batch, m, n), out)
        if transpose_y:
            return _called("anex_dot", result, x, y, b_is_kn=False)
        return _called("anex_outer", result, x, y, a_is_km=transpose_x)

    def weight(self, w: jax.Array, x: jax.Array, *, out: np.dtype[Any]) -> jax.Array:
        import jax

        if not {w.dtype, x.dtype, out} <= _PAIRS or 0 in x.shape:
            return self._xla(w, x, out=out)
        result = jax.ShapeDtypeStruct((*x.shape[:-2], w.shape[0], x.shape[-1]), out)
        return _called("anex_dot", result, w, x, b_is_kn=True)

    def sum(self, x: jax.Array, axes: Sequence[int]) -> jax.Array:
        """A product with ones; which form depends on the axes only, so the order does too."""
        import jax.numpy as jnp

        axes = sorted(axis % x.ndim for axis in axes)
        if x.dtype != np.float32 or 0 in x.shape or not axes:
            return self._xla.sum(x, axes)
        kept = [1 if i in axes else size for i, size in enumerate(x.shape)]
        if axes[-1] - axes[0] >= len(axes):  # the axes are apart: bring them to the end
            x = jnp.moveaxis(x, axes, range(-len(axes), 0))
            axes = list(range(x.ndim - len(axes), x.ndim))
        before, length = prod(x.shape[: axes[0]]), prod(x.shape[axes[0] : axes[-1] + 1])
        if axes[-1] == x.ndim - 1:
            rows, ones = x.reshape(before, length), jnp.ones((1, length), np.float32)
            total = self(rows, ones, transpose_y=True, out=np.dtype(np.float32))
        else:
            planes, ones = x.reshape(before, length, -1), jnp.ones((1, 1, length), np.float32)
            total = self(ones, planes, out=np.dtype(np.float32))
        return total.reshape(kept)


def _called(target: str, result: Any, x: jax.Array, y: jax.Array, **flags: bool) -> jax.Array:
    import jax

    call: Callable[..., jax.Array] = jax.ffi.ffi_call(target, result)
    return call(x, y, **{name: np.bool_(value) for name, value in flags.items()})


def _with_batches(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """Operands whose batch dimensions are equal, or of size one in one of them."""
    import jax.numpy as jnp

    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])

    def fit(a: jax.Array) -> jax.Array:
        if a.shape[:-2] == batch or all(d == 1 for d in a.shape[:-2]):
            return a
        return jnp.broadcast_to(a, (*batch, *a.shape[-2:]))

    return fit(x), fit(y), batch
