"""Examples of the long short-term memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import const
from anex.mil.examples.case import Argument, Example, examples_of, rng

_STEPS, _BATCH, _INPUT, _HIDDEN = 5, 2, 3, 4


def _arguments(
    dtype: type[np.floating], directions: int, *, bias: bool = False, peephole: bool = False
) -> dict[str, Argument]:
    random = rng("lstm")

    def draw(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(dtype)

    states = (_BATCH, directions * _HIDDEN)
    args: dict[str, Argument] = {
        "x": draw(_STEPS, _BATCH, _INPUT), "initial_h": draw(*states), "initial_c": draw(*states),
    }  # fmt: skip
    for end in ("", "_back")[:directions]:
        args[f"weight_ih{end}"] = const(draw(4 * _HIDDEN, _INPUT))
        args[f"weight_hh{end}"] = const(draw(4 * _HIDDEN, _HIDDEN))
        if bias:
            args[f"bias{end}"] = const(draw(4 * _HIDDEN))
        if peephole:
            args[f"peephole{end}"] = const(draw(3 * _HIDDEN))
    return args


def _example(name: str, opset: str, args: dict[str, Argument], **more: str | bool) -> Example:
    args = {**args, **{key: const(value) for key, value in more.items()}}
    return Example("lstm", name, args, opset, outputs=3, ulps=0.6, fp32=1e-5, scale=1.0)


@examples_of("lstm")
def lstm() -> Iterator[Example]:
    one, two = _arguments(np.float32, 1), _arguments(np.float32, 2, bias=True)
    yield _example("default", "ios15", one)
    for sequence in (False, True):
        end = "sequence" if sequence else "last"
        yield _example(f"forward-{end}", "ios17", one, direction="forward", output_sequence=sequence)
        yield _example(f"reverse-{end}", "ios15", one, direction="reverse", output_sequence=sequence)
        yield _example(f"both-{end}", "ios15", two, direction="bidirectional", output_sequence=sequence)
    half = _arguments(np.float16, 1, bias=True)
    yield _example("fp16", "ios17", half, direction="forward", output_sequence=True)
    yield _example("peephole", "ios17", _arguments(np.float32, 1, peephole=True), output_sequence=True)
    back = _arguments(np.float32, 2, bias=True, peephole=True)
    yield _example("peephole-both", "ios15", back, direction="bidirectional", output_sequence=True)
    activations = {"recurrent_activation": "Sigmoid", "cell_activation": "relu", "activation": "linear"}
    yield _example("activations", "ios15", one, output_sequence=True, **activations)
