"""The safetensors reader against the `safetensors` package, and against files and folders that lie."""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.errors import AnexError, InputError, UnsupportedError
from anex.formats.safetensors import SafetensorsFile, SafetensorsFolder, read_json

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32,
    "F64": np.float64, "C64": np.complex64, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip


def file_of(header: str | bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    """A file, spelt out."""
    text = json.dumps(header) if isinstance(header, dict) else header
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], SafetensorsFile]:
    def write(data: bytes) -> SafetensorsFile:
        path = tmp_path / "m.safetensors"
        path.write_bytes(data)
        return SafetensorsFile(path)

    return write


# --- what the package writes ------------------------------------------------------


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(DTYPES[draw(st.sampled_from(sorted(DTYPES)))])
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    seed = draw(st.integers(0, 2**32 - 1))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, count, np.uint8)
    return raw.view(dtype).reshape(shape)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda n: n != "__metadata__")


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(NAMES, arrays(), max_size=5),
    st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1),
)
def test_random_tensors_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Any], metadata: dict[str, str] | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(safetensors.numpy.save(tensors, metadata))
    with SafetensorsFile(path) as file:
        assert file.metadata == (metadata or {})
        assert set(file.tensors) == set(tensors)
        assert file.nbytes == path.stat().st_size
        assert file.files == (path,)
        for name, expected in tensors.items():
            info = file.tensors[name]
            assert info.shape == expected.shape
            assert np.dtype(DTYPES[info.storage]) == expected.dtype
            assert (info.size, info.nbytes) == (expected.size, expected.nbytes)
            assert info.rows * info.width == expected.size or 0 in expected.shape
            found = file.stored(name)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()
            assert not found.flags.writeable
            assert file.raw(name).tobytes() == expected.tobytes()
            if info.type.is_float and info.storage != "F64":
                numbers = file.array(name)
                assert numbers.shape == expected.shape
                with np.errstate(invalid="ignore"):  # signalling NaN
                    wide = expected.astype(np.float64)
                assert np.array_equal(numbers, wide, equal_nan=True)


# --- numbers ----------------------------------------------------------------------


def eight_bits(exponent: int, bias: int, special: Callable[[int], float | None]) -> list[float]:
    """Every value of an 8-bit float with that many exponent bits, from the definition."""
    mantissa = 7 - exponent
    values = []
    for code in range(256):
        sign, e, m = (
            (-1.0) ** (code >> 7),
            code >> mantissa & ((1 << exponent) - 1),
            code & ((1 << mantissa) - 1),
        )
        plain = 2.0 ** (e - bias) * (1 + m / 2**mantissa) if e else 2.0 ** (1 - bias) * m / 2**mantissa
        given_ = special(code)
        values.append(sign * plain if given_ is None else given_)
    return values


def _e4m3(code: int) -> float | None:
    return float("nan") if code & 0x7F == 0x7F else None


def _e5m2(code: int) -> float | None:
    if code & 0x7C != 0x7C:
        return None
    return float("nan") if code & 3 else (float("-inf") if code & 0x80 else float("inf"))


@pytest.mark.parametrize(
    ("storage", "values"),
    [("F8_E4M3", eight_bits(4, 7, _e4m3)), ("F8_E5M2", eight_bits(5, 15, _e5m2))],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_8_bit_float(
    storage: str, values: list[float], dtype: Any, opened: Callable[[bytes], SafetensorsFile]
) -> None:
    file = opened(file_of({"w": tensor(storage, [16, 16], 0, 256)}, bytes(range(256))))
    expected = np.array(values).reshape(16, 16)
    found = file.array("w", dtype)
    assert found.dtype == dtype
    assert np.array_equal(found, expected, equal_nan=True)  # all of them are fp16 numbers
    assert np.array_equal(np.signbit(found[~np.isnan(found)]), np.signbit(expected[~np.isnan(expected)]))


def test_every_bfloat16(opened: Callable[[bytes], SafetensorsFile]) -> None:
    codes = np.arange(1 << 16, dtype=np.uint32)
    file = opened(file_of({"w": tensor("BF16", [256, 256], 0, 1 << 17)}, codes.astype("<u2").tobytes()))
    # A bfloat16 is the upper half of the float32 of the same value.
    expected = np.array([struct.unpack("<f", struct.pack("<I", int(c) << 16))[0] for c in codes])
    assert np.array_equal(file.array("w").reshape(-1), expected, equal_nan=True)
    with pytest.raises(InputError, match=r"tensor 'w': a number is beyond the range of float16 \(keep"):
        file.array("w", np.float16)
    rows = expected.reshape(256, 256)
    small = [r for r in range(256) if not ((np.abs(rows[r]) >= 65520) & np.isfinite(rows[r])).any()]
    assert len(small) > 100
    for row in small:
        with np.errstate(all="ignore"):
            once = rows[row].astype(np.float16)  # from float64: one rounding to nearest even
        assert np.array_equal(file.rows("w", row, row + 1, np.float16)[0], once, equal_nan=True)


def test_float64_is_rounded_once_and_overflow_is_refused(opened: Callable[[bytes], SafetensorsFile]) -> None:
    above_tie = 1 + 2.0**-11 + 2.0**-30  # through float32 this would become the tie, and then 1
    values = np.array([above_tie, -np.inf, np.nan, 65519.99, 2.0**-25 * 1.01, -0.0])
    file = opened(file_of({"w": tensor("F64", [6], 0, 48)}, values.tobytes()))
    expected = np.array([1 + 2.0**-10, -np.inf, np.nan, 65504, 2.0**-24, -0.0], np.float16)
    found = file.array("w", np.float16)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.signbit(found[5])
    file = opened(file_of({"w": tensor("F64", [1], 0, 8)}, np.array([1e39]).tobytes()))
    with pytest.raises(InputError, match="beyond the range of float32"):
        file.array("w")
    file = opened(file_of({"a": tensor("F16", [2], 0, 4)}, np.array([65504, np.inf], "<f2").tobytes()))
    assert np.array_equal(file.array("a"), [65504, np.inf])


@pytest.mark.parametrize("storage", ["I64", "I32", "U8", "BOOL", "C64"])
def test_what_is_no_float_is_not_read_as_one(
    storage: str, opened: Callable[[bytes], SafetensorsFile]
) -> None:
    size = np.dtype(DTYPES[storage]).itemsize
    file = opened(file_of({"w": tensor(storage, [2], 0, 2 * size)}, bytes(2 * size)))
    with pytest.raises(
        UnsupportedError, match=f"tensor 'w': not supported: reading safetensors type {storage}"
    ):
        file.array("w")
    assert np.array_equal(file.stored("w"), np.zeros(2, DTYPES[storage]))


def test_a_bool_is_0_or_1(opened: Callable[[bytes], SafetensorsFile]) -> None:
    with pytest.raises(InputError, match="neither 0 nor 1"):
        opened(file_of({"w": tensor("BOOL", [2], 0, 2)}, b"\1\2")).stored("w")


@pytest.mark.parametrize("max_bytes", [1, 12, 24, 25, 1000])
def test_chunks_cover_the_rows_in_order(opened: Callable[[bytes], SafetensorsFile], max_bytes: int) -> None:
    values = np.arange(30, dtype=np.float32)
    file = opened(file_of({"w": tensor("F32", [2, 5, 3], 0, 120)}, values.tobytes()))
    chunks = list(file.chunks("w", np.float32, max_bytes))
    assert np.array_equal(np.concatenate(chunks), values.reshape(10, 3))
    assert all(c.nbytes <= max(max_bytes, 12) for c in chunks)
    assert len(chunks) == -(-10 // max(1, max_bytes // 12))


def test_views_copies_rows_outside_and_after_close(opened: Callable[[bytes], SafetensorsFile]) -> None:
    header = json.dumps({"w": tensor("F32", [3, 2], 0, 24), "e": tensor("F32", [4, 0], 24, 24)})
    aligned = header + " " * (-len(header) % 8)
    values = np.arange(6, dtype=np.float32)
    file = opened(file_of(aligned, values.tobytes()))
    view = file.rows("w", 1, 3)
    assert not view.flags.owndata
    assert not view.flags.writeable
    assert file.array("e").shape == (4, 0)
    assert [c.shape for c in file.chunks("e")] == [(4, 0)]
    with pytest.raises(IndexError):
        file.rows("w", 2, 4)
    with pytest.raises(ValueError, match="float32 or float16"):
        file.array("w", np.float64)
    with pytest.raises(InputError, match=r"no tensor 'v\\n'"):
        file.tensor("v\n")
    file.close()
    assert np.array_equal(view, values.reshape(3, 2)[1:])  # the map outlives the file object
    with pytest.raises(ValueError, match="closed"):
        file.array("w")
    odd = opened(file_of(aligned + " ", values.tobytes()))  # data that is not aligned to its type
    assert odd.array("w").flags.aligned
    assert np.array_equal(odd.array("w").reshape(-1), values)


def test_the_fingerprint_tells_files_apart(opened: Callable[[bytes], SafetensorsFile]) -> None:
    one = {"w": tensor("F32", [2], 0, 8)}
    prints = {
        opened(file_of(header, data)).fingerprint()
        for header, data in (
            (one, bytes(8)),
            (one, bytes(7) + b"\1"),
            ({"v": one["w"]}, bytes(8)),
            ({"w": tensor("I32", [2], 0, 8)}, bytes(8)),
        )
    }
    assert len(prints) == 4
    assert opened(file_of(one, bytes(8))).fingerprint() in prints


def test_a_large_file_costs_no_memory(tmp_path: Path) -> None:
    rows, width = 1 << 18, 1 << 15
    path = tmp_path / "m.safetensors"
    with path.open("wb") as out:
        out.write(file_of({"w": tensor("BF16", [rows, width], 0, 2 * rows * width)}))
        out.truncate(out.tell() + 2 * rows * width)  # 16 GiB, none of it on the disk
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    with SafetensorsFile(path) as file:
        assert not file.rows("w", rows - 1, rows, np.float16).any()
        assert file.fingerprint()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before < 64 << 20


# --- files that lie ---------------------------------------------------------------

F32 = tensor("F32", [2], 0, 8)
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "a file of 0 bytes is no safetensors file"),
    "short": (b"\1\0\0\0\0\0\0\0{", "a file of 9 bytes"),
    "length beyond the file": (file_of({}, length=99), r"is 99 bytes long, the file has 10 \(an inc"),
    "length beyond the limit": (file_of({}, length=1 << 62), "states a header of 4611686018427387904 bytes"),
    "no object": (file_of("[1, 2]"), "its header is no JSON object"),
    "space in front": (file_of(" {}"), "its header is no JSON object"),
    "cut object": (file_of('{"w": {'), "header:1:8: not JSON"),
    "text after": (file_of("{}x"), "header:1:3: not JSON: Extra data"),
    "zeros after": (file_of("{}\0\0"), "not JSON: Extra data"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not UTF-8 at byte 2"),
    "NaN": (file_of('{"w": NaN}'), "NaN is no JSON number"),
    "1e999": (file_of('{"w": 1e999}'), "the number 1e999 is too large"),
    "long integer": (file_of('{"w": ' + "1" * 5000 + "}"), "not JSON"),
    "deep": (file_of('{"w": ' + "[" * 100000 + "]" * 100000 + "}"), "nested deeper than 32"),
    "rather deep": (file_of('{"w": ' + "[" * 40 + "]" * 40 + "}"), "nested deeper than 32"),
    "name twice": (
        file_of(json.dumps({"w": F32, "v": F32}).replace("v", "w"), bytes(8)),
        "the key 'w' appears twice",
    ),
    "field twice": (
        file_of('{"w": {"dtype": "F32", "dtype": "F32", "shape": [], "data_offsets": [0, 4]}}', bytes(4)),
        "the key 'dtype' appears twice",
    ),
    "metadata no map": (file_of({"__metadata__": []}), "'__metadata__' is no map of texts"),
    "metadata number": (file_of({"__metadata__": {"a": 1}}), "'__metadata__' is no map of texts"),
    "entry no map": (file_of({"w\n": 1}), r"tensor 'w\\n': its description"),
    "field missing": (file_of({"w": {"dtype": "F32", "shape": []}}), "its description is not made of"),
    "field too many": (file_of({"w": {**F32, "x": 1}}, bytes(8)), "its description is not made of"),
    "dtype number": (file_of({"w": tensor(1, [], 0, 4)}, bytes(4)), "its dtype is no text"),
    "shape text": (file_of({"w": tensor("F32", "2", 0, 8)}, bytes(8)), "its shape is no list"),
    "shape negative": (file_of({"w": tensor("F32", [-1, -2], 0, 8)}, bytes(8)), "its shape is no list"),
    "shape float": (file_of({"w": tensor("F32", [2.0], 0, 8)}, bytes(8)), "its shape is no list"),
    "shape bool": (file_of({"w": tensor("F32", [True], 0, 4)}, bytes(4)), "its shape is no list"),
    "shape too long": (file_of({"w": tensor("F32", [1] * 33, 0, 4)}, bytes(4)), "at most 32 sizes"),
    "shape vast": (file_of({"w": tensor("F32", [1 << 62, 0], 0, 0)}), "more than 72057594037927936 elements"),
    "shape overflow": (file_of({"w": tensor("F32", [1 << 32, 1 << 32], 0, 0)}), "elements"),
    "one offset": (file_of({"w": {**F32, "data_offsets": [0]}}, bytes(8)), "no begin and end"),
    "offsets reversed": (file_of({"w": tensor("F32", [2], 8, 0)}, bytes(8)), "no begin and end"),
    "offset negative": (file_of({"w": tensor("F32", [2], -8, 0)}, bytes(8)), "no begin and end"),
    "size": (file_of({"w": tensor("F32", [3], 0, 8)}, bytes(8)), r"F32 of shape \[3\] takes 12 bytes, .* 8"),
    "hole in front": (file_of({"w": tensor("F32", [2], 8, 16)}, bytes(16)), "leaves a hole after the header"),
    "hole between": (
        file_of({"a": F32, "b": tensor("U8", [1], 9, 10)}, bytes(10)),
        "tensor 'b': its data leaves a hole after tensor 'a'",
    ),
    "overlap": (
        file_of({"a": F32, "b": tensor("F32", [2], 4, 12)}, bytes(12)),
        "tensor 'b': its data overlaps tensor 'a'",
    ),
    "same place": (file_of({"a": F32, "b": F32}, bytes(8)), "overlaps"),
    "cut data": (file_of({"w": F32}, bytes(7)), r"end at byte \d+, the file has \d+ \(an incomplete"),
    "data left over": (file_of({"w": F32}, bytes(11)), "3 bytes after the last tensor"),
    "GGUF": (b"GGUF\3" + bytes(100), "it is a GGUF file"),
    "zip": (b"PK\x03\x04" + bytes(100), "it is a zip archive, perhaps a PyTorch pickle"),
    "pickle": (b"\x80\x02}q\0." + bytes(100), "it is a Python pickle"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    "page": (b"<!DOCTYPE html><html></html>", "it is a text, perhaps an error page"),
    "index": (b'{"weight_map": {"w": "a.safetensors"}}', "it is a JSON text"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_a_file_that_lies_is_refused_in_one_line(
    case: str, opened: Callable[[bytes], SafetensorsFile]
) -> None:
    data, message = LIES[case]
    with pytest.raises(InputError, match=message) as caught:
        opened(data)
    assert "m.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not accepted_by_package(data) or case in STRICTER


STRICTER = {"space in front", "name twice", "field too many", "field twice", "shape too long", "shape vast"}
"""What the package lets through and we do not, each without meaning in a model."""


def accepted_by_package(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


@pytest.mark.parametrize("storage", ["F4", "F6_E2M3", "F6_E3M2", "INT4", "f32", "", "X" * 1000])
def test_unknown_types_are_named(storage: str, opened: Callable[[bytes], SafetensorsFile]) -> None:
    with pytest.raises(
        UnsupportedError, match=f"tensor 'w': not supported: safetensors type '{storage[:70]}"
    ):
        opened(file_of({"w": tensor(storage, [2], 0, 1)}, bytes(1)))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        SafetensorsFile(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="folder"):
        SafetensorsFile(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UnsupportedError, match="PyTorch pickles"):
        SafetensorsFile(tmp_path / "pytorch_model.bin")


SEED = safetensors.numpy.save(
    {
        "model.embed": np.arange(12, dtype=np.float16).reshape(3, 4),
        "norm": np.ones(3, np.float32),
        "scalar": np.array(2.5, np.float64),
        "none": np.zeros((0, 2), np.int64),
        "b": np.ones((2, 2), ml_dtypes.bfloat16),
    },
    {"format": "pt"},
)
WORDS = st.sampled_from(
    [b"[", b"]", b"{", b"}", b'"', b",", b"0", b"-1", b"1e9", b"true", b"null", b"99999999999999999999",
     b"[0,0]", b'"F32"', b'"shape"', b'"BF16"', b" ", b"\0", b"\\u0000", b"\xff", b'"norm":']
)  # fmt: skip
CHANGES = st.lists(
    st.tuples(st.integers(0, len(SEED)), st.binary(min_size=1, max_size=3) | WORDS, st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(CHANGES, st.integers(0, 4 * len(SEED)))
def test_mutations_are_refused_by_us_where_the_package_refuses(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes, bool]], cut: int
) -> None:
    data = bytearray(SEED)
    for position, new, replace in changes:
        data[position : position + len(new) * replace] = new
    data = data[:cut]
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(data)
    try:
        with SafetensorsFile(path) as file:
            found = {name: (i.storage, i.shape, file.raw(name).tobytes()) for name, i in file.tensors.items()}
    except AnexError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal
    if refusal:
        return
    expected = {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in safetensors.deserialize(bytes(data))
    }
    assert found == expected


# --- folders ----------------------------------------------------------------------


def shard(path: Path, **tensors: Any) -> None:
    path.write_bytes(safetensors.numpy.save({k: np.asarray(v, np.float32) for k, v in tensors.items()}))


def index(folder: Path, weight_map: Any, **more: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map, **more}))


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    shard(tmp_path / A, x=[1, 2], y=[[3]])
    shard(tmp_path / B, z=[4])
    index(tmp_path, {"x": A, "y": A, "z": B}, metadata={"total_size": 12345})
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eps": 1e-5}')
    return tmp_path


def test_a_sharded_folder_reads_as_one(sharded: Path) -> None:
    with SafetensorsFolder(sharded) as folder:
        assert folder.files == (sharded / A, sharded / B)
        assert folder.nbytes == sum(path.stat().st_size for path in folder.files)
        assert {name: t.file.name for name, t in folder.tensors.items()} == {"x": A, "y": A, "z": B}
        assert folder.array("z").tolist() == [4]
        assert folder.rows("y", 0, 1, np.float16).tolist() == [[3]]
        assert folder.config == {"model_type": "llama", "eps": 1e-5}
        assert folder.tokenizer is None
        (sharded / "tokenizer.json").write_text("{}")
        (sharded / "tokenizer_config.json").write_text("{}")
        (sharded / "generation_config.json").write_text("{}")
        assert folder.tokenizer == sharded / "tokenizer.json"
        assert folder.tokenizer_config == sharded / "tokenizer_config.json"
        assert folder.generation_config == sharded / "generation_config.json"


def test_a_single_file_folder_and_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    shard(tmp_path / "blobs" / "abc", x=[1])
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../blobs/abc")  # as the hub's own cache does
    with SafetensorsFolder(folder) as model:
        assert model.array("x").tolist() == [1]
        with pytest.raises(InputError, match=r"config\.json: no such file"):
            _ = model.config


def _lone(folder: Path) -> None:
    shard(folder / "model.safetensors", x=[1])


def _text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "shard missing": (lambda f: (f / B).unlink(), f"shard '{B}' of 2 is missing"),
    "all missing": (lambda f: [(f / A).unlink(), (f / B).unlink()], f"shard '{A}' and 1 more of 2"),
    "both": (_lone, r"both model\.safetensors and model\.safetensors\.index\.json are here"),
    "promised": (
        lambda f: index(f, {"x": A, "y": A, "z": B, "w": B, "v": B}),
        r"tensor 'v' \(and 1 more\), which the index places there, is not in the shard",
    ),
    "not promised": (lambda f: index(f, {"x": A, "z": B}), "tensor 'y', which the shard holds, is not"),
    "elsewhere": (lambda f: index(f, {"x": A, "y": B, "z": B}), "tensor 'y', which the shard holds"),
    "twice": (lambda f: shard(f / B, z=[4], x=[1]), "tensor 'x' is also in model-00001"),
    "shard malformed": (_text(B, "{}"), f"{B}: a file of 2 bytes"),
    "upwards": (lambda f: index(f, {"x": "../" + A}), "in '../model-00001.*no safetensors file beside"),
    "absolute": (lambda f: index(f, {"x": "/etc/" + A}), "no safetensors file beside it"),
    "backslash": (lambda f: index(f, {"x": "..\\" + A}), "no safetensors file beside it"),
    "drive": (lambda f: index(f, {"x": "c:" + A}), "no safetensors file beside it"),
    "folder within": (lambda f: index(f, {"x": "sub/" + A}), "no safetensors file beside it"),
    "no safetensors": (lambda f: index(f, {"x": "pytorch_model.bin"}), "no safetensors file beside it"),
    "number": (lambda f: index(f, {"x": 1}), "said to be in something"),
    "no map": (lambda f: index(f, [A]), "'weight_map' is no map"),
    "empty map": (lambda f: index(f, {}), "'weight_map' is no map"),
    "no weight map": (_text("model.safetensors.index.json", "{}"), "'weight_map' is no map"),
    "no JSON": (_text("model.safetensors.index.json", "]"), "index.json:1:1: not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_does_not_fit_together_is_refused(case: str, sharded: Path) -> None:
    change, message = FOLDERS[case]
    change(sharded)
    with pytest.raises(InputError, match=message) as caught:
        SafetensorsFolder(sharded)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        ((), InputError, "no model in this folder: neither"),
        (("pytorch_model.bin", "m.gguf"), UnsupportedError, r"PyTorch pickles \('pytorch_model\.bin'\)"),
        (("b.gguf", "a.gguf"), InputError, r"holds GGUF, not model\.safetensors \(name the file: a\.gguf\)"),
        (("x.safetensors",), InputError, r"only x\.safetensors \(a single file is named model\.safetensors"),
    ],
)
def test_folders_without_a_model(
    names: tuple[str, ...], kind: type[AnexError], message: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(kind, match=message):
        SafetensorsFolder(tmp_path)


def test_paths_that_are_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        SafetensorsFolder(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="this is a file, not a folder"):
        SafetensorsFolder(tmp_path / "file")
    with pytest.raises(InputError):
        SafetensorsFolder("a\0b")


# --- JSON -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a JSON object"),
        ('"x"', "not a JSON object"),
        ("", "not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' appears twice"),
        ('{"a": Infinity}', "Infinity is no JSON number"),
        ('{"a": -1e400}', "the number -1e400 is too large"),
        ('{"a": 1,}', "not JSON"),
        ("\ufeff{}", "not JSON"),
        ('{"a": "\t"}', "not JSON"),
    ],
)
def test_documents_that_are_no_strict_json_object(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_json(path)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_documents_have_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1, "b": 2.5, "c": [null, true, "\\u00e4"]}')
    assert read_json(path) == {"a": 1, "b": 2.5, "c": [None, True, "ä"]}
    with pytest.raises(InputError, match="bytes, more than 10"):
        read_json(path, 10)
