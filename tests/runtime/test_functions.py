"""Functions that conversations share: compiled once, on surfaces of their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_text

from anex.engines import engine
from anex.errors import AnexError, EvaluateError, InputError, UnsupportedError
from anex.models import ModelFile, Prepared, decode_name, head_name, prefill_name, prepare
from anex.runtime import Functions, Session, load
from anex.runtime import model as module

TEXTS = ([1, 2, 3, 4], [9, 8, 7], [5] * 40)


@pytest.fixture(scope="module")
def ready(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with prepare(tiny_gguf, tmp_path_factory.mktemp("cache")) as prepared:
        yield prepared


def talk(session: Session, ids: list[int]) -> np.ndarray[Any, Any]:
    """Logits after a prompt and after three more tokens."""
    rows = [session.prefill(ids)]
    rows += [session.decode(token) for token in (11, 12, 13)]
    return np.stack(rows)


def test_conversations_do_not_mix(ready: Prepared) -> None:
    with Functions(ready, engine("emulator")) as functions:
        alone = [talk(Session(functions), ids) for ids in TEXTS]
        sessions = [Session(functions) for _ in TEXTS]
        rows = [[session.prefill(ids)] for session, ids in zip(sessions, TEXTS, strict=True)]
        for token in (11, 12, 13):
            for row, session in zip(rows, sessions, strict=True):
                row.append(session.decode(token))
        assert all(np.array_equal(np.stack(row), wanted) for row, wanted in zip(rows, alone, strict=True))
    with pytest.raises(EvaluateError, match="closed"):
        functions.dtype(head_name())


def test_threads_compile_each_function_once(ready: Prepared) -> None:
    seen: list[tuple[str, int, int]] = []
    with (
        Functions(ready, engine("emulator"), progress=lambda *step: seen.append(step)) as functions,
        ThreadPoolExecutor(3) as pool,
    ):
        together = list(pool.map(lambda ids: talk(Session(functions), ids), TEXTS))
        alone = [talk(Session(functions), ids) for ids in TEXTS]
    assert all(np.array_equal(a, b) for a, b in zip(together, alone, strict=True))
    # prefill at rungs 0 and 256, head and decode.
    assert sum(done == total for _, done, total in seen) <= 4
    assert {stage for stage, _, _ in seen} == {"compile"}


class Rigid:
    """An engine whose programs cannot be extended."""

    name = "rigid"

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._emulator = engine("emulator")

    def compile(self, program: Any, blob: Any) -> Any:
        executable: Any = self._emulator.compile(program, blob)

        def extend(program: Any) -> None:
            raise UnsupportedError("extending a program")

        executable.extend = extend
        self.made.append(executable)
        return executable


def test_an_engine_that_cannot_extend_a_program(ready: Prepared) -> None:
    rigid = Rigid()
    with Functions(ready, rigid) as functions, Functions(ready, engine("emulator")) as plain:
        assert np.array_equal(talk(Session(functions), [1, 2]), talk(Session(plain), [1, 2]))
        assert not functions.compile([head_name(), prefill_name(32, 0), decode_name(256)])
        assert len(rigid.made) == 3
    with pytest.raises(EvaluateError):
        rigid.made[0].inputs(head_name())


def test_names_that_are_none(ready: Prepared) -> None:
    with Functions(ready, engine("emulator")) as functions:
        assert functions.describe() == {}
        with pytest.raises(InputError, match="no function is called 'x'"):
            functions.compile(["x"])


CLOSED = {
    "find_engine": {"ModelFile"},
    "Functions": {"ModelFile", "Prepared"},
    "Model": {"ModelFile", "Prepared", "Functions"},
    "store.evict": {"ModelFile", "Prepared", "Functions"},
}


@pytest.mark.parametrize("step", CLOSED)
def test_a_load_that_fails_leaves_nothing_open(
    step: str, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: set[str] = set()
    for kind in (ModelFile, Prepared, Functions):

        def close(self: Any, real: Any = kind.close, name: str = kind.__name__) -> None:
            closed.add(name)
            real(self)

        monkeypatch.setattr(kind, "close", close)

    def fail(*_: Any, **__: Any) -> None:
        raise InputError("no")

    monkeypatch.setattr(f"{module.__name__}.{step}", fail)
    with pytest.raises(AnexError, match="no"):
        load(tiny_gguf, cache_dir=tmp_path)
    assert closed == CLOSED[step]
    monkeypatch.undo()
    with load(tiny_gguf, cache_dir=tmp_path) as model:
        assert model.logits([1]).shape == (1, tiny_text.VOCABULARY)
