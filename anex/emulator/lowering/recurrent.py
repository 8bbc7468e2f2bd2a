"""The long short-term memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anex.emulator.lowering.registry import Lowered, lowering
from anex.errors import UnsupportedError

if TYPE_CHECKING:
    import jax

Function = Callable[[Any], Any]


def _activation(low: Lowered, name: str, default: str) -> Function:
    import jax
    import jax.numpy as jnp

    wanted = low.const(name, default).lower()
    table: dict[str, Function] = {
        "linear": lambda x: x,
        "relu": lambda x: jnp.maximum(x, 0),
        "sigmoid": jax.nn.sigmoid,
        "tanh": jnp.tanh,
    }
    if wanted not in table:
        # The constants of hard_sigmoid and scaled_tanh inside an lstm are documented nowhere.
        raise UnsupportedError(f"{name} '{wanted}' of lstm", where=low.op.name)
    return table[wanted]


@lowering("lstm")
def lstm(low: Lowered) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A reversed direction alone gives its states in the order in which it computes them.

    Beside the forward one it gives them at the time step that they belong to
    (coremltools' own tests compare with PyTorch in this way).
    """
    import jax.numpy as jnp

    if "clip" in low:
        raise UnsupportedError(
            "clip of lstm (documented both for the cell gate and the state)", where=low.op.name
        )
    x, hidden, cell = low["x"], low["initial_h"], low["initial_c"]
    direction, size = low.const("direction", "forward"), low["weight_hh"].shape[1]
    if direction != "bidirectional":
        states, last_cell = _run(low, "", jnp.flip(x, 0) if direction == "reverse" else x, hidden, cell)
        return _output(low, states, states[-1]), states[-1], last_cell
    ahead, ahead_cell = _run(low, "", x, hidden[:, :size], cell[:, :size])
    back, back_cell = _run(low, "_back", jnp.flip(x, 0), hidden[:, size:], cell[:, size:])
    last = jnp.concatenate([ahead[-1], back[-1]], axis=-1)
    every = jnp.concatenate([ahead, jnp.flip(back, 0)], axis=-1)
    return _output(low, every, last), last, jnp.concatenate([ahead_cell, back_cell], axis=-1)


def _output(low: Lowered, every: jax.Array, last: jax.Array) -> jax.Array:
    return every if low.const("output_sequence", False) else last[None]


def _run(
    low: Lowered, end: str, x: jax.Array, hidden: jax.Array, cell: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All hidden states [s, b, H] in the order of x, and the last cell [b, H]."""
    import jax
    import jax.numpy as jnp

    gate = _activation(low, "recurrent_activation", "sigmoid")
    inner, outer = _activation(low, "cell_activation", "tanh"), _activation(low, "activation", "tanh")
    precision = jax.lax.Precision.HIGHEST
    weight_hh = low[f"weight_hh{end}"].T
    inputs = jnp.matmul(x, low[f"weight_ih{end}"].T, precision=precision)
    if f"bias{end}" in low:
        inputs = inputs + low[f"bias{end}"]
    peep: Any = [0.0] * 3
    if f"peephole{end}" in low:
        peep = jnp.split(low[f"peephole{end}"], 3)

    def step(
        carry: tuple[jax.Array, jax.Array], row: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        hidden, cell = carry
        gates = row + jnp.matmul(hidden, weight_hh, precision=precision)
        i, f, o, z = jnp.split(gates, 4, axis=-1)
        new = gate(f + peep[1] * cell) * cell + gate(i + peep[0] * cell) * inner(z)
        hidden = gate(o + peep[2] * new) * outer(new)
        return (hidden, new), hidden

    (_, last), states = jax.lax.scan(step, (hidden, cell), inputs)
    return states, last
