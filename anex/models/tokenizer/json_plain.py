"""A tokenizer for text that is not to be trusted: what looks like a control token in it stays text."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

# Models that find a control token in a text by themselves, because it is a piece or word like any other.
# To BPE it is none: no merges lead to it.
_FINDING = ("Unigram", "WordPiece", "WordLevel")


def without_specials(tokenizer: tokenizers.Tokenizer, special: Iterable[str]) -> tokenizers.Tokenizer:
    """The same tokenizer, in which no text has a special token; all ids stay as they are.

    The library's switch for it only keeps the special tokens from being cut out of a text; a model that has
    them in its vocabulary still finds them. So they get names that are in no text.
    """
    from tokenizers import Tokenizer

    if type(tokenizer.model).__name__ not in _FINDING:
        return tokenizer
    nonce = secrets.token_hex(16)
    state = json.loads(tokenizer.to_str())
    _rename(state, {text: f"\U0010fffd{nonce}{i}" for i, text in enumerate(special)})
    return Tokenizer.from_str(json.dumps(state))


def _rename(state: dict[str, Any], names: dict[str, str]) -> None:
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(text, text): i for text, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    # It names the special tokens, and adds them only where it is asked to.
    state["post_processor"] = None
