"""The vocabulary of a GGUF file: tokens, their types and roles, checked and completed as llama.cpp does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from anex.errors import InputError, UnsupportedError
from anex.models.tokenizer import keys, names
from anex.models.tokenizer.facts import SPECIAL, Facts, Kind
from anex.models.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer

# The values of tokenizer.ggml.token_type.
_KIND_OF_TYPE = {
    0: 0,
    1: int(Kind.NORMAL),
    2: int(Kind.UNKNOWN),
    3: int(Kind.CONTROL),
    4: int(Kind.USER_DEFINED),
    5: int(Kind.UNUSED),
    6: int(Kind.BYTE),
}


@dataclass(frozen=True)
class Family:
    """A value of tokenizer.ggml.model: how it tokenises and what holds where the file is silent.

    Attributes:
        role_keys: Role -> the keys that give its id, the later one winning.
        surrounded_by: Roles of the tokens that always go before and after a text, whatever the file says.
        needs: Roles without which it cannot work.
    """

    algorithm: Literal["bpe", "spm", "wpm", "unigram"]
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    pre: str | None = None
    roles: Mapping[str, int] = field(default_factory=dict)
    role_keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: keys.ROLE_KEYS)
    surrounded_by: tuple[str, str] | None = None
    needs: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family("bpe"),
    "gemma4": Family("bpe", pre="gemma4"),
    "llama": Family("spm", add_bos=True, add_space_prefix=True, roles={"bos": 1, "eos": 2, "unk": 0}),
    "t5": Family("unigram", add_eos=True, roles={"eos": 1, "unk": 2}, needs=("unk",)),
    "bert": Family(
        "wpm",
        roles={"bos": 101, "unk": 100, "sep": 102},
        role_keys=keys.BERT_ROLE_KEYS,
        surrounded_by=("bos", "sep"),
        needs=("bos", "unk", "sep"),
    ),
}


@dataclass(frozen=True)
class Vocabulary(Facts):
    """A checked vocabulary.

    Attributes:
        tokens: The texts of the tokens by id, as the file writes them.
        scores: The scores of a SentencePiece vocabulary; the higher, the sooner a token is taken.
        merges: The merges of a BPE vocabulary, first comes first.
        merge_spaces: A unigram vocabulary takes several spaces for one.
        charsmap: Its table of replacements (see `charsmap`); empty for none.
        lowercase: A WordPiece vocabulary has no capital letters.
        strip_accents: It has no accents.
    """

    family: Family
    pre: PreTokenizer
    tokens: list[str]
    scores: list[float]
    merges: list[tuple[str, str]]
    add_space_prefix: bool
    merge_spaces: bool
    charsmap: bytes
    lowercase: bool
    strip_accents: bool


def read(metadata: Mapping[str, Any]) -> Vocabulary:
    """Reads the vocabulary out of the metadata of a GGUF file.

    Raises:
        InputError: A key is missing, has the wrong type or length, or contradicts another.
        UnsupportedError: The file needs a tokenizer or a key that anex does not know.
    """
    family = _family(metadata)
    keys_used = keys.account(metadata)
    byte_pairs = family.algorithm == "bpe"
    pre = _pre_tokenizer(metadata, family) if byte_pairs else PreTokenizer(())
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(_strings(metadata, keys.TOKENS))]
    ids = _ids(tokens)
    kinds = _kinds(metadata, tokens)
    roles = _roles(metadata, family, len(tokens))
    suppressed = frozenset(i for i in _array(metadata, keys.SUPPRESS, int, []) if 0 <= i < len(tokens))
    roles_by_text(roles, ids, kinds)
    ends = ends_of(roles, ids, kinds)
    _strip_rules(metadata, ids, kinds)
    prefix, suffix = _surroundings(metadata, family, pre, roles)
    add_space_prefix = _flag(metadata, keys.ADD_SPACE, family.add_space_prefix)
    merge_spaces = _flag(metadata, keys.MERGE_SPACES, False)
    lowercase = _flag(metadata, keys.LOWERCASE, True)
    strips_space = {
        "bpe": False,
        "spm": add_space_prefix,
        "unigram": add_space_prefix or merge_spaces,
        "wpm": True,
    }
    return Vocabulary(
        family=family,
        pre=pre,
        tokens=tokens,
        ids=ids,
        kinds=kinds,
        scores=_scores(metadata, len(tokens)) if family.algorithm in ("spm", "unigram") else [],
        merges=_merges(metadata) if byte_pairs else [],
        roles=roles,
        ends=ends,
        suppressed=suppressed,
        prefix=prefix,
        suffix=suffix,
        strips_space=strips_space[family.algorithm],
        add_space_prefix=add_space_prefix,
        merge_spaces=merge_spaces,
        charsmap=_bytes(metadata, keys.CHARSMAP),
        lowercase=lowercase,
        strip_accents=_flag(metadata, keys.STRIP_ACCENTS, lowercase),
        keys_used=keys_used,
    )


def _surroundings(
    metadata: Mapping[str, Any], family: Family, pre: PreTokenizer, roles: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before and after a text."""
    for role in family.needs:
        if role not in roles:
            raise InputError(
                f"this kind of tokenizer needs a {role.upper()} token, and the file names none",
                where=keys.MODEL,
                hint=f"{family.role_keys[role][0]} is missing",
            )
    if family.surrounded_by:
        first, last = family.surrounded_by
        return (roles[first],), (roles[last],)
    add_bos = pre.force_bos or _flag(metadata, keys.ADD_BOS, family.add_bos or pre.add_bos)
    add_eos = _flag(metadata, keys.ADD_EOS, family.add_eos)
    for wanted, key, role in ((add_bos, keys.ADD_BOS, "bos"), (add_eos, keys.ADD_EOS, "eos")):
        if wanted and role not in roles:
            raise InputError(
                f"a {role.upper()} token is to be added, but the file names none",
                where=key,
                hint=f"{keys.ROLE_KEYS[role][0]} is missing",
            )
    return (roles["bos"],) if add_bos else (), (roles["eos"],) if add_eos else ()


def _family(metadata: Mapping[str, Any]) -> Family:
    name = _value(metadata, keys.MODEL, str)
    if name not in FAMILIES:
        raise UnsupportedError(
            f"tokenizer {name!r}", where=keys.MODEL, hint="known are " + ", ".join(sorted(FAMILIES))
        )
    return FAMILIES[name]


def _pre_tokenizer(metadata: Mapping[str, Any], family: Family) -> PreTokenizer:
    if family.pre is None and keys.PRE not in metadata:
        raise InputError(
            "the file does not say how text is split into words",
            where=keys.PRE,
            hint="it was written by an old converter; convert the model again",
        )
    return pre_tokenizer(family.pre or _value(metadata, keys.PRE, str))


def _value(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    if key not in metadata:
        raise InputError("missing metadata key", where=key, hint="the file has no complete tokenizer")
    value = metadata[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"expected {kind.__name__}, found {type(value).__name__}", where=key)
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    return bool(_value(metadata, key, bool)) if key in metadata else default


def _array(metadata: Mapping[str, Any], key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
    """The elements of an array, all of type `kind`; `default` (None: refuse) if the key is missing."""
    if key not in metadata and default is not None:
        return default
    if key not in metadata:
        raise InputError("missing metadata key", where=key, hint="the file has no complete tokenizer")
    value = metadata[key]
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InputError(f"expected an array, found {type(value).__name__}", where=key)
    elements = list(value)
    odd = {type(element) for element in elements} - {kind}
    if odd:
        raise InputError(f"expected an array of {kind.__name__}, found {odd.pop().__name__} in it", where=key)
    return elements


def _bytes(metadata: Mapping[str, Any], key: str) -> bytes:
    """An array of bytes, signed or not; empty if the key is missing."""
    values = _array(metadata, key, int, [])
    if any(not -128 <= value < 256 for value in values):
        raise InputError("the array holds numbers that are no bytes", where=key)
    return bytes(value & 0xFF for value in values)


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    strings = _array(metadata, key, str)
    if not strings:
        raise InputError("the array is empty", where=key)
    return strings


def _of_length(values: list[Any], key: str, count: int) -> list[Any]:
    if len(values) != count:
        raise InputError(f"{len(values)} elements for {count} tokens", where=key)
    return values


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {text: i for i, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(i for i, text in enumerate(tokens) if ids[text] != i)
        raise InputError(
            f"tokens {twice} and {ids[tokens[twice]]} are both {tokens[twice]!r}", where=keys.TOKENS
        )
    return ids


def _kinds(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    types = _of_length(_array(metadata, keys.TYPES, int, [1] * len(tokens)), keys.TYPES, len(tokens))
    unknown = set(types) - _KIND_OF_TYPE.keys()
    if unknown:
        raise InputError(f"unknown token type {min(unknown)}", where=keys.TYPES)
    kinds = [_KIND_OF_TYPE[value] for value in types]
    for i, kind in enumerate(kinds):
        if kind == Kind.BYTE and not re.fullmatch("<0x[0-9A-Fa-f]{2}>", tokens[i]):
            raise InputError(f"byte token {i} is {tokens[i]!r}, not of the form <0x0A>", where=keys.TOKENS)
    return kinds


def _scores(metadata: Mapping[str, Any], count: int) -> list[float]:
    # Without scores all merges are equal and the leftmost comes first; llama.cpp reads them that way too.
    default = [0.0] * count
    try:
        scores = _array(metadata, keys.SCORES, float, default)
    except InputError:
        scores = [float(score) for score in _array(metadata, keys.SCORES, int, default)]
    _of_length(scores, keys.SCORES, count)
    if any(score != score for score in scores):
        raise InputError("a score is not a number", where=keys.SCORES)
    return scores


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of token texts; a pair that occurs twice counts where it is first."""
    merges: dict[tuple[str, str], None] = {}
    for i, merge in enumerate(_array(metadata, keys.MERGES, str)):
        # The first token may begin with a space, so the border is sought behind its first character.
        border = merge.find(" ", 1)
        if border < 0 or border + 1 == len(merge):
            raise InputError(
                f"merge {i} is {merge!r}, not two tokens with a space between", where=keys.MERGES
            )
        merges.setdefault((merge[:border], merge[border + 1 :]))
    return list(merges)


def _roles(metadata: Mapping[str, Any], family: Family, count: int) -> dict[str, int]:
    roles = {role: i for role, i in family.roles.items() if i < count}
    for role, candidates in family.role_keys.items():
        for key in candidates:
            if key not in metadata:
                continue
            value = _value(metadata, key, int)
            if not 0 <= value < count:
                raise InputError(f"token {value} of a vocabulary of {count}", where=key)
            roles[role] = value
    return roles


def roles_by_text(roles: dict[str, int], ids: Mapping[str, int], kinds: list[int]) -> None:
    """Gives the roles that no key gave to the tokens whose text says it, and makes these control tokens."""
    for role, texts in names.ROLE_TEXTS.items():
        found = [ids[text] for text in texts if text in ids]
        if role not in roles and found:
            roles[role] = found[0]
            kinds[found[0]] |= Kind.CONTROL


def ends_of(roles: Mapping[str, int], ids: Mapping[str, int], kinds: list[int]) -> frozenset[int]:
    """The ids that end generation; corrects the kinds of those and of a few others by their text."""
    by_text = {ids[text] for text in names.END_TEXTS if text in ids}
    for i in by_text:
        kinds[i] |= Kind.CONTROL
    for text in names.ALWAYS_TEXT:
        if text in ids:
            kinds[ids[text]] = int(Kind.USER_DEFINED)
    ends = by_text | {roles[role] for role in names.END_ROLES if role in roles}
    texts = {text for text in names.END_TEXTS | names.NORMAL_S_BESIDE if ids.get(text) in ends}
    for present, text in names.NOT_AN_END_BESIDE:
        if present <= texts and ids.get(text) in ends:
            ends.discard(ids[text])
            kinds[ids[text]] = int(Kind.USER_DEFINED)
    if texts & names.NORMAL_S_BESIDE and "</s>" in texts:
        ends.discard(ids["</s>"])
        kinds[ids["</s>"]] = int(Kind.NORMAL)
    return frozenset(ends)


def _strip_rules(metadata: Mapping[str, Any], ids: Mapping[str, int], kinds: list[int]) -> None:
    """Marks the tokens that swallow white space beside them, which no key of a GGUF file says."""
    model = str(metadata.get("general.name", "")).lower()
    architecture = str(metadata.get("general.architecture", ""))
    pre = str(metadata.get(keys.PRE, ""))
    left = ""
    if any(name in pre for name in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        name in architecture for name in ("nomic-bert-moe", "jina-bert-v3")
    ):
        left = "<mask>"
    elif "phi-3" in model or "phi3" in model:
        for i, kind in enumerate(kinds):
            if kind & SPECIAL:
                kinds[i] |= Kind.STRIP_RIGHT
        if "</s>" in ids:
            kinds[ids["</s>"]] |= Kind.STRIP_RIGHT
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            if text in ids:
                kinds[ids[text]] &= ~Kind.STRIP_RIGHT
    elif "modern-bert" in model:
        left = "[MASK]"
    if left in ids:
        kinds[ids[left]] |= Kind.STRIP_LEFT
