"""The executor: levels, roundings, rungs of work that must not change bits, and refusals."""

import numpy as np
import pytest

from anex.emulator import Emulated, Level
from anex.emulator.weights import aliased
from anex.errors import InputError, UnsupportedError
from anex.mil.blob import BlobFile, BlobWriter
from anex.mil.builder import Builder
from anex.mil.ir import Literal, Program
from anex.mil.types import DType, TensorType

F16 = DType.FP16


def run(function, level=Level.FP16, blob=None, **inputs):
    emulated = Emulated(Program({function.name: function}), blob, level)
    return {k: np.asarray(v) for k, v in emulated.run(function.name, inputs).items()}


def chain(*kinds: str):
    b = Builder("main")
    y = b.input("x", F16, (1, 2048))
    for kind in kinds:
        y = b.op(kind, x=y)
    return b.finish({"out": y})


def test_each_fp16_result_is_rounded_once_and_intermediates_are_not_wide():
    """exp then log: with a rounding between them the result is that of two fp16 ops."""
    x = np.linspace(-5, 5, 2048, dtype=np.float16)[None]
    b = Builder("main")
    v = b.input("x", F16, (1, 2048))
    function = b.finish({"out": b.op("log", x=b.op("exp", x=v), epsilon=0.0)})
    rounded = np.exp(x.astype(np.float64)).astype(np.float16)
    expected = np.log(rounded.astype(np.float64)).astype(np.float16)
    assert np.array_equal(run(function, x=x)["out"], expected)


def test_level_fp32_rounds_nothing():
    x = np.linspace(-5, 5, 2048, dtype=np.float32)[None]
    got = run(chain("exp", "sqrt"), Level.FP32, x=x)["out"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.sqrt(np.exp(x.astype(np.float64))), rtol=1e-6)


def test_subnormal_halves_survive():
    x = np.full((1, 2048), 2.0**-14, np.float16)
    b = Builder("main")
    v = b.input("x", F16, (1, 2048))
    function = b.finish({"out": b.op("mul", x=v, y=2.0**-9)})
    assert (run(function, x=x)["out"] == np.float16(2.0**-23)).all()


def mlp(layers: int, tmp_path):
    """Layers of one shape with weights in a blob: what the outliner turns into one block."""
    rng = np.random.default_rng(5)
    weights = (rng.standard_normal((layers, 32, 32, 1, 1)) / 4).astype(np.float16)
    path = tmp_path / "weight.bin"
    with BlobWriter(path) as writer:
        refs = [writer.add(w, F16) for w in weights]
    functions = {}
    for count in (1, 7):
        b = Builder(f"t{count}")
        y = b.input("x", F16, (1, 32, 1, count))
        for ref in refs:
            w = b.const(Literal(TensorType(F16, (32, 32, 1, 1)), ref), name="w")
            h = b.op(
                "conv",
                x=y,
                weight=w,
                strides=[1, 1],
                pad_type="valid",
                pad=[0] * 4,
                dilations=[1, 1],
                groups=1,
            )
            for kind in ("abs", "sqrt", "square", "tanh", "sigmoid"):
                h = b.op(kind, x=h)
            y = b.op("add", x=y, y=b.op("sub", x=h, y=0.5))
        functions[f"t{count}"] = b.finish({"out": y})
    return Program(functions), BlobFile(path), weights


def reference(weights, x):
    y = x.astype(np.float64)
    f16 = lambda a: a.astype(np.float16).astype(np.float64)  # noqa: E731
    for w in weights[..., 0, 0].astype(np.float64):
        h = f16(np.einsum("oi,bihs->bohs", w, y))
        h = f16(np.abs(h))
        h = f16(np.sqrt(h))
        h = f16(np.square(h))
        h = f16(np.tanh(h))
        h = f16(1 / (1 + np.exp(-h)))
        y = f16(y + f16(h - 0.5))
    return y


def test_a_repeated_block_with_weights_in_a_blob(tmp_path):
    program, blob, weights = mlp(6, tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 32, 1, 7)).astype(np.float16)
    emulated = Emulated(program, blob)
    got = np.asarray(emulated.run("t7", {"x": x})["out"])
    assert (8, 6) in emulated.blocks["t7"]
    # A sum near a rounding border may fall to either side: a few values, by one unit.
    np.testing.assert_allclose(got, reference(weights, x), rtol=0, atol=2**-9)


@pytest.mark.skipif(not Emulated(Program({}), None).native, reason="holds for the native matmul")
def test_a_column_has_the_same_bits_alone_and_among_others(tmp_path):
    program, blob, _ = mlp(6, tmp_path)
    x = np.random.default_rng(1).standard_normal((1, 32, 1, 7)).astype(np.float16)
    emulated = Emulated(program, blob)
    together = np.asarray(emulated.run("t7", {"x": x})["out"])
    alone = np.asarray(emulated.run("t1", {"x": np.ascontiguousarray(x[..., 3:4])})["out"])
    assert np.array_equal(together[..., 3:4], alone)


def test_weights_are_shared_and_alias_the_memory_map(tmp_path):
    _, blob, weights = mlp(2, tmp_path)
    record = next(iter(blob.records()))
    view = blob.array(Literal(TensorType(F16, (32, 32)), _ref(record)))
    array = aliased(view)
    assert array.unsafe_buffer_pointer() == view.ctypes.data
    assert np.array_equal(np.asarray(array), weights[0, :, :, 0, 0])


def _ref(record):
    from anex.mil.ir import BLOB_PATH, BlobRef

    return BlobRef(BLOB_PATH, record.data_offset - 64)


def test_what_cannot_be_executed_is_refused_by_name():
    b = Builder("main")
    b.input_of("s", TensorType(F16, (1, None)))
    x = b.input("x", F16, (1, 32))
    function = b.finish({"out": b.op("exp", x=x)})
    with pytest.raises(UnsupportedError, match="unknown dimension"):
        Emulated(Program({"main": function}), None).inputs("main")
    with pytest.raises(InputError, match="no function 'other'"):
        Emulated(Program({"main": function}), None).inputs("other")
    with pytest.raises(UnsupportedError, match="fp8"):
        Level.named("fp8")
