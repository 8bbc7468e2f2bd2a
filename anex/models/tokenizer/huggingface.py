"""The tokenizer of a Hugging Face folder, run by the `tokenizers` library; its ids are that library's."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from anex.errors import AnexError, InputError, UnsupportedError
from anex.models.tokenizer.charsmap import LONGEST_REPLACEMENT, longest_replacement
from anex.models.tokenizer.facts import HIDDEN, SPECIAL, Facts, Kind
from anex.models.tokenizer.json_files import ModelFiles, typed
from anex.models.tokenizer.json_pieces import PieceRule
from anex.models.tokenizer.json_plain import without_specials
from anex.models.tokenizer.json_roles import (
    end_ids,
    model_size,
    named_tokens,
    role_ids,
    suppressed_ids,
    wanted,
)
from anex.models.tokenizer.vocabulary import ends_of, roles_by_text

if TYPE_CHECKING:
    import tokenizers

# A vocabulary may have holes, but a single far id would make every table that large.
_HOLES = 8
_GROWTH = 4096
"""How many characters the replacements of a normalizer may make of one."""

_PROBES = ("a", "1", "e", ".", "x y")


class JsonCore:
    """See `Tokenizer.from_json`."""

    def __init__(self, files: ModelFiles, vocab_size: int | None = None) -> None:
        self._where = files.where
        self._lock = Lock()
        self._tokenizer = _opened(files)
        named = named_tokens(files)
        with _library(self._where):
            _complete(self._tokenizer, files, named)
            added = self._tokenizer.get_added_tokens_decoder()
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
            base = self._tokenizer.get_vocab(with_added_tokens=False)
        _check_added(files, vocabulary)
        size = _size(files, vocab_size, base, vocabulary)
        self._texts = {i: text for text, i in vocabulary.items()}
        kinds = [int(Kind.NORMAL) if i in self._texts else 0 for i in range(size)]
        for i, token in added.items():
            if i < size:
                kinds[i] = int(Kind.CONTROL if token.special else Kind.USER_DEFINED)
        roles = role_ids(files, named, vocabulary, size)
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        if unknown in vocabulary:
            roles.setdefault("unk", vocabulary[unknown])
        if roles.get("unk", size) < size:
            kinds[roles["unk"]] = int(Kind.UNKNOWN)
        self._rule = PieceRule(_state(self._tokenizer.decoder))
        prefix, suffix = self._surroundings(files, roles)
        roles_by_text(roles, {text: i for text, i in vocabulary.items() if i < size}, kinds)
        ends = ends_of(roles, {text: i for text, i in vocabulary.items() if i < size}, kinds)
        self._facts = Facts(
            ids=vocabulary,
            kinds=kinds,
            roles=roles,
            ends=ends | end_ids(files, size),
            suppressed=suppressed_ids(files, size),
            prefix=prefix,
            suffix=suffix,
            strips_space=self._rule.strips_space,
            keys_used=frozenset(),
        )

    @property
    def facts(self) -> Facts:
        return self._facts

    def encode(self, text: str, parse_special: bool) -> list[int]:
        ids = self._ids(text, parse_special)
        if ids and max(ids) >= len(self._facts.kinds):
            token = max(ids)
            raise InputError(
                f"the text has token {token} ({self._texts[token]!r}), for which the model has no weights",
                where=self._where,
                hint=f"the model has {len(self._facts.kinds)} tokens",
            )
        return ids

    def piece(self, token: int) -> bytes:
        kind = self._facts.kinds[token]
        if not kind:
            return b""
        text = self._texts[token]
        user_word = self._rule.words and kind & Kind.USER_DEFINED
        return text.encode() if kind & SPECIAL and not user_word else self._rule(text)

    def _ids(self, text: str, parse_special: bool = True, add_special: bool = False) -> list[int]:
        with self._lock, _library(self._where):
            tokenizer = self._tokenizer if parse_special else self._plain
            # The library's name for: special tokens are not cut out of the text.
            tokenizer.encode_special_tokens = not parse_special
            return list(tokenizer.encode(text, add_special_tokens=add_special).ids)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        hidden = [i for i, kind in enumerate(self._facts.kinds) if kind & HIDDEN]
        return without_specials(self._tokenizer, [self._texts[i] for i in hidden])

    def _surroundings(
        self, files: ModelFiles, roles: Mapping[str, int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a text: what the post-processor adds, corrected by the flags."""
        prefix, suffix = self._added()
        for role, ids, end in (("bos", prefix, 0), ("eos", suffix, -1)):
            flag = wanted(files, role)
            there = bool(ids) and ids[end] == roles.get(role)
            if flag is None or flag == there:
                continue
            if role not in roles:
                raise InputError(f"a {role.upper()} token is to be added, but the files name none")
            if not flag:
                ids.pop(end)
            else:
                ids.insert(0 if role == "bos" else len(ids), roles[role])
        return tuple(prefix), tuple(suffix)

    def _added(self) -> tuple[list[int], list[int]]:
        for text in _PROBES:
            plain, whole = self._ids(text), self._ids(text, add_special=True)
            if not plain or len(whole) < len(plain):
                continue
            for at in range(len(whole) - len(plain) + 1):
                if whole[at : at + len(plain)] == plain:
                    return whole[:at], whole[at + len(plain) :]
            raise UnsupportedError("post-processor of tokenizer.json", where=self._where)
        return self._ids("", add_special=True), []


@contextmanager
def _library(where: str) -> Iterator[None]:
    """Turns whatever the library raises into an error of ours; its panics are no `Exception`."""
    try:
        yield
    except AnexError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            what = " ".join(str(error).split())[:300]
            raise InputError(f"the tokenizers library refuses: {what}", where=where) from None
        raise


def _opened(files: ModelFiles) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    with _library(files.where):
        tokenizer = Tokenizer.from_buffer(files.tokenizer)
        # Text is never cut or filled up in silence, and the same text always gives the same ids.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        if _growth(_state(tokenizer.normalizer)) > _GROWTH:
            raise UnsupportedError(
                f"normalizer that may make more than {_GROWTH} characters of one", where=files.where
            )
    return tokenizer


def _state(part: Any) -> dict[str, Any] | None:
    """The JSON that describes a part of a tokenizer."""
    return None if part is None else dict(json.loads(part.__getstate__()))


def _growth(state: Mapping[str, Any] | None) -> int:
    """An upper bound of how many characters the replacements of a normalizer make of one."""
    if state is None:
        return 1
    if state["type"] == "Sequence":
        growth = 1
        for step in state["normalizers"]:
            growth = min(growth * _growth(step), _GROWTH + 1)
        return growth
    if state["type"] == "Replace":
        pattern = state["pattern"].get("String")
        # A regular expression may match the empty text between two characters.
        return (
            len(state["content"]) + 1
            if pattern is None
            else -(-len(state["content"]) // max(len(pattern), 1)) or 1
        )
    if state["type"] == "Precompiled":
        try:
            longest = longest_replacement(base64.b64decode(state["precompiled_charsmap"]))
        except (binascii.Error, TypeError):
            return 1
        return 1 if longest <= LONGEST_REPLACEMENT else _GROWTH + 1
    return 1


def _complete(tokenizer: tokenizers.Tokenizer, files: ModelFiles, named: Mapping[str, str]) -> None:
    """Adds the tokens that only tokenizer_config.json has, and makes the named ones special."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    where = "tokenizer_config.json"
    entries = files.get(where, "added_tokens_decoder", (dict,), {})
    for name, entry in sorted(entries.items(), key=lambda item: (len(item[0]), item[0])):
        if not (isinstance(entry, dict) and name.isdecimal()):
            raise InputError(f"'added_tokens_decoder' has no token at {name!r}", where=where)
        text = typed(entry, "content", (str,), where, "")
        if text and text not in known:
            flags = {
                flag: typed(entry, flag, (bool,), where, False)
                for flag in ("lstrip", "rstrip", "single_word", "normalized", "special")
            }
            tokenizer.add_tokens([AddedToken(text, **flags)])
        if text and tokenizer.token_to_id(text) != int(name):
            raise InputError(
                f"token {text!r} is {tokenizer.token_to_id(text)} here and {name} in {where}",
                where=files.where,
            )
    special = [
        text for text in named.values() if text not in known and tokenizer.token_to_id(text) is not None
    ]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])


def _check_added(files: ModelFiles, vocabulary: Mapping[str, int]) -> None:
    """Refuses added tokens whose ids are not those that the library gives, which only warns."""
    text = files.tokenizer.decode("utf-8", "replace")
    for match in re.finditer(r'"added_tokens"\s*:\s*(?=\[)', text):
        try:
            entries, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        for entry in entries:
            if isinstance(entry, dict) and vocabulary.get(str(entry.get("content"))) != entry.get("id"):
                content = entry.get("content")
                raise InputError(
                    f"added token {content!r} has the id {entry.get('id')}, but the library gives it "
                    f"{vocabulary.get(str(content))}",
                    where=files.where,
                    hint="the ids of added tokens follow those of the model",
                )


def _size(
    files: ModelFiles, vocab_size: int | None, base: Mapping[str, int], vocabulary: Mapping[str, int]
) -> int:
    """How many tokens the model has; without its word, how many the tokenizer has."""
    if not vocabulary:
        raise InputError("the vocabulary is empty", where=files.where)
    size = vocab_size if vocab_size is not None else model_size(files)
    largest = max(base.values(), default=0)
    if size is not None and largest >= size:
        raise InputError(
            f"the tokenizer has token {largest}, the model only {size} tokens",
            where=files.where,
            hint="the tokenizer belongs to another model",
        )
    most = max(vocabulary.values())
    if most > _HOLES * (len(vocabulary) + 128):
        raise InputError(f"token {most} in a vocabulary of {len(vocabulary)}", where=files.where)
    return most + 1 if size is None else size
