"""Blob files: byte-identical to coremltools, exact in both directions, and safe to open."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from coremltools import libmilstoragepython as apple
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.errors import AnexError, InputError
from anex.mil.blob import CODES, BlobFile, BlobWriter, pack, unpack
from anex.mil.ir import BLOB_PATH, BlobRef, Literal
from anex.mil.types import DType, TensorType

# coremltools' Python writer has a method for each type but bf16 and the two fp8.
APPLE = {
    DType.FP16: "fp16", DType.FP32: "float", DType.UINT8: "uint8", DType.INT8: "int8",
    DType.INT16: "int16", DType.UINT16: "uint16", DType.INT4: "int4", DType.UINT1: "uint1",
    DType.UINT2: "uint2", DType.UINT3: "uint3", DType.UINT4: "uint4", DType.UINT6: "uint6",
    DType.INT32: "int32", DType.UINT32: "uint32",
}  # fmt: skip
SUB_BYTE = [d for d in CODES if d.is_sub_byte]
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 257)


def numbers(dtype: DType, count: int, seed: int = 0) -> np.ndarray:
    """Random elements over the whole range of a type."""
    rng = np.random.default_rng([seed, count, CODES[dtype]])
    if dtype.is_sub_byte:
        low, high = (-8, 8) if dtype is DType.INT4 else (0, 1 << dtype.bits)
        return rng.integers(low, high, count).astype(dtype.numpy)
    return rng.integers(0, 256, count * dtype.bits // 8, dtype=np.uint8).view(dtype.numpy)


def bit_stream(array: np.ndarray, bits: int) -> bytes:
    """Element i at bits [i·n, (i+1)·n) of one big little-endian integer: the definition itself."""
    total = sum((int(v) & ((1 << bits) - 1)) << (i * bits) for i, v in enumerate(array))
    return total.to_bytes((len(array) * bits + 7) // 8, "little")


def blob_of(*arrays: tuple[np.ndarray, DType]) -> tuple[bytes, list[BlobRef]]:
    memory = io.BytesIO()
    with BlobWriter(memory) as writer:
        refs = [writer.add(array, dtype) for array, dtype in arrays]
    return memory.getvalue(), refs


def test_equals_coremltools_byte_for_byte(tmp_path: Path) -> None:
    theirs = apple._BlobStorageWriter(str(tmp_path / "theirs.bin"))
    with BlobWriter(tmp_path / "ours.bin") as ours:
        for count in SIZES:
            for dtype, name in APPLE.items():
                array = numbers(dtype, count)
                given = array.view(np.uint16) if dtype is DType.FP16 else array
                offset = getattr(theirs, f"write_{name}_data")(given)
                assert ours.add(array, dtype) == BlobRef(BLOB_PATH, offset)
    del theirs
    assert (tmp_path / "ours.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()


def test_coremltools_reads_ours(tmp_path: Path) -> None:
    path = tmp_path / "weight.bin"
    with BlobWriter(path) as writer:
        refs = {dtype: writer.add(numbers(dtype, 37), dtype) for dtype in APPLE}
    reader = apple._BlobStorageReader(str(path))
    for dtype, ref in refs.items():
        found = np.asarray(getattr(reader, f"read_{APPLE[dtype]}_data")(ref.offset))
        assert found.tobytes() == numbers(dtype, 37).tobytes()


@pytest.mark.parametrize("dtype", list(CODES), ids=lambda d: d.value)
def test_layout_of_one_record(dtype: DType) -> None:
    array = numbers(dtype, 13)
    data, (ref,) = blob_of((array, dtype))
    stored = bit_stream(array, dtype.bits) if dtype.is_sub_byte else array.tobytes()
    padding = len(stored) * 8 - 13 * dtype.bits
    record = struct.pack("<IIQQQ32x", 0xDEADBEEF, CODES[dtype], len(stored), 128, padding)
    assert ref.offset == 64
    assert data == struct.pack("<II56x", 1, 2) + record + stored


@pytest.mark.parametrize("dtype", list(CODES), ids=lambda d: d.value)
def test_reads_what_was_written(dtype: DType) -> None:
    first, second = numbers(dtype, 30, 1), numbers(dtype, 7, 2)
    data, refs = blob_of((first.reshape(2, 3, 5), dtype), (second, dtype))
    file = BlobFile.from_bytes(data)
    assert file.array(refs[0], TensorType(dtype, (2, 3, 5))).tobytes() == first.tobytes()
    assert file.array(Literal(TensorType(dtype, (7,)), refs[1])).tobytes() == second.tobytes()
    assert [(r.offset, r.dtype, r.count) for r in file.records()] == [
        (refs[0].offset, dtype, 30),
        (refs[1].offset, dtype, 7),
    ]


@given(st.sampled_from(SUB_BYTE), st.data())
def test_packing_is_the_bit_stream(dtype: DType, data: st.DataObject) -> None:
    low, high = (-8, 7) if dtype is DType.INT4 else (0, (1 << dtype.bits) - 1)
    values = data.draw(st.lists(st.integers(low, high), max_size=40))
    array = np.array(values, dtype.numpy)
    packed = pack(array, dtype)
    assert packed.tobytes() == bit_stream(array, dtype.bits)
    assert np.array_equal(unpack(packed, dtype, len(values)), array)


@given(st.sampled_from(list(CODES)), st.lists(st.integers(0, 20), max_size=6))
def test_chunks_equal_one_array(dtype: DType, sizes: list[int]) -> None:
    array = numbers(dtype, sum(sizes))
    pieces = np.split(array, np.cumsum(sizes)[:-1]) if sizes else []
    memory = io.BytesIO()
    with BlobWriter(memory) as writer:
        writer.add_chunks(dtype, array.size, iter(pieces))
    assert memory.getvalue() == blob_of((array, dtype))[0]


def test_views_are_not_copies(tmp_path: Path) -> None:
    path = tmp_path / "weight.bin"
    with BlobWriter(path) as writer:
        ref = writer.add(np.arange(6, dtype=np.float32).reshape(2, 3).T, DType.FP32)
    with BlobFile(path) as file:
        view = file.array(ref, TensorType(DType.FP32, (3, 2)))
        assert not view.flags.writeable
        assert np.shares_memory(view, file.array(ref, TensorType(DType.FP32, (6,))))
    assert view.tolist() == [[0, 3], [1, 4], [2, 5]]  # the map outlives the file object
    with pytest.raises(InputError):
        file.record(ref.offset)


def test_immediate_literal_needs_no_record() -> None:
    literal = Literal.of([1.0, 2.0])
    assert BlobFile.from_bytes(blob_of()[0]).array(literal) is literal.array


def test_detached_and_unaligned_data_is_followed() -> None:
    record = struct.pack("<IIQQQ32x", 0xDEADBEEF, CODES[DType.FP16], 4, 129, 0)
    data = struct.pack("<II56x", 1, 2) + record + b"\0" + np.array([1, -2], np.float16).tobytes()
    found = BlobFile.from_bytes(data).array(BlobRef(BLOB_PATH, 64), TensorType(DType.FP16, (2,)))
    assert found.tolist() == [1.0, -2.0]


def test_count_of_the_header_may_be_too_small() -> None:
    data, _ = blob_of((np.ones(3, np.float16), DType.FP16), (np.ones(5, np.int8), DType.INT8))
    for count in (0, 1):  # coremltools reads 0, other writers always say 1
        patched = struct.pack("<I", count) + data[4:]
        assert len(list(BlobFile.from_bytes(patched).records())) == 2
    with pytest.raises(InputError, match="2 records, the header says 3"):
        list(BlobFile.from_bytes(struct.pack("<I", 3) + data[4:]).records())


def test_zeros_after_the_last_record_are_padding() -> None:
    data, refs = blob_of((np.ones(3, np.float16), DType.FP16))
    padded = BlobFile.from_bytes(data + bytes(4096))
    assert [r.offset for r in padded.records()] == [refs[0].offset]


DAMAGED_RECORDS = {
    "sentinel": (0xDEADBEEE, 1, 4, 128, 0, "sentinel"),
    "dtype 0": (0xDEADBEEF, 0, 4, 128, 0, "dtype number 0"),
    "dtype 18": (0xDEADBEEF, 18, 4, 128, 0, "dtype number 18"),
    "size": (0xDEADBEEF, 1, 6, 128, 0, "6 bytes at 128, the file has 132"),
    "huge size": (0xDEADBEEF, 1, 2**64 - 2, 128, 0, "the file has 132"),
    "offset": (0xDEADBEEF, 1, 4, 2**64 - 4, 0, "the file has 132"),
    "odd size": (0xDEADBEEF, 1, 3, 128, 0, "no whole number of fp16"),
    "padding of fp16": (0xDEADBEEF, 1, 4, 128, 8, "no whole number of fp16"),
    "padding of a byte": (0xDEADBEEF, 8, 4, 128, 8, "no whole number of int4"),
    "padding inside an element": (0xDEADBEEF, 12, 4, 128, 3, "no whole number of uint3"),
}


@pytest.mark.parametrize("case", DAMAGED_RECORDS)
def test_damaged_record_is_refused(case: str) -> None:
    *fields, message = DAMAGED_RECORDS[case]
    data = struct.pack("<II56x", 1, 2) + struct.pack("<IIQQQ32x", *fields) + bytes(4)
    with pytest.raises(InputError, match=message) as caught:
        BlobFile.from_bytes(data, "w.bin").record(64)
    assert caught.value.where == "w.bin"


@pytest.mark.parametrize("offset", [-64, 65, 132, 69, 2**70])
def test_offset_without_a_record_is_refused(offset: int) -> None:
    file = BlobFile.from_bytes(blob_of((np.ones(2, np.float16), DType.FP16))[0])
    with pytest.raises(InputError, match=f"no record at offset {offset}"):
        file.record(offset)


@pytest.mark.parametrize(
    "type",
    [TensorType(DType.FP32, (2,)), TensorType(DType.FP16, (5,)), TensorType(DType.FP16, (None,)),
     TensorType(DType.BOOL, (8,)), TensorType(DType.INT4, (16,))],
    ids=str,
)  # fmt: skip
def test_constant_of_another_type_is_refused(type: TensorType) -> None:
    data, (ref,) = blob_of((np.ones(4, np.float16), DType.FP16))
    with pytest.raises(InputError):
        BlobFile.from_bytes(data).array(ref, type)


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", struct.pack("<II56x", 1, 1), b"GGUF" + bytes(60)])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        BlobFile(path)
    assert caught.value.where == str(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.bin", tmp_path):
        with pytest.raises(InputError):
            BlobFile(path)


def test_values_out_of_range_are_refused() -> None:
    for dtype, value in ((DType.INT4, 8), (DType.INT4, -9), (DType.UINT3, 8), (DType.UINT1, 2)):
        with pytest.raises(InputError, match="do not fit"):
            pack(np.array([0, value], dtype.numpy), dtype)


@pytest.mark.parametrize(
    ("dtype", "count", "chunks"),
    [
        (DType.BOOL, 1, [np.zeros(1, bool)]),
        (DType.INT64, 1, [np.zeros(1, np.int64)]),
        (DType.FP16, 2, [np.zeros(2, np.float32)]),
        (DType.FP16, 3, [np.zeros(2, np.float16)]),
        (DType.FP16, 3, [np.zeros(2, np.float16)] * 2),
        (DType.UINT3, 3, [np.zeros(2, np.uint8)]),
        (DType.BF16, 2, [np.zeros(2, np.uint16)]),
    ],
)
def test_a_bad_record_leaves_nothing_behind(
    dtype: DType, count: int, chunks: list[np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "weight.bin"
    path.write_bytes(b"before")

    def attempt() -> None:
        with BlobWriter(path) as writer:
            writer.add(np.ones(3, ml_dtypes.bfloat16), DType.BF16)
            writer.add_chunks(dtype, count, iter(chunks))

    with pytest.raises(InputError):
        attempt()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_swallowed_failure_does_not_publish_half_a_record(tmp_path: Path) -> None:
    def attempt() -> None:
        with BlobWriter(tmp_path / "w.bin") as writer:
            with pytest.raises(InputError):
                writer.add_chunks(DType.FP16, 4, [np.zeros(2, np.float16)])
            with pytest.raises(InputError, match="left incomplete"):
                writer.add(np.zeros(2, np.float16), DType.FP16)

    with pytest.raises(InputError, match="left incomplete"):
        attempt()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 500)
)
def test_mutations_raise_our_errors_only(changes: list[tuple[int, int]], keep: int) -> None:
    data = bytearray(blob_of(*((numbers(d, 9), d) for d in (DType.UINT3, DType.FP16, DType.INT4)))[0])
    for position, byte in changes:
        data[position % len(data)] = byte
    message = read_all(bytes(data[: keep or None]))
    assert not message or (message.startswith("blob: ") and "\n" not in message)


def read_all(data: bytes) -> str:
    """Read every record; the message of our own error, or nothing."""
    try:
        file = BlobFile.from_bytes(data)
        for record in file.records():
            array = file.array(BlobRef(BLOB_PATH, record.offset), TensorType(record.dtype, (record.count,)))
            assert array.nbytes <= 8 * len(data)
    except AnexError as error:
        return str(error)
    return ""
