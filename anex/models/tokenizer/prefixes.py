"""Which tokens may begin at a place of a text, without a trie."""

from __future__ import annotations

from collections.abc import Iterable


def lengths_by_first(tokens: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """First character -> the different lengths of the tokens that begin with it, the shortest first."""
    lengths: dict[str, set[int]] = {}
    for token in tokens:
        lengths.setdefault(token[0], set()).add(len(token))
    return {first: tuple(sorted(found)) for first, found in lengths.items()}
