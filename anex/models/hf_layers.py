"""Which layers of a checkpoint look how far, and which rotate how, in all the forms that files say it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anex.errors import UnsupportedError
from anex.models.config import Local
from anex.models.hf_fields import ConfigReader, shown
from anex.models.hf_rope import FULL, SLIDING, ropes
from anex.models.rope import Rope

Layer = tuple[int | None, Rope | None]
"""Window and rotation of one layer."""


def _never(read: ConfigReader, n_layers: int) -> list[bool]:
    return [False] * n_layers


def _always(read: ConfigReader, n_layers: int) -> list[bool]:
    return [True] * n_layers


def _from_layer(read: ConfigReader, n_layers: int) -> list[bool]:
    first = read.get("max_window_layers")
    return [index >= first for index in range(n_layers)]


def _all_but_every(read: ConfigReader, n_layers: int) -> list[bool]:
    period = read.get("window_pattern")
    return [bool((index + 1) % period) for index in range(n_layers)]


def _without_rope(read: ConfigReader, n_layers: int) -> list[bool]:
    return [not turned for turned in _turned_by_list(read, n_layers)]


WINDOWED: Mapping[str, Callable[[ConfigReader, int], list[bool]]] = {
    "never": _never,
    "always": _always,
    "from_layer": _from_layer,
    "all_but_every": _all_but_every,
    "without_rope": _without_rope,
}
"""Which layers have a window, where `layer_types` does not say it (`windowed` of a model type)."""


def _turned_by_list(read: ConfigReader, n_layers: int) -> list[bool]:
    """`no_rope_layers` has a 1 for a layer that rotates (sic)."""
    given = read.get("no_rope_layers")
    if given is None:
        period = read.get("no_rope_interval")
        return [bool((index + 1) % period) for index in range(n_layers)]
    if len(given) < n_layers or any(entry not in (0, 1) for entry in given):
        raise read.error("no_rope_layers", f"{shown(given)} is no list of 0 and 1 for {n_layers} layers")
    return [bool(entry) for entry in given[:n_layers]]


def layers(read: ConfigReader, n_layers: int, head_dim: int, context_length: int) -> list[Layer]:
    """Window and rotation of every layer."""
    window = read.get("window") if "window" in read.fields else None
    if "use_window" in read.fields and not read.get("use_window"):
        window = None
    windowed = _windowed(read, n_layers, window)
    if "rope_parameters" not in read.fields:
        return [(window if inside else None, None) for inside in windowed]
    found = ropes(read, head_dim, context_length)
    full, sliding = found[FULL], found.get(SLIDING, found[FULL])
    return [
        (window if inside else None, (sliding if inside else full) if turns else None)
        for inside, turns in zip(windowed, _turned(read, windowed, window), strict=True)
    ]


def _windowed(read: ConfigReader, n_layers: int, window: int | None) -> list[bool]:
    rule = read.table.get("windowed", "never")
    by_rule = WINDOWED[rule](read, n_layers) if window is not None else [False] * n_layers
    given = read.get("layer_types") if "layer_types" in read.fields else None
    if given is None:
        return by_rule
    if len(given) != n_layers:
        raise read.error("layer_types", f"the list has {len(given)} entries for {n_layers} layers")
    for kind in given:
        if kind not in (FULL, SLIDING) or (kind == SLIDING and window is None):
            raise UnsupportedError(
                f"a layer of type {shown(kind)}" + (" without a window" if kind == SLIDING else ""),
                where=f"{read.ledger.where}: {read.key('layer_types')}",
            )
    return [kind == SLIDING for kind in given]


def _turned(read: ConfigReader, windowed: Sequence[bool], window: int | None) -> Sequence[bool]:
    """Which layers rotate queries and keys (`turned` of a model type)."""
    match read.table.get("turned", "all"):
        case "list":
            return _turned_by_list(read, len(windowed))
        case "windowed":
            return windowed
        case "windowed_if_any" if window is not None:
            return windowed
        case _:
            return [True] * len(windowed)


def two_kinds(read: ConfigReader, found: Sequence[Layer]) -> tuple[Layer, Local | None]:
    """What most layers do, or those that see everything, and the layers that differ."""
    kinds = sorted(set(found), key=lambda kind: (kind[0] is not None, -found.count(kind)))
    if len(kinds) > 2:
        raise UnsupportedError("layers of more than two kinds (window, rotation)", where=read.ledger.where)
    main = kinds[0]
    others = frozenset(index for index, kind in enumerate(found) if kind != main)
    return main, Local(others, *kinds[1]) if others else None
