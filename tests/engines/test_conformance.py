"""The emulator passes the conformance suite; the suite finds an engine that is wrong."""

import numpy as np
import pytest

from anex.engines import HostSurface, Port, Surface, engine
from anex.engines.conformance import cases, run
from anex.engines.emulator import EmulatorEngine
from anex.engines.surface import strides
from anex.errors import CompileError, LoadError, SurfaceError
from anex.mil.examples import examples
from anex.mil.types import DType, TensorType

# Ops are dealt to a few tests so that they run side by side.
GROUPS = 4


def dealt(level, group):
    """Ids of a part of the cases; those without an fp16 tensor run at one level only."""
    found = [case for case in cases(level) if level == "fp32" or case.narrow]
    groups = list(dict.fromkeys(case.group for case in found))[group::GROUPS]
    return [case.id for case in found if case.group in groups]


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("level", ["fp16", "fp32"])
def test_the_emulator_conforms(level, group):
    chosen = dealt(level, group)
    count, failures = run(engine("emulator", numerics=level), level, chosen)
    assert count == len(chosen) > 100
    assert not failures, "\n".join(map(str, failures))


class WrongEngine(EmulatorEngine):
    """Two faults the suite must see: results off by a few units, parameters bound by position."""

    def compile(self, program, blob):
        executable = super().compile(program, blob)
        call = executable.call

        def wrong(function, inputs, state=None):
            names = list(inputs)
            same = len({np.shape(a) for a in inputs.values()}) == 1
            mixed = dict(zip(names, [inputs[n] for n in reversed(names)], strict=True)) if same else inputs
            results = call(function, mixed, state)
            return {k: v * v.dtype.type(1 + 2**-9) if v.dtype.kind == "f" else v for k, v in results.items()}

        executable.call = wrong
        return executable


def test_a_wrong_engine_is_found_and_its_failure_can_be_repeated():
    with np.errstate(all="ignore"):
        _, failures = run(WrongEngine(), "fp16", ["exp", "binding"])
    found = {f.id: f for f in failures}
    assert "binding:by-name" in found
    assert any(f.id.startswith("exp:") for f in failures)
    assert found["binding:by-name"].command.endswith("emulator --numerics fp16 --only binding:by-name")


class PickyEngine(EmulatorEngine):
    """Refuses what calls floor, and knows how many functions it was handed."""

    compiled = 0

    def compile(self, program, blob):
        self.compiled += 1
        if any(op.kind == "floor" for op in program.functions["main"].ops):
            raise CompileError("no floor")
        return super().compile(program, blob)


def test_a_refused_call_is_found_among_those_of_one_function():
    picky = PickyEngine()
    with np.errstate(all="ignore"):
        count, failures = run(picky, "fp16", ["ceil", "floor", "round"])
    refused = {f"floor:{e.name}" for e in examples("floor")}
    assert {f.id for f in failures} == refused
    assert len(refused) < count
    assert all("no floor" in f.reason and f.command.endswith(f"--only {f.id}") for f in failures)


def test_calls_of_one_function_are_compiled_together():
    picky = PickyEngine()
    count, failures = run(picky, "fp16", ["ceil", "round"])
    assert not failures
    assert picky.compiled == len({e.opset for kind in ("ceil", "round") for e in examples(kind)}) < count


def surface_of(*shape):
    return Port.padded("x", TensorType(DType.FP16, shape), np.dtype(np.float16)).surface()


def test_surfaces_have_the_engines_layout():
    surface = surface_of(2, 3, 4, 5)
    assert isinstance(surface, Surface)
    assert isinstance(surface, HostSurface)
    assert surface.array.strides == (3 * 4 * 64, 4 * 64, 64, 2)
    assert surface.memory.ctypes.data % 16384 == 0
    assert surface.nbytes % 16384 == 0
    assert not surface.is_packed
    surface.array[1, 2, 3, 4] = 7
    assert surface.memory[3 * 4 * 64 + 2 * 4 * 64 + 3 * 64 + 8 :][:2].view(np.float16) == 7
    assert surface_of(1, 64, 1, 32).is_packed
    assert surface_of().array.shape == ()
    assert surface_of(0, 32).array.size == 0
    assert strides((3, 32), 2) == (64, 2)
    with pytest.raises(SurfaceError, match="float32"):
        surface.write(np.zeros((2, 3, 4, 5), np.float32))


def test_an_unknown_engine_is_refused_by_name():
    with pytest.raises(LoadError, match="no engine 'tpu'"):
        engine("tpu")
