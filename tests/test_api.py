"""`anex.compile`: programs and texts, with and without a weight file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anex
from anex.errors import InputError, LoadError
from anex.mil.blob import BlobWriter
from anex.mil.builder import Builder
from anex.mil.ir import Literal, Program
from anex.mil.text import print_program
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
    with pytest.raises(InputError, match="none was given"):
        anex.compile(made).inputs("main")
    (tmp_path / "bad.mil").write_text("program(1.0) { func")
    with pytest.raises(InputError, match=r"bad\.mil:1:"):
        anex.compile(tmp_path / "bad.mil")
    (tmp_path / "bytes.mil").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        anex.compile(tmp_path / "bytes.mil")
    with pytest.raises(LoadError, match="no engine"):
        anex.compile(made, engine="quantum")
