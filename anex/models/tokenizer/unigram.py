"""SentencePiece's unigram model as llama.cpp does it: of all spellings, the one with the best sum of scores.

Source: llm_tokenizer_ugm_session in llama.cpp's src/llama-vocab.cpp (MIT licence). One thing is not taken
over: it exempts from the replacements whatever shares its first bytes, even half a character, with a token
that users defined. Such tokens are cut out of the text before.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from anex.models.tokenizer.charsmap import normalizer
from anex.models.tokenizer.facts import SPACE_MARK, Kind
from anex.models.tokenizer.prefixes import lengths_by_first
from anex.models.tokenizer.vocabulary import Vocabulary

_UNKNOWN_PENALTY = np.float32(10)


def encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """A function from a text without special tokens to ids.

    It raises InputError where the file's table of replacements is broken.
    """
    replaced = normalizer(vocabulary.charsmap)
    spell = _speller(vocabulary)

    def encode(text: str) -> list[int]:
        return spell(_spaced(replaced(text), vocabulary))

    return encode


def _spaced(text: str, vocabulary: Vocabulary) -> str:
    """`text` with marks for spaces, one put before the first word or all runs of them made one."""
    if vocabulary.merge_spaces:
        return "".join(SPACE_MARK + word for word in text.split(" ") if word)
    spaces = len(text) - len(text.lstrip(" "))
    if vocabulary.add_space_prefix and spaces < len(text):
        text = text[:spaces] + " " + text[spaces:]
    return text.replace(" ", SPACE_MARK)


def _speller(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    kinds, ids = vocabulary.kinds, vocabulary.ids
    unknown = vocabulary.roles["unk"]
    # A token that users defined costs nothing, so that it is taken where it can be.
    scores = {
        text: 0.0 if kinds[i] & Kind.USER_DEFINED else vocabulary.scores[i]
        for text, i in ids.items()
        if kinds[i] & (Kind.NORMAL | Kind.USER_DEFINED | Kind.UNUSED)
    }
    lowest = min((vocabulary.scores[i] for i, kind in enumerate(kinds) if kind & Kind.NORMAL), default=0.0)
    unknown_score = float(np.float32(lowest) - _UNKNOWN_PENALTY)
    lengths = lengths_by_first(scores)

    def spell(text: str) -> list[int]:
        # The best spelling of text[:n]: its score, its last token, and where that begins.
        best = [-inf] * (len(text) + 1)
        best[0] = 0.0
        last = [unknown] * (len(text) + 1)
        begin = [0] * (len(text) + 1)
        for at, first in enumerate(text):
            single = False
            for length in lengths.get(first, ()):
                token, end = text[at : at + length], at + length
                if end > len(text):
                    break
                if token not in scores:
                    continue
                single |= length == 1
                if best[at] + scores[token] > best[end]:
                    best[end], last[end], begin[end] = best[at] + scores[token], ids[token], at
            if not single and best[at] + unknown_score > best[at + 1]:
                best[at + 1], last[at + 1], begin[at + 1] = best[at] + unknown_score, unknown, at
        return _backwards(last, begin, unknown)

    return spell


def _backwards(last: list[int], begin: list[int], unknown: int) -> list[int]:
    """The tokens of the best spelling, unknown ones in a row made one."""
    spelled: list[int] = []
    end = len(last) - 1
    while end:
        if not (last[end] == unknown and spelled and spelled[-1] == unknown):
            spelled.append(last[end])
        end = begin[end]
    return spelled[::-1]
