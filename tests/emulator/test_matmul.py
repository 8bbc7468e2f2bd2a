"""The dense products against float64, and what the native kernel promises about bits."""

import ctypes
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.emulator import native
from anex.emulator.matmul import NativeMatmul, XlaMatmul

IMPLEMENTATIONS = [XlaMatmul(), *([NativeMatmul()] if native.available() else [])]
SIZES = st.integers(1, 70)


def operands(seed: int, x_shape, y_shape, x_type, y_type):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x_shape).astype(x_type), rng.standard_normal(y_shape).astype(y_type)


def close(got, x, y, out) -> bool:
    """Within fp32 accumulation of float64, and one rounding to `out`."""
    exact = np.matmul(x.astype(np.float64), y.astype(np.float64))
    magnitude = np.matmul(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)))
    bound = magnitude * x.shape[-1] * 2.0**-24 + 1e-30
    if out == np.float16:
        bound = bound + np.abs(exact) * 2.0**-11 + 2.0**-25
    return bool((np.abs(np.asarray(got, np.float64) - exact) <= bound).all())


def test_the_native_kernel_is_built_where_a_compiler_is():
    import shutil

    assert native.available() or shutil.which("c++") is None


@pytest.mark.parametrize("matmul", IMPLEMENTATIONS, ids=lambda m: type(m).__name__)
@settings(max_examples=60, deadline=None)
@given(
    m=SIZES, n=SIZES, k=st.integers(1, 90), batch=st.sampled_from([(), (1,), (3,), (2, 3)]),
    shared=st.booleans(), tx=st.booleans(), ty=st.booleans(),
    types=st.tuples(*[st.sampled_from([np.float16, np.float32])] * 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_products_equal_float64(matmul, m, n, k, batch, shared, tx, ty, types, seed):
    x, y = operands(seed, (*batch, m, k), (*([1] * len(batch) if shared else batch), k, n), *types[:2])
    got = matmul(
        jax.numpy.asarray(np.swapaxes(x, -1, -2) if tx else x),
        jax.numpy.asarray(np.swapaxes(y, -1, -2) if ty else y),
        transpose_x=tx,
        transpose_y=ty,
        out=np.dtype(types[2]),
    )
    assert got.dtype == types[2]
    assert got.shape == (*batch, m, n)
    assert close(got, x, y, types[2])


@pytest.mark.parametrize("matmul", IMPLEMENTATIONS, ids=lambda m: type(m).__name__)
@settings(max_examples=40, deadline=None)
@given(m=SIZES, s=SIZES, k=st.integers(1, 90), batch=st.integers(1, 3), seed=st.integers(0, 99))
def test_weight_times_columns_equals_float64(matmul, m, s, k, batch, seed):
    w, x = operands(seed, (m, k), (batch, k, s), np.float16, np.float16)
    got = matmul.weight(jax.numpy.asarray(w), jax.numpy.asarray(x), out=np.dtype(np.float16))
    assert close(got, np.broadcast_to(w, (batch, m, k)), x, np.float16)


@pytest.mark.skipif(not native.available(), reason="no compiler at install: see the first test")
@settings(max_examples=30, deadline=None)
@given(m=st.integers(1, 300), k=st.integers(1, 300), columns=st.integers(2, 40), seed=st.integers(0, 99))
def test_a_column_has_the_same_bits_alone_and_among_others(m, k, columns, seed):
    w, x = operands(seed, (m, k), (1, k, columns), np.float16, np.float32)
    matmul, out = NativeMatmul(), np.dtype(np.float32)
    together = np.asarray(matmul.weight(jax.numpy.asarray(w), jax.numpy.asarray(x), out=out))
    for i in (0, columns - 1):
        alone = matmul.weight(jax.numpy.asarray(w), jax.numpy.asarray(x[..., i : i + 1].copy()), out=out)
        assert np.array_equal(together[..., i], np.asarray(alone)[..., 0])


@pytest.mark.skipif(not native.available(), reason="no compiler at install: see the first test")
@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(2, 60),
    n=st.integers(1, 200),
    k=st.integers(1, 200),
    ty=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_row_has_the_same_bits_alone_and_among_others(m, n, k, ty, seed):
    x, y = operands(seed, (2, m, k), (2, n, k) if ty else (2, k, n), np.float16, np.float16)
    matmul, out = NativeMatmul(), np.dtype(np.float32)
    together = matmul(jax.numpy.asarray(x), jax.numpy.asarray(y), transpose_y=ty, out=out)
    alone = matmul(jax.numpy.asarray(x[:, 1:2].copy()), jax.numpy.asarray(y), transpose_y=ty, out=out)
    assert np.array_equal(np.asarray(together)[:, 1], np.asarray(alone)[:, 0])


@pytest.mark.parametrize("matmul", IMPLEMENTATIONS, ids=lambda m: type(m).__name__)
def test_infinities_overflow_and_subnormals(matmul):
    x = np.array([[1.0, np.inf, 0.0], [300.0, 300.0, 0.0], [2.0**-24, 0.0, 0.0]], np.float16)
    y = np.array([[1.0, 200.0, 1.0], [1.0, 200.0, 0.0], [1.0, 1.0, 1.0]], np.float16)
    got = matmul(jax.numpy.asarray(x), jax.numpy.asarray(y), out=np.dtype(np.float16))
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float16)
    assert np.array_equal(np.asarray(got), exact, equal_nan=True)
    assert np.isinf(exact[1, 1])
    assert exact[2, 0] == np.float16(2.0**-24)


def test_int32_products_are_exact():
    x = np.array([[30000, -7], [2, 3]], np.int32)
    got = IMPLEMENTATIONS[-1](jax.numpy.asarray(x), jax.numpy.asarray(x), out=np.dtype(np.int32))
    assert np.array_equal(np.asarray(got), x @ x)


ONE_SET = """
import sys
import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import jax
from anex.emulator import native
from anex.emulator.matmul import NativeMatmul

native._BEST_FIRST = (sys.argv[1],)
assert native.available()
rng = np.random.default_rng(0)
for m, k, n in ((1, 577, 300), (37, 64, 33), (130, 96, 7)):
    x, y = rng.integers(-8, 8, (m, k)).astype(np.float16), rng.integers(-8, 8, (k, n)).astype(np.float16)
    exact = x.astype(np.int64) @ y.astype(np.int64)
    out = np.dtype(np.float32)
    matmul, x, y = NativeMatmul(), jax.numpy.asarray(x), jax.numpy.asarray(y)
    assert (np.asarray(matmul(x, y, out=out)) == exact).all()
    assert (np.asarray(matmul.weight(x, y, out=out)) == exact).all()
"""


@pytest.mark.parametrize(
    "path", sorted(Path(native.__file__).parent.glob("_kernels_*")), ids=lambda p: p.name.split(".")[0]
)
def test_each_instruction_set_that_runs_here(path):
    """Small integers: every order of summation gives the exact product."""
    name = path.name.split(".")[0].removeprefix("_kernels_")
    if ctypes.CDLL(str(path)).anex_runs_here():
        subprocess.run([sys.executable, "-c", ONE_SET, name], check=True)
