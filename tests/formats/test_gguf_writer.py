"""A file that we write is read equally by the `gguf` package and by our own reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import GGMLType, GGUFFile, GGUFWriter, ValueType

VALUES: dict[str, tuple[Any, ValueType | None, str]] = {
    "int": (7, None, "uint32"),
    "negative": (-7, None, "int32"),
    "big": (2**40, None, "uint64"),
    "big negative": (-(2**40), None, "int64"),
    "float": (0.5, None, "float32"),
    "bool": (True, None, "bool"),
    "text": ("tä\nxt", None, "string"),
    "uint8": (255, ValueType.UINT8, "uint8"),
    "double": (0.1, ValueType.FLOAT64, "float64"),
    "numpy": (np.int16(-3), None, "int16"),
    "strings": (["a", "", "ß"], None, "array of string"),
    "ints": ([1, -2], None, "array of int32"),
    "floats": ([0.5, 1], None, "array of float32"),
    "bools": ([True, False], None, "array of bool"),
    "array": (np.array([1, 2], np.uint64), None, "array of uint64"),
    "none": ([], ValueType.FLOAT32, "array of float32"),
}


def test_both_readers_see_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 5, 64)).astype(np.float32)
    with GGUFWriter(path, "llama") as writer:
        writer.add_metadata("general.alignment", 128)
        for key, (value, kind, _) in VALUES.items():
            writer.add_metadata(key, value, kind)
        for kind in (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0):
            writer.add_tensor(kind.name, weights, kind)
        writer.add_tensor("vector", weights[0, 0, :7])
        writer.add_tensor("scalar", np.array(3, np.float32))
        writer.add_tensor("chunks", (w for w in weights), GGMLType.Q8_0, weights.shape)

    ours = GGUFFile(path)
    theirs = gguf.GGUFReader(path)
    assert ours.metadata["general.architecture"] == "llama"
    for key, (value, _, type_name) in VALUES.items():
        found = ours.metadata[key]
        assert ours.metadata.types[key] == type_name
        assert list(found) == list(value) if isinstance(value, (list, np.ndarray)) else found == value
        if key != "none":  # the package cannot give the contents of an empty array
            contents = theirs.fields[key].contents()
            assert contents == (list(value) if isinstance(value, np.ndarray) else value)
    assert theirs.alignment == 128
    stored = {t.name: t for t in theirs.tensors}
    assert list(stored) == list(ours.tensors)
    for name, info in ours.tensors.items():
        assert info.type.name == stored[name].tensor_type.name
        assert info.offset == stored[name].data_offset
        assert info.shape[::-1] == tuple(stored[name].shape) or name == "scalar"
        assert ours.raw(name).tobytes() == stored[name].data.tobytes()
    assert np.array_equal(ours.array("F32"), weights)
    assert np.array_equal(ours.array("F16", np.float16), weights.astype(np.float16))
    assert ours.raw("Q8_0").tobytes() == ours.raw("chunks").tobytes()
    assert ours.array("scalar") == 3.0


finite = st.floats(-1e6, 1e6, width=32)


@settings(deadline=None)
@given(
    st.lists(
        finite | st.sampled_from([0.0, -0.0, 2.0**-140, 1e-38, 0.5, 63.5, -127.0]), min_size=32, max_size=32
    )
)
def test_q8_0_equals_the_package(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.getbasetemp() / "q8.gguf"
    block = np.array(values, np.float32)
    with GGUFWriter(path, "x") as writer:
        writer.add_tensor("w", block, GGMLType.Q8_0)
    found = GGUFFile(path).raw("w")
    if 0 < np.abs(block).max() < 1e-34:
        # 1/scale overflows: the reference writes arbitrary quants under a scale of zero.
        assert found[0, :2].tobytes() == b"\0\0"
        return
    expected = gguf.quants.quantize(block[None], gguf.GGMLQuantizationType.Q8_0)
    assert found.tobytes() == expected.tobytes()


def _pieces(*sizes: int) -> Any:
    return (np.ones(size, np.float32) for size in sizes)


BAD: dict[str, tuple[Callable[[GGUFWriter], None], str]] = {
    "key twice": (lambda w: w.add_metadata("general.architecture", "y"), "'general.architecture' is there"),
    "empty key": (lambda w: w.add_metadata("", 1), "key is empty"),
    "alignment": (lambda w: w.add_metadata("general.alignment", 48), "power of two, not 48"),
    "range": (lambda w: w.add_metadata("k", 256, ValueType.UINT8), "key 'k': 256 does not fit uint8"),
    "negative": (lambda w: w.add_metadata("k", -1, ValueType.UINT32), "does not fit uint32"),
    "fraction": (lambda w: w.add_metadata("k", 1.5, ValueType.INT32), "does not fit int32"),
    "float range": (lambda w: w.add_metadata("k", 1e300), "does not fit float32"),
    "65 bits": (lambda w: w.add_metadata("k", 2**64), "does not fit 64 bits"),
    "int as bool": (lambda w: w.add_metadata("k", 1, ValueType.BOOL), "does not fit bool"),
    "text as int": (lambda w: w.add_metadata("k", "1", ValueType.INT32), "key 'k'"),
    "mixed": (lambda w: w.add_metadata("k", ["a", 1]), "not of one type"),
    "empty array": (lambda w: w.add_metadata("k", []), "must be given"),
    "half": (lambda w: w.add_metadata("k", np.ones(2, np.float16)), "no value type for float16"),
    "matrix": (lambda w: w.add_metadata("k", np.ones((2, 2), np.float32)), "one dimension"),
    "tensor twice": (lambda w: [w.add_tensor("w", np.ones(1)) for _ in "ab"], "'w' is there already"),
    "no name": (lambda w: w.add_tensor("", np.ones(1)), "1 to 63 bytes"),
    "long name": (lambda w: w.add_tensor("n" * 64, np.ones(1)), "1 to 63 bytes"),
    "rank": (lambda w: w.add_tensor("w", np.ones((1,) * 5)), "cannot be stored"),
    "no elements": (lambda w: w.add_tensor("w", np.ones((3, 0))), "cannot be stored"),
    "row": (lambda w: w.add_tensor("w", np.ones((2, 48)), GGMLType.Q8_0), "cannot be stored as Q8_0"),
    "too few": (lambda w: w.add_tensor("w", _pieces(3), shape=(4,)), "has 4 elements, 3 or more"),
    "too many": (lambda w: w.add_tensor("w", _pieces(3, 3), shape=(4,)), "has 4 elements"),
    "half a block": (
        lambda w: w.add_tensor("w", _pieces(16, 16), GGMLType.Q8_0, (32,)),
        "no whole number of blocks",
    ),
    "beyond fp16": (
        lambda w: w.add_tensor("w", np.full(2, 7e4), GGMLType.F16),
        "'w': a number does not fit F16",
    ),
    "beyond Q8_0": (lambda w: w.add_tensor("w", np.full(32, 9e6), GGMLType.Q8_0), "does not fit Q8_0"),
    "nan in Q8_0": (lambda w: w.add_tensor("w", np.full(32, np.nan), GGMLType.Q8_0), "does not fit Q8_0"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_written_leaves_nothing_behind(case: str, tmp_path: Path) -> None:
    change, message = BAD[case]
    path = tmp_path / "m.gguf"

    def attempt() -> None:
        with GGUFWriter(path, "x") as writer:
            change(writer)

    with pytest.raises(InputError, match=message) as caught:
        attempt()
    assert caught.value.where == str(path)
    assert list(tmp_path.iterdir()) == []


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Q4_K"):
        GGUFWriter(tmp_path / "m.gguf", "x").add_tensor("w", np.ones(256), GGMLType.Q4_K)
