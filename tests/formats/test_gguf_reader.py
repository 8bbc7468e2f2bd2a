"""The GGUF reader against the `gguf` package's writer, and against files that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.errors import AnexError, InputError, UnsupportedError
from anex.formats.gguf import GGMLType, GGUFFile, ValueType

U32, STRING, ARRAY, BOOL = ValueType.UINT32, ValueType.STRING, ValueType.ARRAY, ValueType.BOOL


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(element: int, count: int, data: bytes) -> bytes:
    return struct.pack("<IQ", element, count) + data


def tensor(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_of(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file, spelt out byte by byte."""
    pairs, tensors = pairs or [], tensors or []
    stated = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, *stated) + b"".join(pairs + tensors)
    return head + bytes(-len(head) % alignment) + data if tensors else head


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], GGUFFile]:
    def write(data: bytes) -> GGUFFile:
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        return GGUFFile(path)

    return write


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {"uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1,
               "int32": -(2**31), "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.1,
               "float64": 0.1, "bool": True, "string": "ä\n\0"}  # fmt: skip
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.strings", ["", "日本語", "a\r\nb", "\U0001f469\u200d\U0001f4bb"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, -1.5])
    writer.add_array("x.bools", [True, False])
    weights = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    writer.add_tensor("w32", weights)
    writer.add_tensor("w16", weights.astype(np.float16))
    quantised = gguf.quants.quantize(np.ones((3, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()

    with GGUFFile(path) as file:
        meta = file.metadata
        assert meta["general.architecture"] == "llama"
        for kind, value in numbers.items():
            expected = float(np.float32(0.1)) if kind == "float32" else value
            assert meta[f"x.{kind}"] == expected
            assert type(meta[f"x.{kind}"]) is type(expected)
            assert meta.types[f"x.{kind}"] == kind
        assert meta["x.strings"] == ("", "日本語", "a\r\nb", "\U0001f469\u200d\U0001f4bb")
        assert meta.types["x.strings"] == "array of string"
        for key, dtype, expected in (
            ("x.ints", "<i4", [1, -2, 3]), ("x.floats", "<f4", [0.5, -1.5]), ("x.bools", "?", [True, False]),
        ):  # fmt: skip
            assert meta[key].dtype == dtype
            assert meta[key].tolist() == expected
            assert not meta[key].flags.writeable
        assert len(meta) == len(list(meta)) == 17
        assert list(file.tensors) == ["w32", "w16", "q8"]
        assert [t.shape for t in file.tensors.values()] == [(2, 3, 4), (2, 3, 4), (3, 64)]
        assert file.tensors["q8"].type is GGMLType.Q8_0
        assert np.array_equal(file.array("w32"), weights)
        assert np.array_equal(file.array("w16", np.float16), weights)
        assert np.array_equal(file.rows("w32", 4, 6), weights.reshape(6, 4)[4:6])
        assert np.array_equal(
            file.array("q8"), gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
        )
        assert file.raw("q8").tobytes() == quantised.tobytes()
        view = file.array("w32")
        assert not view.flags.writeable
    assert view[1, 2, 3] == 23.0  # the map outlives the file object
    with pytest.raises(ValueError, match="closed"):
        file.array("w32")


@pytest.mark.parametrize("max_bytes", [1, 12, 24, 25, 1000])
def test_chunks_cover_the_rows_in_order(opened: Callable[[bytes], GGUFFile], max_bytes: int) -> None:
    values = np.arange(30, dtype=np.float32)
    file = opened(file_of([], [tensor("w", [3, 5, 2])], values.tobytes()))
    chunks = list(file.chunks("w", np.float32, max_bytes))
    assert np.array_equal(np.concatenate(chunks), values.reshape(10, 3))
    assert all(c.nbytes <= max(max_bytes, 12) for c in chunks)
    assert len(chunks) == -(-10 // max(1, max_bytes // 12))


def test_version_2_nested_arrays_scalar_tensor_and_alignment(opened: Callable[[bytes], GGUFFile]) -> None:
    nested = array(ARRAY, 2, array(U32, 2, struct.pack("<II", 1, 2)) + array(STRING, 1, text("x")))
    file = opened(
        file_of(
            [pair("general.alignment", U32, struct.pack("<I", 64)), pair("n", ARRAY, nested)],
            [tensor("s", []), tensor("w", [2], 0, 64), tensor("same", [2], 0, 64)],
            struct.pack("<f60xff", 7.0, 8.0, 9.0),
            version=2,
            alignment=64,
        )
    )
    assert file.version == 2
    assert [list(v) for v in file.metadata["n"]] == [[1, 2], ["x"]]
    assert file.array("s").shape == ()
    assert file.array("s") == 7.0
    assert file.array("w").tolist() == file.array("same").tolist() == [8.0, 9.0]
    assert file.tensors["w"].offset % 64 == 0


def test_unknown_tensor_and_rows_outside(opened: Callable[[bytes], GGUFFile]) -> None:
    file = opened(file_of([], [tensor("w", [4])], bytes(16)))
    with pytest.raises(InputError, match="no tensor 'v'"):
        file.array("v")
    with pytest.raises(IndexError):
        file.rows("w", 0, 2)
    with pytest.raises(ValueError, match="float64"):
        file.rows("w", 0, 1, np.float64)


HUGE = 2**63
WEIGHT = struct.pack("<f", 1.0) + bytes(28)
BAD: dict[str, tuple[bytes, type[AnexError], str]] = {
    "empty": (b"", InputError, "ends at byte 0"),
    "magic": (file_of(magic=b"ABCD"), InputError, "not a GGUF file"),
    "zip": (b"PK\x03\x04" + bytes(30), InputError, "it is a zip archive"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1", InputError, "Git LFS pointer"),
    "version 0": (file_of(version=0), UnsupportedError, "GGUF version 0"),
    "version 1": (file_of(version=1), UnsupportedError, "GGUF version 1"),
    "version 4": (file_of(version=4), UnsupportedError, "GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedError, "big-endian GGUF"),
    "header only half": (file_of()[:14], InputError, "ends at byte 14"),
    "tensor count": (file_of(counts=(HUGE, 0)), InputError, f"{HUGE} tensors"),
    "key count": (file_of(counts=(0, HUGE)), InputError, f"{HUGE} metadata keys"),
    "one key too many": (file_of([pair("a", BOOL, b"\1")], counts=(0, 2)), InputError, "2 metadata keys"),
    "key length": (file_of([struct.pack("<Q", HUGE) + bytes(20)]), InputError, "metadata key at byte 24"),
    "empty key": (file_of([pair("", U32, bytes(4))]), InputError, "0 characters"),
    "key not utf-8": (file_of([pair(b"\xff", U32, bytes(4))]), InputError, "metadata key at byte 24 is not"),
    "duplicate key": (file_of([pair("k", U32, bytes(4))] * 2), InputError, "key 'k' appears twice"),
    "value type": (file_of([pair("k", 13, bytes(4))]), InputError, "key 'k' has the unknown value type 13"),
    "value cut": (
        file_of([pair("long key", ValueType.UINT64, bytes(7))]),
        InputError,
        "value of key 'long key'",
    ),
    "bool": (file_of([pair("k", BOOL, b"\2")]), InputError, "key 'k' is a bool of value 2"),
    "bools": (file_of([pair("k", ARRAY, array(BOOL, 2, b"\0\3"))]), InputError, "key 'k' holds a bool"),
    "string length": (file_of([pair("k", STRING, struct.pack("<Q", HUGE))]), InputError, "value of key 'k'"),
    "string not utf-8": (
        file_of([pair("k", STRING, text(b"\xc3"))]),
        InputError,
        "key 'k' at byte .* not UTF-8",
    ),
    "array count": (file_of([pair("k", ARRAY, array(U32, HUGE, b""))]), InputError, "elements of key 'k'"),
    "array overflow": (
        file_of([pair("k", ARRAY, array(U32, 2**62, bytes(8)))]),
        InputError,
        "elements of key",
    ),
    "array cut": (file_of([pair("k", ARRAY, array(U32, 2, bytes(7)))]), InputError, "2 elements of key 'k'"),
    "array type": (file_of([pair("k", ARRAY, array(99, 1, bytes(8)))]), InputError, "value type 99"),
    "strings count": (
        file_of([pair("k", ARRAY, array(STRING, HUGE, b""))]),
        InputError,
        "elements of key 'k'",
    ),
    "strings cut": (
        file_of([pair("k", ARRAY, array(STRING, 2, text("a") + struct.pack("<Q", 1)))]),
        InputError,
        "inside the strings of key 'k'",
    ),
    "strings overflow": (
        file_of([pair("k", ARRAY, array(STRING, 2, struct.pack("<QQ", 2**64 - 8, 0)))]),
        InputError,
        "inside the strings of key 'k'",
    ),
    "nesting": (
        file_of(
            [pair("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, array(ARRAY, 1, bytes(12))))))]
        ),
        InputError,
        "nests arrays deeper than 4",
    ),
    "control characters": (
        file_of([pair("a\nb\x1b[2J", U32, bytes(4))] * 2),
        InputError,
        r"key 'a\\nb\\x1b\[2J' appears twice",
    ),
    "alignment type": (
        file_of([pair("general.alignment", ValueType.UINT64, struct.pack("<Q", 32))]),
        InputError,
        "is a uint64",
    ),
    "alignment 0": (file_of([pair("general.alignment", U32, bytes(4))]), InputError, "not a power of two"),
    "alignment 24": (
        file_of([pair("general.alignment", U32, struct.pack("<I", 24))]),
        InputError,
        "is 24, not a power of two",
    ),
    "no name": (file_of([], [tensor("", [1])], WEIGHT), InputError, "has no name"),
    "twice": (file_of([], [tensor("w", [1])] * 2, WEIGHT), InputError, "tensor 'w' appears twice"),
    "name not utf-8": (file_of([], [tensor(b"\xff", [1])], WEIGHT), InputError, "tensor name at byte 24"),
    "rank": (file_of([], [tensor("w", [1] * 5)], WEIGHT), InputError, "tensor 'w' has 5 dimensions"),
    "no elements": (file_of([], [tensor("w", [4, 0])], WEIGHT), InputError, "tensor 'w' has no elements"),
    "product overflow": (
        file_of([], [tensor("w", [2**32, 2**32])], WEIGHT),
        InputError,
        "tensor 'w' takes bytes",
    ),
    "dimension": (file_of([], [tensor("w", [2**64 - 1])], WEIGHT), InputError, "tensor 'w' takes bytes"),
    "past the end": (file_of([], [tensor("w", [9])], WEIGHT), InputError, "takes bytes 64 to 100, .* has 96"),
    "offset": (file_of([], [tensor("w", [1], 0, 2**64 - 32)], WEIGHT), InputError, "tensor 'w' takes bytes"),
    "unaligned": (
        file_of([], [tensor("w", [1], 0, 4)], WEIGHT),
        InputError,
        "offset 4, not a multiple of 32",
    ),
    "block": (file_of([], [tensor("w", [16], 8)], bytes(64)), InputError, "rows of 16 elements, Q8_0 needs"),
    "removed type": (file_of([], [tensor("w", [32], 31)], WEIGHT), UnsupportedError, r"Q4_0_4_4 \(31\)"),
    "unknown type": (file_of([], [tensor("w", [32], 999)], WEIGHT), UnsupportedError, "ggml type 999"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_lies_is_refused_in_one_line(case: str, opened: Callable[[bytes], GGUFFile]) -> None:
    data, kind, message = BAD[case]
    with pytest.raises(kind, match=message) as caught:
        opened(data)
    assert "m.gguf" in caught.value.where
    assert "\n" not in str(caught.value)


def test_strings_are_checked_when_they_are_read(opened: Callable[[bytes], GGUFFile]) -> None:
    file = opened(file_of([pair("k", ARRAY, array(STRING, 2, text("ok") + text(b"\xe2\x82")))]))
    with pytest.raises(InputError, match="key 'k': string 1 is not UTF-8"):
        file.metadata["k"]


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    strings = array(STRING, 3, text("a") + text("bc") + text(""))
    whole = file_of([pair("s", ARRAY, strings), pair("f", 6, bytes(4))], [tensor("w", [3])], bytes(12))
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    GGUFFile(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            GGUFFile(path)


def split_model(folder: Path, parts: int = 3) -> list[Path]:
    """Parts as llama.cpp's gguf-split makes them: all metadata in the first, one tensor in each."""
    paths = []
    for number in range(parts):
        pairs = [
            pair("split.no", ValueType.UINT16, struct.pack("<H", number)),
            pair("split.count", ValueType.UINT16, struct.pack("<H", parts)),
            pair("split.tensors.count", ValueType.INT32, struct.pack("<i", parts)),
        ]
        if number == 0:
            pairs.insert(0, pair("general.architecture", STRING, text("llama")))
        path = folder / f"m-{number + 1:05}-of-{parts:05}.gguf"
        path.write_bytes(file_of(pairs, [tensor(f"w{number}", [2])], struct.pack("<ff", number, 1)))
        paths.append(path)
    return paths


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_part_opens_the_whole_model(tmp_path: Path, which: int) -> None:
    paths = split_model(tmp_path)
    file = GGUFFile(paths[which])
    assert file.files == tuple(paths)
    assert file.metadata["general.architecture"] == "llama"
    assert {name: file.array(name).tolist() for name in file.tensors} == {
        f"w{i}": [float(i), 1.0] for i in range(3)
    }
    assert [t.file for t in file.tensors.values()] == paths
    assert file.nbytes == sum(p.stat().st_size for p in paths)


def test_the_packages_own_split_files(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    weights = {f"w{i}": np.full((2, 3), i, np.float32) for i in range(5)}
    for name, value in weights.items():
        writer.add_tensor(name, value)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    file = GGUFFile(tmp_path / "m-00002-of-00003.gguf")
    assert {n: file.array(n).tolist() for n in file.tensors} == {n: v.tolist() for n, v in weights.items()}


def _rename(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("model.gguf"))


def _remove(paths: list[Path]) -> Path:
    paths[1].unlink()
    return paths[2]


def _copy_over(paths: list[Path]) -> Path:
    paths[2].write_bytes(paths[1].read_bytes())
    return paths[0]


def _patch(old: bytes, new: bytes, part: int = 1) -> Callable[[list[Path]], Path]:
    def change(paths: list[Path]) -> Path:
        data = paths[part].read_bytes()
        assert data.count(old) == 1
        paths[part].write_bytes(data.replace(old, new))
        return paths[0]

    return change


BAD_SPLITS: dict[str, tuple[Callable[[list[Path]], Path], str]] = {
    "renamed": (_rename, "one of 3 parts, but its name"),
    "missing": (_remove, "part 2 of 3 is missing: m-00002-of-00003.gguf"),
    "wrong part": (_copy_over, "'split.no' is 1, its name says 2"),
    "same tensor": (_patch(text("w1"), text("w0")), "tensor 'w0' is also in m-00001-of-00003.gguf"),
    "count": (_patch(struct.pack("<IH", 2, 3), struct.pack("<IH", 2, 4)), "'split.count' is 4"),
    "tensors": (_patch(struct.pack("<Ii", 5, 3), struct.pack("<Ii", 5, 4), 0), "hold 3 tensors"),
    "not a number": (
        _patch(struct.pack("<IH", 2, 3), struct.pack("<IB", 7, 1) + b"x", 0),
        "characters|metadata key|no integer",
    ),
}


@pytest.mark.parametrize("case", BAD_SPLITS)
def test_a_split_model_that_does_not_fit_together_is_refused(case: str, tmp_path: Path) -> None:
    change, message = BAD_SPLITS[case]
    path = change(split_model(tmp_path))
    with pytest.raises(InputError, match=message):
        GGUFFile(path)


SEED = file_of(
    [
        pair("general.architecture", STRING, text("llama")),
        pair("tokens", ARRAY, array(STRING, 4, b"".join(map(text, ("a", "", "bcd", "é"))))),
        pair("scores", ARRAY, array(ValueType.FLOAT32, 3, bytes(12))),
        pair("nested", ARRAY, array(ARRAY, 1, array(BOOL, 2, b"\0\1"))),
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("eps", ValueType.FLOAT64, bytes(8)),
    ],
    [tensor("w", [4, 2]), tensor("q", [32, 2], GGMLType.Q8_0, 32), tensor("k", [256], GGMLType.Q6_K, 128)],
    bytes(range(256)) + bytes(100),
)
NUMBERS = st.sampled_from(
    [0, 1, 2, 7, 8, 9, 12, 13, 31, 255, 2**16, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
)
BYTES = st.binary(min_size=1, max_size=4)
WORDS = st.builds(struct.pack, st.just("<Q"), NUMBERS)
CHANGES = st.lists(st.tuples(st.integers(0, len(SEED)), BYTES | WORDS), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(CHANGES, st.integers(0, len(SEED)))
def test_mutations_raise_our_errors_only(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(SEED)
    for position, new in changes:
        data[position : position + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(data[: len(data) - cut] if cut % 4 == 0 else data)
    assert "\n" not in read_all(path)


def read_all(path: Path) -> str:
    """Read everything; the message of our own error, or nothing."""
    try:
        with GGUFFile(path) as file:
            values: dict[str, Any] = dict(file.metadata)
            assert len(values) == len(file.metadata)
            for name in file.tensors:
                sum(chunk.nbytes for chunk in file.chunks(name, np.float16))
    except AnexError as error:
        return str(error)
    return ""
