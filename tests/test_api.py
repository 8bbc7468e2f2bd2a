"""`anex.compile`: programs and texts, with and without a weight file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anex
from anex.engines.surface import HostSurface
from anex.errors import InputError, LoadError, SurfaceError
from anex.mil.blob import BlobFile, BlobWriter
from anex.mil.builder import Builder
from anex.mil.ir import Literal, Program
from anex.mil.text import parse, print_program
from anex.mil.types import DType, TensorType

WEIGHT = np.arange(32, dtype=np.float16).reshape(1, 1, 1, 32)


def program(folder: Path) -> Program:
    """`y = x * weight`, the weight in `folder/weights/weight.bin`."""
    (folder / "weights").mkdir()
    with BlobWriter(folder / "weights/weight.bin") as writer:
        ref = writer.add(WEIGHT, DType.FP16)
    b = Builder("main")
    x = b.input("x", DType.FP16, WEIGHT.shape)
    weight = b.const(Literal(TensorType(DType.FP16, WEIGHT.shape), ref), name="weight")
    return Program({"main": b.finish({"y": b.op("mul", x=x, y=weight)})})


def test_a_program_and_its_text(tmp_path: Path) -> None:
    made = program(tmp_path)
    (tmp_path / "model.mil").write_text(print_program(made))
    x = np.full(WEIGHT.shape, 3, np.float16)
    for executable in (
        anex.compile(made, blob=tmp_path / "weights/weight.bin"),
        anex.compile(tmp_path / "model.mil"),
    ):
        with executable:
            assert np.array_equal(executable.call("main", {"x": x})["y"], WEIGHT * 3)


def test_what_is_refused(tmp_path: Path) -> None:
    made = program(tmp_path)
    with pytest.raises(InputError, match=r"weights/weight\.bin', but it was not given"):
        anex.compile(made)
    (tmp_path / "bad.mil").write_text("program(1.0) { func")
    with pytest.raises(InputError, match=r"bad\.mil:1:"):
        anex.compile(tmp_path / "bad.mil")
    (tmp_path / "bytes.mil").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        anex.compile(tmp_path / "bytes.mil")
    with pytest.raises(LoadError, match="no engine"):
        anex.compile(made, engine="quantum")


def test_weight_files_are_found_where_the_text_says(tmp_path: Path) -> None:
    made = program(tmp_path)
    text = print_program(made).replace("weights/weight.bin", "other/0-weight.bin")
    (tmp_path / "model.mil").write_text(text)
    with pytest.raises(InputError, match=r"'@model_path/other/0-weight\.bin', but it was not given"):
        anex.compile(tmp_path / "model.mil")
    (tmp_path / "other").mkdir()
    (tmp_path / "weights/weight.bin").rename(tmp_path / "other/0-weight.bin")
    x = np.full(WEIGHT.shape, 2, np.float16)
    given = {"@model_path/other/0-weight.bin": tmp_path / "other/0-weight.bin"}
    for executable in (
        anex.compile(tmp_path / "model.mil"),
        anex.compile(tmp_path / "model.mil", blob=given),
    ):
        with executable:
            assert np.array_equal(executable.call("main", {"x": x})["y"], WEIGHT * 2)


def test_a_text_cannot_reach_files_outside_its_folder(tmp_path: Path) -> None:
    made = program(tmp_path)
    (tmp_path / "inner").mkdir()
    for path in ("@model_path/../weights/weight.bin", str(tmp_path / "weights/weight.bin")):
        text = print_program(made).replace("@model_path/weights/weight.bin", path)
        (tmp_path / "inner/model.mil").write_text(text)
        with pytest.raises(InputError, match="does not stay inside @model_path/"):
            anex.compile(tmp_path / "inner/model.mil")


def test_weight_files_are_closed_with_the_executable_and_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, blob = program(tmp_path), tmp_path / "weights/weight.bin"
    closed: list[str] = []
    monkeypatch.setattr(BlobFile, "close", lambda self: closed.append(self.name))
    executable = anex.compile(made, blob=blob)
    assert closed == []
    executable.close()
    assert closed == [str(blob)]
    other = parse(print_program(made).replace("uint64(64)", "uint64(128)"))
    with pytest.raises(InputError, match="128"):
        anex.compile(other, blob=blob)
    assert closed == [str(blob)] * 2


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no option 'foo'"):
        anex.compile(program(tmp_path), foo=1)


@pytest.mark.parametrize("given", [None, b"/x", 7])
def test_what_is_neither_program_nor_path(given: object) -> None:
    with pytest.raises(InputError, match="neither a program nor the path"):
        anex.compile(given)  # type: ignore[arg-type]
    if given is not None:
        with pytest.raises(InputError, match="a text is expected"):
            parse(given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a text is expected"):
        parse(None)  # type: ignore[arg-type]


def test_a_text_where_its_path_is_meant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"parse\(\) it first") as refusal:
        anex.compile(print_program(program(tmp_path)))
    assert "\n" not in str(refusal.value)


def test_a_surface_takes_arrays_only() -> None:
    surface = HostSurface(TensorType(DType.FP16, (1, 32)), np.dtype(np.float16), (64, 2))
    with pytest.raises(SurfaceError, match="cannot hold list"):
        surface.write([1])  # type: ignore[arg-type]
