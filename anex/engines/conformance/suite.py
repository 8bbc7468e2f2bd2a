"""The conformance suite: every engine must pass it; a failing case prints its own reproduction.

    python -m anex.engines.conformance emulator --numerics fp16 --only conv:groups

Five groups of cases: each op example; layouts (surfaces with padded rows);
binding (parameters are bound by name, surfaces are read and written in
place); state (memory between calls, unless the engine refuses it by name);
failures (what must be refused, and how).

Compiling is nearly all of the work, so at first many examples are calls of one
function.  One that is refused is halved until the call is found which is not
accepted, and an example with a wrong result is tried again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from anex.engines.conformance.check import Level, build, compare, dtypes_of
from anex.engines.port import Port
from anex.engines.protocol import Engine, Executable
from anex.engines.surface import Surface
from anex.errors import AnexError, EvaluateError, InputError, SurfaceError, UnsupportedError
from anex.mil import CONSTEXPR, Builder, DType, Function, Op, Program, StateType, TensorType, Value, ops
from anex.mil.examples import Example, examples

NOT_CALLED = {
    **dict.fromkeys(CONSTEXPR, "folded when a program is loaded"),
    "const": "is no computation",
    "read_state": "needs two calls: the cases of the group `state`",
    "write_state": "as read_state",
    "coreml_update_state": "coremltools' own form, never in a file; its type rule refuses it",
    "non_zero": "the shape of its result depends on data, which no engine takes",
}
"""Ops that are in no table of examples, formulas and lowerings, with the reason."""


TOGETHER = 60
"""How many examples are called by one function at first."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to try; `run` returns None or what is wrong.

    Attributes:
        example: The op example that it tries, if it is one.
    """

    id: str
    run: Callable[[Engine], str | None]
    example: Example | None = None

    @property
    def group(self) -> str:
        return self.id.partition(":")[0]

    @property
    def narrow(self) -> bool:
        """Whether an fp16 tensor takes part; without one, all arithmetic levels do the same."""
        return self.example is None or DType.FP16 in dtypes_of(self.example)


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that failed, and the command that tries it again."""

    id: str
    reason: str
    command: str

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}\n    {self.command}"


def cases(level: Level, only: Sequence[str] = ()) -> Iterator[Case]:
    """Every case, or those whose id or group (the op, `layout`, …) is in `only`."""
    chosen = set(only)
    found = (_op_cases(level), _layout_cases(), _binding_cases(), _state_cases(), _failure_cases())
    for case in chain.from_iterable(found):
        if not chosen or case.id in chosen or case.group in chosen:
            yield case


def run(engine: Engine, level: Level, only: Sequence[str] = ()) -> tuple[int, list[Failure]]:
    """Put an engine through the suite.

    Args:
        engine: The engine under test.
        level: The arithmetic it was made for.
        only: Ids or groups of cases; empty for all.

    Returns:
        How many cases ran, and those that failed.
    """
    chosen = list(cases(level, only))
    together = _try_together(engine, level, [case.example for case in chosen if case.example])
    failures = []
    for case in chosen:
        if case.id in together and together[case.id] is None:
            continue
        reason, repeat = _try_alone(engine, case), [case.id]
        if reason is None and case.id in together:
            reason, repeat = f"{together[case.id]}; right when it is the only call", list(only)
        if reason is not None:
            failures.append(Failure(case.id, reason, _command(engine, level, repeat)))
    return len(chosen), failures


def _command(engine: Engine, level: Level, only: Sequence[str]) -> str:
    words = ["python -m anex.engines.conformance", engine.name, "--numerics", level]
    return " ".join([*words, *(f"--only {name}" for name in only)])


def _try_alone(engine: Engine, case: Case) -> str | None:
    try:
        return case.run(engine)
    except AnexError as error:
        return f"{type(error).__name__}: {error}"


def _try_together(engine: Engine, level: Level, found: Sequence[Example]) -> dict[str, str | None]:
    """What is wrong with each example, or None, by id, where many are calls of one function."""
    verdicts: dict[str, str | None] = {}
    for opset in sorted({example.opset for example in found}):
        fitting = [example for example in found if example.opset == opset]
        for start in range(0, len(fitting), TOGETHER):
            verdicts |= _try_halves(engine, level, fitting[start : start + TOGETHER])
    return verdicts


def _try_halves(engine: Engine, level: Level, group: Sequence[Example]) -> dict[str, str | None]:
    try:
        return {e.id: wrong for e, wrong in zip(group, _try(engine, level, group), strict=True)}
    except AnexError as error:
        if len(group) == 1:
            return {group[0].id: str(error)}
        middle = len(group) // 2
        return _try_halves(engine, level, group[:middle]) | _try_halves(engine, level, group[middle:])


def _try(engine: Engine, level: Level, group: Sequence[Example]) -> list[str | None]:
    """What is wrong with the results of each example, all being calls of one function."""
    program, inputs = build(*group)
    with engine.compile(program, None) as exe:
        ports = {port.name: port for port in exe.inputs("main")}
        got = exe.call("main", {n: a.astype(ports[n].dtype) for n, a in inputs.items()})
    results = iter([got[value.name] for value in program.functions["main"].outputs])
    return [compare(example, level, list(islice(results, example.outputs))) for example in group]


def _op_cases(level: Level) -> Iterator[Case]:
    for kind in ops.kinds():
        if kind not in NOT_CALLED:
            for example in examples(kind):
                yield Case(example.id, lambda engine, e=example: _try(engine, level, [e])[0], example)  # type: ignore[misc]


def _program(inputs: dict[str, TensorType], make: Callable[[Builder, dict[str, Value]], Value]) -> Program:
    b = Builder("main")
    values = {name: b.input_of(name, kind) for name, kind in inputs.items()}
    return Program({"main": b.finish({"out": make(b, values)})})


def _difference(shape: tuple[int, ...] = (1, 3, 2, 32)) -> Program:
    """`first - second`, with parameters whose declared and alphabetic orders differ."""
    kind = TensorType(DType.FP16, shape)
    return _program(
        {"z_first": kind, "a_second": kind}, lambda b, v: b.op("sub", x=v["z_first"], y=v["a_second"])
    )


def _layout_cases() -> Iterator[Case]:
    for width in (1, 2, 15, 16, 31, 32, 33, 64):
        yield Case(f"layout:width{width}", lambda engine, w=width: _try_layout(engine, w))  # type: ignore[misc]


def _try_layout(engine: Engine, width: int) -> str | None:
    """Non-uniform values through surfaces whose rows may be padded (ane.md §2.3)."""
    shape = (1, 5, 3, width)
    with engine.compile(_difference(shape), None) as exe:
        surfaces = _surfaces(exe)
        steps = {port.name: port.strides for port in (*exe.inputs("main"), *exe.outputs("main"))}
        first = np.arange(15 * width).reshape(shape) % 97
        second = first[:, ::-1, ::-1, ::-1] * 2 + 1
        for name, values in (("z_first", first), ("a_second", second)):
            surface = surfaces[name]
            if surface.array.strides != steps[name]:
                return f"surface of '{name}' has strides {surface.array.strides}, its port {steps[name]}"
            surface.write(values.astype(surface.array.dtype))
        exe.bind("main", surfaces).run()
        return _unequal(surfaces["out"].array, first - second)


def _surfaces(exe: Executable) -> dict[str, Surface]:
    return {port.name: exe.allocate(port) for port in (*exe.inputs("main"), *exe.outputs("main"))}


def _unequal(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> str | None:
    wrong = np.argwhere(got.astype(np.float64) != wanted)
    if not wrong.size:
        return None
    at = tuple(int(i) for i in wrong[0])
    return f"{list(at)} is {got[at]}, not {wanted[at]}; {len(wrong)} of {wanted.size} wrong"


def _binding_cases() -> Iterator[Case]:
    yield Case("binding:by-name", _try_by_name)
    yield Case("binding:in-place", _try_in_place)
    yield Case("binding:several-functions", _try_functions)


def _try_by_name(engine: Engine) -> str | None:
    shape = (1, 3, 2, 32)
    with engine.compile(_difference(shape), None) as exe:
        dtypes = {port.name: port.dtype for port in exe.inputs("main")}
        five, two = (np.full(shape, v, dtypes["z_first"]) for v in (5, 2))
        return _unequal(exe.call("main", {"z_first": five, "a_second": two})["out"], np.full(shape, 3.0))


def _try_in_place(engine: Engine) -> str | None:
    """One binding, run twice: it sees what was written to the surface in between."""
    with engine.compile(_difference(), None) as exe:
        surfaces = _surfaces(exe)
        bound = exe.bind("main", surfaces)
        for value in (7.0, -3.0):
            surfaces["z_first"].array[...] = value
            bound.run()
            if wrong := _unequal(surfaces["out"].array, np.full((1, 3, 2, 32), value)):
                return f"after writing {value}: {wrong}"
    return None


def _try_functions(engine: Engine) -> str | None:
    double, half = Builder("double"), Builder("half")
    kind = TensorType(DType.FP16, (1, 1, 1, 32))
    functions = {
        "double": double.finish({"y": double.op("mul", x=double.input_of("x", kind), y=2.0)}),
        "half": half.finish({"y": half.op("mul", x=half.input_of("x", kind), y=0.5)}),
    }
    with engine.compile(Program(functions), None) as exe:
        for name, factor in (("double", 2.0), ("half", 0.5)):
            x = np.arange(32, dtype=exe.inputs(name)[0].dtype).reshape(kind.dims)
            if wrong := _unequal(exe.call(name, {"x": x})["y"], x.astype(np.float64) * factor):
                return f"{name}: {wrong}"
    return None


# --- state -----------------------------------------------------------------------

_HELD = TensorType(DType.FP16, (1, 1, 1, 32))


def _accumulator() -> Program:
    """Returns the total before and after `x` was added to the state `total`."""
    total, x = Value("total", StateType(_HELD)), Value("x", _HELD)
    before, summed, after, out = (Value(name, _HELD) for name in ("before", "summed", "after", "out"))
    body = (
        Op("read_state", {"input": total}, (before,)),
        Op("add", {"x": before, "y": x}, (summed,)),
        Op("write_state", {"data": summed, "input": total}, ()),
        Op("read_state", {"input": total}, (after,)),
        Op("identity", {"x": after}, (out,)),
    )
    return Program({"main": Function("main", "ios18", (total, x), body, (before, out))})


def _state_cases() -> Iterator[Case]:
    for name, attempt in {
        "accumulates": _try_accumulate,
        "apart": _try_apart,
        "bound": _try_bound_state,
        "read-and-write": _try_state_access,
        "missing": _try_missing_state,
    }.items():
        yield Case(f"state:{name}", lambda engine, a=attempt: _try_state(engine, a))  # type: ignore[misc]


def _try_state(engine: Engine, attempt: Callable[[Executable], str | None]) -> str | None:
    try:
        exe = engine.compile(_accumulator(), None)
    except UnsupportedError:
        return None  # an engine may have no states, and says so
    with exe:
        return attempt(exe)


def _added(exe: Executable, state: Any, value: float, total: float) -> str | None:
    """Adding `value` to a total of `total` gives the old and the new one."""
    x = np.full(_HELD.dims, value, exe.inputs("main")[0].dtype)
    got = exe.call("main", {"x": x}, state)
    for name, wanted in (("before", total), ("out", total + value)):
        if wrong := _unequal(got[name], np.full(_HELD.dims, wanted)):
            return f"'{name}' after adding {value} to {total}: {wrong}"
    return None


def _try_accumulate(exe: Executable) -> str | None:
    state = exe.new_state("main")
    return _added(exe, state, 3, 0) or _added(exe, state, 4, 3) or _added(exe, state, -1, 7)


def _try_apart(exe: Executable) -> str | None:
    first, second = exe.new_state("main"), exe.new_state("main")
    return _added(exe, first, 5, 0) or _added(exe, second, 2, 0) or _added(exe, first, 1, 5)


def _try_bound_state(exe: Executable) -> str | None:
    state, surfaces = exe.new_state("main"), _surfaces(exe)
    bound = exe.bind("main", surfaces, state)
    for value, total in ((2.0, 2.0), (5.0, 7.0)):
        surfaces["x"].array[...] = value
        bound.run()
        if wrong := _unequal(surfaces["out"].array, np.full(_HELD.dims, total)):
            return f"total after adding {value}: {wrong}"
    return _unequal(state.read("total"), np.full(_HELD.dims, 7.0))


def _try_state_access(exe: Executable) -> str | None:
    state = exe.new_state("main")
    held = state.read("total")
    state.write("total", np.full(_HELD.dims, 9, held.dtype))
    if wrong := _added(exe, state, 1, 9):
        return wrong
    return _unequal(held, np.zeros(_HELD.dims)) or _unequal(state.read("total"), np.full(_HELD.dims, 10.0))


def _try_missing_state(exe: Executable) -> str | None:
    x = np.zeros(_HELD.dims, exe.inputs("main")[0].dtype)
    state = exe.new_state("main")
    return (
        _refused(EvaluateError, lambda: exe.call("main", {"x": x}))
        or _refused(EvaluateError, lambda: exe.bind("main", _surfaces(exe)))
        or _refused(EvaluateError, lambda: state.read("sum"))
        or _refused(EvaluateError, lambda: state.write("total", x[..., :5]))
    )


# --- failures --------------------------------------------------------------------


def _failure_cases() -> Iterator[Case]:
    good = np.zeros((1, 3, 2, 32), np.float16)
    wrong_calls: dict[str, dict[str, Any]] = {
        "missing-parameter": {"z_first": good},
        "unknown-parameter": {"z_first": good, "a_second": good, "b_third": good},
        "wrong-shape": {"z_first": good, "a_second": good[..., :31]},
        "wrong-dtype": {"z_first": good, "a_second": good.astype(np.int32)},
        "no-numbers": {"z_first": good, "a_second": "many"},
        "ragged": {"z_first": good, "a_second": [[1, 2], [3]]},
    }
    for name, inputs in wrong_calls.items():
        yield Case(f"failure:{name}", lambda engine, i=inputs: _try_wrong_call(engine, i))  # type: ignore[misc]
    yield Case("failure:unknown-function", _try_unknown_function)
    yield Case("failure:closed", _try_closed)
    yield Case("failure:missing-surface", _try_missing_surface)
    yield Case("failure:wrong-surface", _try_wrong_surface)
    yield Case("failure:foreign-surface", _try_foreign_surface)
    yield Case("failure:bad-program", _try_bad_program)


def _refused(kind: type[AnexError], call: Callable[[], Any]) -> str | None:
    try:
        call()
    except kind:
        return None
    return f"was not refused with {kind.__name__}"


def _try_wrong_call(engine: Engine, inputs: dict[str, Any]) -> str | None:
    with engine.compile(_difference(), None) as exe:
        dtype = exe.inputs("main")[0].dtype
        half = np.dtype(np.float16)
        fitting = {n: a.astype(dtype) if getattr(a, "dtype", None) == half else a for n, a in inputs.items()}
        return _refused(EvaluateError, lambda: exe.call("main", fitting))


def _try_unknown_function(engine: Engine) -> str | None:
    with engine.compile(_difference(), None) as exe:
        return _refused(InputError, lambda: exe.call("side", {}))


def _try_closed(engine: Engine) -> str | None:
    exe = engine.compile(_difference(), None)
    exe.close()
    exe.close()
    return _refused(EvaluateError, lambda: exe.call("main", {}))


def _try_missing_surface(engine: Engine) -> str | None:
    with engine.compile(_difference(), None) as exe:
        surfaces = _surfaces(exe)
        del surfaces["a_second"]
        return _refused(SurfaceError, lambda: exe.bind("main", surfaces))


def _try_wrong_surface(engine: Engine) -> str | None:
    with engine.compile(_difference(), None) as exe:
        surfaces = _surfaces(exe)
        wide = TensorType(DType.FP16, (1, 3, 2, 64))
        surfaces["out"] = exe.allocate(Port.padded("out", wide, surfaces["out"].array.dtype))
        return _refused(SurfaceError, lambda: exe.bind("main", surfaces))


class _Elsewhere(Surface):
    """Memory that no engine allocated."""


def _try_foreign_surface(engine: Engine) -> str | None:
    with engine.compile(_difference(), None) as exe:
        surfaces = _surfaces(exe)
        out = surfaces["out"]
        surfaces["out"] = _Elsewhere(out.type, np.zeros_like(out.array))
        return _refused(SurfaceError, lambda: exe.bind("main", surfaces))


def _try_bad_program(engine: Engine) -> str | None:
    program = _difference()
    function = program.functions["main"]
    undefined = Value("nowhere", function.outputs[0].type)
    broken = type(function)(function.name, function.opset, function.inputs, function.ops, (undefined,))
    return _refused(InputError, lambda: engine.compile(Program({"main": broken}), None))
