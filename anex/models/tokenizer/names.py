"""What llama.cpp concludes from the text of a token, because files often lack the key that says it.

Source: llama_vocab::impl::load in llama.cpp's src/llama-vocab.cpp (MIT licence).
"""

from __future__ import annotations

from collections.abc import Mapping

# Role -> texts of tokens that have it where the file does not say. llama.cpp takes whichever of several
# its hash table yields first; here it is the first of the list.
ROLE_TEXTS: Mapping[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

# Roles whose token ends generation.
END_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

# Texts of tokens that end generation.
END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)

# Texts of tokens that are always text of the answer, in the formats of gpt-oss.
ALWAYS_TEXT = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

# Where all the texts of a set end generation, the token after it does not: it ends a message there.
NOT_AN_END_BESIDE: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|return|>", "<|calls|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|calls|>"}), "<|end|>"),
)

# Where one of these ends generation, "</s>" is a normal token.
NORMAL_S_BESIDE = frozenset({"<|tool_response>", "<|plamo:eos|>"})
