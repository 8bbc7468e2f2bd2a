"""Text to token ids and back, from the metadata of a GGUF file."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from anex.errors import InputError
from anex.models.tokenizer import bpe, spm, vocabulary
from anex.models.tokenizer.vocabulary import HIDDEN, SPACE_MARK, SPECIAL, Kind, Vocabulary

# What C's isspace() means: the white space that a token with a strip rule swallows.
_C_SPACE = " \t\n\v\f\r"


class Tokenizer:
    """The tokenizer of a model; its ids are llama.cpp's.

    Differences from llama.cpp, all on the side of refusing or of keeping the text: a file that does not
    name its pre-tokenizer, its BOS token though one is to be added, or tokens that its merges need, is
    refused; decoding never removes a space before punctuation (llama.cpp's clean_up_tokenization_spaces).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        family = spm if vocabulary.family.sentencepiece else bpe
        self._encode_plain = family.encoder(vocabulary)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Builds the tokenizer from the `tokenizer.*` keys of a GGUF file.

        Args:
            metadata: Key -> value; arrays as sequences or numpy arrays. general.name and
                general.architecture are looked at too, for two rules that have no key of their own.

        Raises:
            InputError: A key is missing, has the wrong type or length, or contradicts another.
            UnsupportedError: The tokenizer, its pre-tokenizer or a key is not known; it is named.
        """
        return cls(vocabulary.read(metadata))

    @property
    def keys_used(self) -> frozenset[str]:
        """The `tokenizer.*` keys of the file: each is in `CONSUMED`, or `neutral_reason` says why not."""
        return self._vocabulary.keys_used

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary.tokens)

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._vocabulary.roles.get("bos")

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._vocabulary.roles.get("eos")

    @property
    def eot(self) -> int | None:
        """The token that ends a turn of a conversation."""
        return self._vocabulary.roles.get("eot")

    @property
    def unk(self) -> int | None:
        """The token for what the vocabulary cannot write."""
        return self._vocabulary.roles.get("unk")

    @property
    def eog(self) -> frozenset[int]:
        """The tokens that end generation."""
        return self._vocabulary.ends

    @property
    def suppressed(self) -> frozenset[int]:
        """The tokens that the file says must never be generated."""
        return self._vocabulary.suppressed

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts a BOS token first."""
        return self._vocabulary.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether `encode` puts an EOS token last."""
        return self._vocabulary.add_eos

    def id_of(self, text: str) -> int | None:
        """The id of the token that the file writes `text`, such as "<|im_end|>"; None if there is none."""
        return self._vocabulary.ids.get(text)

    def is_control(self, token: int) -> bool:
        """Whether a token is a control or unknown token: no text, hidden by `skip_special`."""
        return bool(self._vocabulary.kinds[self._checked(token)] & HIDDEN)

    def token(self, token: int) -> bytes:
        """The text of a token, as UTF-8 bytes; a token may end within a character.

        Raises:
            InputError: There is no such token.
        """
        return self._pieces[self._checked(token)]

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text.

        Args:
            text: Any text; may be empty.
            add_special: Add the BOS and EOS tokens that the file asks for.
            parse_special: Read the texts of control tokens as these tokens. Where the text is not one's
                own, this lets it pretend to be part of the prompt's structure.

        Raises:
            InputError: The text is not Unicode (lone surrogates), or the vocabulary cannot write it.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not valid Unicode at character {error.start}") from None
        roles = self._vocabulary.roles
        ids = [roles["bos"]] if add_special and self.add_bos else []
        prefix = " " if self._space_prefix else ""
        after_special = True
        for fragment in self._fragments(text, parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += self._encode_plain(prefix + fragment if after_special else fragment)
            after_special = isinstance(fragment, int)
        return ids + ([roles["eos"]] if add_special and self.add_eos else [])

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, continued: bool = False) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            skip_special: Leave control and unknown tokens out.
            continued: The ids go on with a text. Otherwise the space that `encode` put before the first
                word of a SentencePiece vocabulary is taken away again.

        Raises:
            InputError: An id is not in the vocabulary.
        """
        stream = self.stream(skip_special=skip_special, continued=continued)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, *, skip_special: bool = False, continued: bool = True) -> StreamDecoder:
        """A decoder for ids that come one at a time; by default they go on with a text (see `decode`)."""
        return StreamDecoder(self, skip_special=skip_special, continued=continued)

    @property
    def _space_prefix(self) -> bool:
        return self._vocabulary.add_space_prefix and self._vocabulary.family.sentencepiece

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise InputError(f"token {token} of a vocabulary of {self.vocab_size}")
        return token

    @cached_property
    def _pieces(self) -> _Pieces:
        return _Pieces(self._vocabulary)

    @cached_property
    def _special(self) -> list[int]:
        """The tokens that are cut out of a text first, the longest (in bytes) first."""
        special = [i for i, kind in enumerate(self._vocabulary.kinds) if kind & SPECIAL]
        tokens = self._vocabulary.tokens
        return sorted(special, key=lambda i: -len(tokens[i].encode("utf-8", "surrogateescape")))

    def _fragments(self, text: str, parse_special: bool) -> list[str | int]:
        """`text` cut into special tokens and the texts between them; no text is empty."""
        tokens, kinds = self._vocabulary.tokens, self._vocabulary.kinds
        fragments: list[str | int] = [text] if text else []
        for i in self._special:
            if tokens[i] in text and (parse_special or not kinds[i] & HIDDEN):
                fragments = list(_cut_out(fragments, i, tokens[i], kinds[i]))
        return fragments


class _Pieces(dict[int, bytes]):
    """The bytes of tokens, made when first asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __missing__(self, token: int) -> bytes:
        self[token] = piece = _piece(self._vocabulary, token)
        return piece


def _piece(vocabulary: Vocabulary, token: int) -> bytes:
    text, kind = vocabulary.tokens[token], vocabulary.kinds[token]
    if kind & SPECIAL:
        return text.encode("utf-8", "surrogateescape")
    if kind & Kind.NORMAL and vocabulary.pre.byte_level and not vocabulary.family.sentencepiece:
        return bpe.text_bytes(text)
    if kind & Kind.NORMAL:
        return text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
    if kind & Kind.BYTE:
        return bytes([int(text[3:5], 16)])
    return b""


def _cut_out(fragments: list[str | int], token: int, mark: str, kind: int) -> Iterator[str | int]:
    """`fragments` with every `mark` in the texts replaced by `token`; what remains empty is dropped."""
    for fragment in fragments:
        rest = fragment
        while isinstance(rest, str) and mark in rest:
            left, _, rest = rest.partition(mark)
            if kind & Kind.STRIP_LEFT:
                left = left.rstrip(_C_SPACE)
            if kind & Kind.STRIP_RIGHT:
                # Before the search goes on: a mark may itself be white space.
                rest = rest.lstrip(_C_SPACE)
            if left:
                yield left
            yield token
        if rest != "":
            yield rest


class StreamDecoder:
    """Turns ids into text as they come; `push` only gives whole characters."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, continued: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._at_start = not continued and tokenizer._space_prefix
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token; it may be empty.

        Raises:
            InputError: There is no such token.
        """
        tokenizer = self._tokenizer
        piece = tokenizer.token(token)
        if self._at_start and not tokenizer.is_control(token):
            piece = piece.removeprefix(b" ")
            self._at_start = False
        if self._skip_special and tokenizer.is_control(token):
            return ""
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was cut off, else nothing."""
        return self._utf8.decode(b"", final=True)
