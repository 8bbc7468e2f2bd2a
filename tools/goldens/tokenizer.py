"""Regenerates tests/data/tokenizer: small vocabularies, and the ids that llama.cpp gives with them.

    LLAMA_CPP_LIB_PATH=<folder with libllama> PYTHONPATH=<llama-cpp-python> \\
        python tools/goldens/tokenizer.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

The texts are those of tests/data/tokenizer/corpus.toml.

Needs llama.cpp with its Python binding, and the SmolLM2 file for its vocabulary (Apache-2.0). Nothing of
anex's tokenizer is used. The files that it writes:

* bpe.gguf, utf8.gguf, spm.gguf, wpm.gguf, unigram.gguf, smollm2.gguf.xz: vocabularies without weights.
* <set>.json: for a vocabulary, and for other values of some keys of it, `special` (BOS and EOS added,
  control tokens read) and `plain` (neither) ids of every text, `eog`, `hidden` (tokens without text if
  special tokens are not shown) and `pieces` (token -> bytes).
* pre.json: for every pre-tokenizer, the ids of every text; per text each list of ids is stored once.
* ends.json: which of some added tokens end generation, and which are hidden.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import lzma
import re
import struct
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests/data/tokenizer"
SOURCE = tomllib.loads((DATA / "corpus.toml").read_text(encoding="utf-8"))
CORPUS = [text for group in SOURCE["texts"].values() for text in group]
# Without the texts that spell control tokens, lest their characters merge to them. Twice, because a pair
# must be seen twice to become a merge.
TRAINING = [text for name, group in SOURCE["texts"].items() if name != "control_tokens" for text in group * 2]
PRE_TOKENIZERS = ROOT / "anex/models/tokenizer/pre_tokenizers.toml"
GGML = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
EXTRA = {
    "<unk>": UNKNOWN,
    "<s>": CONTROL,
    "</s>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<tool>": USER_DEFINED,
    "<tool><tool>": USER_DEFINED,
    "    ": USER_DEFINED,
    "<never>": UNUSED,
}
BERT_ROLES = {"padding": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "bos": "[CLS]", "seperator": "[SEP]"}
# Prefixes of one another, of one to four bytes, to nothing, to less and to more; as NFKC and its like have.
REPLACEMENTS = {
    "\t": " ",
    "\n": " ",
    "\r": " ",
    "\u00a0": " ",
    "\u3000": " ",
    "\u200b": "",
    "\x7f": "",
    "e\u0301": "é",
    "a\u0308": "ä",
    "a\u0308o": "äo",
    "ﬁ": "fi",
    "½": "1⁄2",
    "Ⅷ": "VIII",
    "Ａ": "A",
    "𝟙": "1",
    "…": "...",
    "👍🏽": "👍",
    "ﾀ": "タ",
}
# Words that are tokens though no merges lead to them.
UNREACHABLE = ("unreachable", "12", "Ġelsewhere")

Metadata = dict[str, Any]


class LlamaCpp:
    """A vocabulary opened by llama.cpp."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise SystemExit(f"llama.cpp refused {path}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)

    def ids(self, text: str, special: bool) -> list[int]:
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(
            self._vocabulary, data, len(data), buffer, len(buffer), special, special
        )
        return list(buffer[:count])

    def piece(self, token: int, special: bool = True) -> bytes:
        buffer = ctypes.create_string_buffer(4096)
        size = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, special)
        return buffer.raw[:size]

    def ends(self) -> list[int]:
        return [i for i in range(self.size) if llama_cpp.llama_vocab_is_eog(self._vocabulary, i)]

    def hidden(self) -> list[int]:
        return [i for i in range(self.size) if self.piece(i) and not self.piece(i, special=False)]

    def close(self) -> None:
        llama_cpp.llama_model_free(self._model)


def write_gguf(path: Path, metadata: Metadata) -> None:
    """A GGUF file without tensors."""
    writer = gguf.GGUFWriter(path, str(metadata.get("general.architecture", "llama")))
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bytes):
            writer.add_array(key, value)  # an array of unsigned bytes
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def opened(metadata: Metadata) -> LlamaCpp:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_gguf(path, metadata)
        return LlamaCpp(path)


def train(texts: Iterable[str], size: int, **options: Any) -> tuple[list[str], list[str]]:
    """Tokens, the single characters first, and merges of a BPE that has seen `texts`, spaces included."""
    model = Tokenizer(BPE())
    if options.pop("byte_level"):
        # Words are not split, so that merges cross every border that a pre-tokenizer may draw.
        model.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        options["initial_alphabet"] = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=size, show_progress=False, max_token_length=9, **options)
    model.train_from_iterator(texts, trainer)
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in json.loads(model.to_str())["model"]["merges"]
    ]
    merged = [merge.replace(" ", "") for merge in merges]
    single = sorted(text for text in model.get_vocab() if len(text) == 1)
    return single + list(dict.fromkeys(merged)), merges


def vocabulary(model: str, tokens: Mapping[str, int], **more: Any) -> Metadata:
    return {
        "general.architecture": "llama",
        f"{GGML}model": model,
        f"{GGML}tokens": list(tokens),
        f"{GGML}token_type": list(tokens.values()),
        f"{GGML}bos_token_id": list(tokens).index("<s>"),
        f"{GGML}eos_token_id": list(tokens).index("</s>"),
        f"{GGML}unknown_token_id": list(tokens).index("<unk>"),
        **{f"{GGML}{key}": value for key, value in more.items()},
    }


def byte_level_vocabulary() -> Metadata:
    single, merges = train(TRAINING, 640, byte_level=True)
    tokens = EXTRA | dict.fromkeys([*single, *UNREACHABLE], NORMAL)
    # A word that is reachable would not tell whether merges were ignored.
    merges = [merge for merge in merges if merge.replace(" ", "") not in UNREACHABLE]
    return vocabulary("gpt2", tokens, pre="gpt-2", merges=merges, add_bos_token=True, add_eos_token=True)


def byte_tokens() -> dict[str, int]:
    return {f"<0x{byte:02X}>": BYTE for byte in range(256)}


def utf8_vocabulary() -> Metadata:
    texts = [text.replace(" ", "▁") for text in TRAINING]
    single, merges = train(texts, 420, byte_level=False, limit_alphabet=120)
    tokens = EXTRA | byte_tokens() | dict.fromkeys([*single, "\n\n\n"], NORMAL)
    return vocabulary("gpt2", tokens, pre="sarvam-moe", merges=merges)


def sentencepiece_vocabulary() -> Metadata:
    texts = [text.replace(" ", "▁") for text in TRAINING]
    pieces, _ = train(texts, 420, byte_level=False, limit_alphabet=120)
    # The last one is a token without a strip rule where the name of the model brings the others one.
    tokens = EXTRA | byte_tokens() | dict.fromkeys(pieces, NORMAL) | {"<|endoftext|>": CONTROL}
    # Three pieces share each score: ties are part of the test.
    merged = [-(i // 3) - 0.5 for i in range(len(pieces))]
    scores = [0.0] * (len(tokens) - len(pieces) - 1) + merged + [0.0]
    return vocabulary("llama", tokens, pre="default", scores=scores)


def wordpiece_vocabulary() -> Metadata:
    """A BERT vocabulary as the converter of llama.cpp writes it: ▁ before the words, ## left out."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    model = Tokenizer(WordPiece(unk_token="[UNK]"))
    model.normalizer = BertNormalizer()
    model.pre_tokenizer = BertPreTokenizer()
    model.train_from_iterator(TRAINING, WordPieceTrainer(vocab_size=900, show_progress=False))
    pieces = [text.removeprefix("##") if text.startswith("##") else f"▁{text}" for text in model.get_vocab()]
    # Words that are only there with capital letters or accents show whether these were taken away.
    tokens = dict.fromkeys(special, CONTROL) | dict.fromkeys([*sorted(pieces), "▁Hello", "▁é", "▁Ä"], NORMAL)
    ids = {f"{role}_token_id": special.index(text) for role, text in BERT_ROLES.items()}
    return {
        "general.architecture": "bert",
        f"{GGML}model": "bert",
        f"{GGML}pre": "default",
        f"{GGML}tokens": list(tokens),
        f"{GGML}token_type": list(tokens.values()),
        **{f"{GGML}{key}": value for key, value in ids.items()},
    }


def unigram_vocabulary() -> Metadata:
    model = Tokenizer(Unigram())
    model.pre_tokenizer = Metaspace()
    trainer = UnigramTrainer(vocab_size=500, unk_token="<unk>", show_progress=False)
    model.train_from_iterator(TRAINING, trainer)
    # llama.cpp reads a token up to its first zero byte.
    pieces = {text: score for text, score in json.loads(model.to_str())["model"]["vocab"] if "\0" not in text}
    del pieces["<unk>"]
    # No user-defined token that begins like a replacement or a longer character: llama.cpp takes the first
    # bytes that a text shares with one for a character that nothing replaces.
    tokens = EXTRA | dict.fromkeys(pieces, NORMAL) | {"unusual": UNUSED}
    scores = [pieces.get(text, -20.0 if text == "unusual" else 0.0) for text in tokens]
    charsmap = compiled(REPLACEMENTS)
    more = {"scores": scores, "precompiled_charsmap": charsmap, "add_bos_token": True}
    flags = {"add_space_prefix": True, "remove_extra_whitespaces": True}
    return vocabulary("t5", tokens, pre="default", **more, **flags)


def compiled(replacements: Mapping[str, str]) -> bytes:
    """SentencePiece's table of replacements: a double array over the bytes of the keys, then the values.

    A node at i has its children at i ^ offset ^ byte, and where a key ends, its value at i ^ offset.
    """
    texts = b"".join(value.encode() + b"\0" for value in replacements.values())
    starts = [0]
    for value in replacements.values():
        starts.append(starts[-1] + len(value.encode()) + 1)
    values = {key.encode(): start for key, start in zip(replacements, starts, strict=False)}
    prefixes = {key[:end] for key in values for end in range(len(key) + 1)}
    units = {0: 0}

    def place(prefix: bytes, index: int) -> None:
        children = [p[-1] for p in prefixes if len(p) == len(prefix) + 1 and p.startswith(prefix)]
        labels = children + [0] * (prefix in values)
        if not labels:
            return
        offset = next(
            o for o in range(1, 1 << 20) if not any((index ^ o ^ label) in units for label in labels)
        )
        units[index] |= offset << 10 | (prefix in values) << 8
        for label in labels:
            units[index ^ offset ^ label] = label if label else 1 << 31 | values[prefix]
        for byte in sorted(children):
            place(prefix + bytes([byte]), index ^ offset ^ byte)

    place(b"", 0)
    size = (max(units) | 0xFF) + 1  # a byte that leads nowhere still leads into the table
    array = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(array)) + array + texts


def smollm2_vocabulary(path: Path) -> Metadata:
    reader = gguf.GGUFReader(path)
    keys = [key for key in reader.fields if key.startswith(GGML)]
    return {
        "general.architecture": "llama",
        "general.name": "SmolLM2 vocabulary",
        "general.license": "apache-2.0",
        **{key: reader.fields[key].contents() for key in keys},
    }


def answers(metadata: Metadata, pieces: Sequence[int] | None = None) -> Metadata:
    """What llama.cpp does with a vocabulary; `pieces` (all by default) are the tokens to spell."""
    reference = opened(metadata)
    spelled = range(reference.size) if pieces is None else pieces
    result = {
        "special": [reference.ids(text, True) for text in CORPUS],
        "plain": [reference.ids(text, False) for text in CORPUS],
        "eog": reference.ends(),
        "hidden": reference.hidden(),
        "pieces": {str(i): reference.piece(i).hex() for i in spelled},
    }
    reference.close()
    return result


def pre_names() -> list[str]:
    splits = tomllib.loads(PRE_TOKENIZERS.read_text())["split"]
    return [name for split in splits if split.get("byte_level", True) for name in split["names"]]


def pre_answers(metadata: Metadata) -> Metadata:
    """The ids of every text for every pre-tokenizer: per text the different lists, per name an index."""
    kept = {key: value for key, value in metadata.items() if "add_" not in key}
    lists: list[list[list[int]]] = [[] for _ in CORPUS]
    names = {}
    for name in pre_names():
        reference = opened(kept | {f"{GGML}pre": name})
        indices = []
        for text, known in zip(CORPUS, lists, strict=True):
            ids = reference.ids(text, True)
            if ids not in known:
                known.append(ids)
            indices.append(known.index(ids))
        names[name] = indices
        reference.close()
    return {"ids": lists, "names": names}


def ends_answers(metadata: Metadata) -> list[Metadata]:
    """Which of the token sets of the source, added as normal ones, end generation and are hidden."""
    result = []
    for added in SOURCE["ends"]["added"]:
        tokens = [*metadata[f"{GGML}tokens"], *added]
        types = [*metadata[f"{GGML}token_type"], *[NORMAL] * len(added)]
        reference = opened(metadata | {f"{GGML}tokens": tokens, f"{GGML}token_type": types})
        texts = {
            kind: [tokens[i] for i in ids if tokens[i] in added]
            for kind, ids in (("ends", reference.ends()), ("hidden", reference.hidden()))
        }
        result.append({"added": added, **texts})
        reference.close()
    return result


def dump(name: str, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    # A line per text keeps differences readable.
    (DATA / name).write_text(re.sub(r"(\]\]?),(?=[\"\[])", "\\1,\n", text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smollm2", type=Path, required=True, help="a GGUF file of SmolLM2")
    arguments = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    DATA.mkdir(parents=True, exist_ok=True)

    byte_level, utf8, spm = byte_level_vocabulary(), utf8_vocabulary(), sentencepiece_vocabulary()
    vocabularies = {
        "bpe": byte_level,
        "utf8": utf8,
        "spm": spm,
        "wpm": wordpiece_vocabulary(),
        "unigram": unigram_vocabulary(),
        "smollm2": smollm2_vocabulary(arguments.smollm2),
    }
    for name, metadata in vocabularies.items():
        write_gguf(DATA / f"{name}.gguf", metadata)
    big = DATA / "smollm2.gguf"
    big.with_suffix(".gguf.xz").write_bytes(lzma.compress(big.read_bytes(), preset=9))
    big.unlink()

    sets: dict[str, tuple[str, Metadata]] = {
        "bpe": ("bpe", {}),
        "bpe_bos_only": ("bpe", {f"{GGML}add_eos_token": False}),
        "utf8": ("utf8", {}),
        "gemma4": ("utf8", {f"{GGML}model": "gemma4", f"{GGML}add_bos_token": False}),
        "spm": ("spm", {}),
        "spm_no_prefix": ("spm", {f"{GGML}add_space_prefix": False, f"{GGML}add_eos_token": True}),
        "spm_strip": ("spm", {"general.name": "Phi-3 mini", f"{GGML}add_bos_token": False}),
        "wpm": ("wpm", {}),
        "wpm_cased": ("wpm", {f"{GGML}normalizer.lowercase": False}),
        "wpm_accents": ("wpm", {f"{GGML}normalizer.strip_accents": False}),
        "unigram": ("unigram", {}),
        "unigram_spaces": (
            "unigram",
            {f"{GGML}remove_extra_whitespaces": False, f"{GGML}add_bos_token": False},
        ),
        "unigram_plain": (
            "unigram",
            {f"{GGML}remove_extra_whitespaces": False, f"{GGML}add_space_prefix": False},
        ),
        "smollm2": ("smollm2", {}),
    }
    dump("pre.json", pre_answers(byte_level))
    dump("ends.json", ends_answers(byte_level))
    for name, (base, changes) in sets.items():
        metadata = vocabularies[base] | changes
        few = range(0, len(metadata[f"{GGML}tokens"]), 61) if base == "smollm2" else None
        dump(f"{name}.json", {"vocabulary": base, "changes": changes, **answers(metadata, few)})


if __name__ == "__main__":
    main()
