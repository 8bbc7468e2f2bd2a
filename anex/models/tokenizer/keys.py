"""What becomes of every `tokenizer.*` key of a GGUF file: consumed, neutral, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anex.errors import UnsupportedError

PREFIX = "tokenizer."

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
SCORES = "tokenizer.ggml.scores"
MERGES = "tokenizer.ggml.merges"
ADD_BOS = "tokenizer.ggml.add_bos_token"
ADD_EOS = "tokenizer.ggml.add_eos_token"
ADD_SPACE = "tokenizer.ggml.add_space_prefix"
SUPPRESS = "tokenizer.ggml.suppress_tokens"
CLS = "tokenizer.ggml.cls_token_id"
SEPARATOR = "tokenizer.ggml.seperator_token_id"
MERGE_SPACES = "tokenizer.ggml.remove_extra_whitespaces"
CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"

# The roles that a token can have, and the keys that give its id, the later one winning as in llama.cpp.
ROLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "bos": ("tokenizer.ggml.bos_token_id",),
    "eos": ("tokenizer.ggml.eos_token_id",),
    "eot": ("tokenizer.ggml.eot_token_id",),
    "eom": ("tokenizer.ggml.eom_token_id",),
    "unk": ("tokenizer.ggml.unknown_token_id",),
    "fim_pre": ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    "fim_suf": ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    "fim_mid": ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
    "fim_pad": ("tokenizer.ggml.fim_pad_token_id",),
    "fim_rep": ("tokenizer.ggml.fim_rep_token_id",),
    "fim_sep": ("tokenizer.ggml.fim_sep_token_id",),
}

# The same of BERT, whose texts begin with a token of another name.
BERT_ROLE_KEYS: Mapping[str, tuple[str, ...]] = {
    **ROLE_KEYS,
    "bos": (CLS, *ROLE_KEYS["bos"]),
    "sep": (SEPARATOR,),
}

# Keys that change the text before it is tokenised -> the only tokenizer that llama.cpp reads them for.
NORMALIZING: Mapping[str, str] = {CHARSMAP: "t5", LOWERCASE: "bert", STRIP_ACCENTS: "bert"}

CONSUMED: frozenset[str] = frozenset(
    {MODEL, PRE, TOKENS, TYPES, SCORES, MERGES, ADD_BOS, ADD_EOS, ADD_SPACE, SUPPRESS, MERGE_SPACES}
).union(NORMALIZING, *ROLE_KEYS.values(), *BERT_ROLE_KEYS.values())
"""Keys that change what the tokenizer does."""

NEUTRAL: Mapping[str, str] = {
    "tokenizer.chat_template": "no part of tokenising; the chat template reads it",
    "tokenizer.chat_templates": "names of further chat templates; the chat template reads it",
    "tokenizer.huggingface.json": "a copy of the vocabulary in another form",
    "tokenizer.ggml.added_tokens": "history: the tokens themselves and their types are in the vocabulary",
    "tokenizer.ggml.token_type_count": "segments of a BERT encoder, which reads it; no token ids",
    "tokenizer.ggml.add_sep_token": "BERT's tokenizer always adds a separator, and no other one does",
    "tokenizer.ggml.mask_token_id": "a name of a token; nothing is masked here",
    "tokenizer.ggml.padding_token_id": "a name of a token; batches are not padded",
}
"""Keys that change nothing, with the reason."""

NEUTRAL_PREFIXES: Mapping[str, str] = {
    "tokenizer.chat_template.": "a further chat template; the chat template reads it",
}
"""Beginnings of keys that change nothing, with the reason."""


def neutral_reason(key: str) -> str | None:
    """Why `key` changes nothing in the tokenizer; None if it is not known to."""
    reasons = [reason for prefix, reason in NEUTRAL_PREFIXES.items() if key.startswith(prefix)]
    return NEUTRAL.get(key, reasons[0] if reasons else None)


def account(metadata: Mapping[str, Any]) -> frozenset[str]:
    """The `tokenizer.*` keys of `metadata`, each of them consumed or neutral.

    Raises:
        UnsupportedError: A key is neither; it is named.
    """
    present = frozenset(key for key in metadata if key.startswith(PREFIX))
    for key in sorted(present - CONSUMED):
        if neutral_reason(key) is None:
            raise UnsupportedError(f"metadata key {key}", hint="it may change how text becomes tokens")
    for key, model in NORMALIZING.items():
        if metadata.get(MODEL) != model and metadata.get(key, False) is not False:
            raise UnsupportedError(f"metadata key {key} with a tokenizer that is not {model!r}")
    return present
