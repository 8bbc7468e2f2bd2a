"""SentencePiece's BPE as llama.cpp does it: the pair whose token has the best score merges first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from anex.errors import InputError
from anex.models.tokenizer import keys
from anex.models.tokenizer.facts import SPACE_MARK
from anex.models.tokenizer.vocabulary import Vocabulary


def encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """A function from a text without special tokens to ids.

    It raises InputError for a character that is no token where the vocabulary has no byte tokens.
    """
    ids = vocabulary.ids

    def encode(text: str) -> list[int]:
        pieces = _merge(text.replace(" ", SPACE_MARK), vocabulary)
        return [i for piece in pieces for i in ([ids[piece]] if piece in ids else _spell(piece, ids))]

    return encode


def _spell(character: str, ids: Mapping[str, int]) -> list[int]:
    """A character that is no token, as the tokens of its UTF-8 bytes."""
    try:
        return [ids[f"<0x{byte:02X}>"] for byte in character.encode()]
    except KeyError as error:
        raise InputError(
            f"no token for {character!r}, and none named {error}",
            where=keys.TOKENS,
            hint="the vocabulary cannot write this text",
        ) from None


def _merge(text: str, vocabulary: Vocabulary) -> list[str]:
    """The pieces of `text`: tokens, or single characters that are no token.

    Pieces are intervals [start, end[start]) of the text; before[start] is the start of the piece on the
    left. A merge makes the right piece vanish (end 0), so that what waited for it no longer fits.
    """
    ids, scores = vocabulary.ids, vocabulary.scores
    size = len(text)
    end = list(range(1, size + 1))
    before = list(range(-1, size))

    def candidate(left: int, right: int) -> tuple[float, int, int, int] | None:
        token = ids.get(text[left : end[right]])
        return None if token is None else (-scores[token], left, right, end[right])

    waiting = [c for c in (candidate(i, i + 1) for i in range(size - 1)) if c]
    heapify(waiting)
    while waiting:
        _, left, right, stop = heappop(waiting)
        if end[left] != right or end[right] != stop:
            continue
        end[left], end[right] = stop, 0
        if stop < size:
            before[stop] = left
        for pair in ((before[left], left), (left, stop)):
            if pair[0] >= 0 and pair[1] < size and (c := candidate(*pair)):
                heappush(waiting, c)

    pieces = []
    start = 0
    while start < size:
        pieces.append(text[start : end[start]])
        start = end[start]
    return pieces
