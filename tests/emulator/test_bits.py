"""Bits that must not depend on what is computed beside: columns, rows, threads, other functions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from anex.emulator import Emulated, native
from anex.mil import Builder, DType, Function, Program, Value

F16 = DType.FP16
HEADS, HEAD, CACHE, WIDE = 4, 32, 96, 256
WIDTH = HEADS * HEAD
COLUMNS = (1, 7, 32, 128)

needs_native = pytest.mark.skipif(not native.available(), reason="holds for the native matmul")


def weight(seed: int, rows: int, columns: int) -> np.ndarray:
    draw = np.random.default_rng(seed).standard_normal((rows, columns, 1, 1))
    return (draw / np.sqrt(columns)).astype(np.float16)


def product(b: Builder, x: Value, seed: int, rows: int) -> Value:
    return b.op("conv", x=x, weight=weight(seed, rows, x.tensor.dims[1]), strides=[1, 1], pad_type="valid",
                pad=[0] * 4, dilations=[1, 1], groups=1)  # fmt: skip


def normed(b: Builder, x: Value) -> Value:
    """RMSNorm over channels, divided by the largest first, as the decoder's."""
    scale = b.op("maximum", x=b.op("reduce_max", x=b.op("abs", x=x), axes=[1], keep_dims=True), y=1e-3)
    y = b.op("real_div", x=x, y=scale)
    mean = b.op("reduce_mean", x=b.op("square", x=y), axes=[1], keep_dims=True)
    return b.op("mul", x=y, y=b.op("rsqrt", x=mean, epsilon=1e-5))


def decoder(count: int) -> Function:
    """Two layers on `count` columns, each attending to the same cached keys and values."""
    b = Builder(f"t{count}")
    x = b.input("x", F16, (1, WIDTH, 1, count))
    keys = b.input("keys", F16, (1, HEADS, CACHE, HEAD))
    values = b.input("values", F16, (1, HEADS, CACHE, HEAD))
    for layer in range(2):
        seeds = iter(range(10 * layer, 10 * layer + 10))
        q = b.op("reshape", x=product(b, normed(b, x), next(seeds), WIDTH), shape=[1, HEADS, HEAD, count])
        scores = b.op("matmul", x=q, y=keys, transpose_x=True, transpose_y=True)
        shares = b.op("softmax", x=b.op("mul", x=scores, y=HEAD**-0.5), axis=-1)
        mixed = b.op("matmul", x=values, y=shares, transpose_x=True, transpose_y=True)
        mixed = b.op("reshape", x=mixed, shape=[1, WIDTH, 1, count])
        x = b.op("add", x=x, y=product(b, mixed, next(seeds), WIDTH))
        h = normed(b, x)
        gate, up = (product(b, h, next(seeds), WIDE) for _ in range(2))
        x = b.op("add", x=x, y=product(b, b.op("mul", x=b.op("silu", x=gate), y=up), next(seeds), WIDTH))
    return b.finish({"y": x})


def inputs(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, WIDTH, 1, max(COLUMNS))).astype(np.float16)
    keys, values = rng.standard_normal((2, 1, HEADS, CACHE, HEAD)).astype(np.float16)
    return {"x": np.ascontiguousarray(x[..., :count]), "keys": keys, "values": values}


def run(emulated: Emulated, count: int, column: int | None = None) -> np.ndarray:
    given = inputs(max(COLUMNS) if column is not None else count)
    if column is not None:
        given["x"] = np.ascontiguousarray(given["x"][..., column : column + 1])
    return np.asarray(emulated.run(f"t{count}", given)["y"])


@needs_native
def test_a_column_of_a_decoder_has_the_same_bits_in_functions_of_any_width():
    emulated = Emulated(Program({f"t{n}": decoder(n) for n in COLUMNS}))
    widest = run(emulated, max(COLUMNS))
    assert np.isfinite(widest).all()
    assert len(np.unique(widest)) > 1000
    for count in COLUMNS:
        assert np.array_equal(run(emulated, count), widest[..., :count]), count
    for column in (1, 31, 100):
        assert np.array_equal(run(emulated, 1, column), widest[..., column : column + 1]), column


_PRINTED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_bits
emulated = test_bits.Emulated(test_bits.Program({{"t32": test_bits.decoder(32)}}))
print(test_bits.run(emulated, 32).tobytes().hex())
"""


@needs_native
def test_the_number_of_threads_changes_no_bit():
    def printed(threads: int) -> str:
        environment = {**os.environ, "NPROC": str(threads)}
        done = subprocess.run(
            [sys.executable, "-c", _PRINTED], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    one = printed(1)
    assert len(one) > 1000
    assert one == printed(2)


def test_functions_are_prepared_side_by_side(monkeypatch: pytest.MonkeyPatch):
    """Two functions whose preparation waits for each other: it ends only if neither holds a common lock."""
    from anex.emulator import executable

    both = threading.Barrier(2, timeout=30)
    real = executable.segments

    def segments(*arguments):
        both.wait()
        return real(*arguments)

    monkeypatch.setattr(executable, "segments", segments)
    emulated = Emulated(Program({f"t{n}": decoder(n) for n in (1, 7)}))
    threads = [threading.Thread(target=emulated.new_state, args=(f"t{n}",)) for n in (1, 7, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(emulated.blocks) == {"t1", "t7"}
