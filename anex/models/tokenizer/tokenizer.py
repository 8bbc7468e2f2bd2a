"""Text to token ids and back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import Any

from anex.errors import InputError
from anex.files import StrPath
from anex.models.tokenizer.facts import HIDDEN, Core


class Tokenizer:
    """The tokenizer of a model.

    From a GGUF file its ids are llama.cpp's, from a Hugging Face folder those of the `tokenizers` library.
    Differences, all on the side of refusing or of keeping the text: a file that does not name its
    pre-tokenizer, its BOS token though one is to be added, or tokens that its merges need, is refused;
    decoding never removes a space before punctuation (clean_up_tokenization_spaces).
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._facts = core.facts
        self._pieces = _Pieces(core)

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
        from anex.models.tokenizer.gguf import GGUFCore

        return cls(GGUFCore(metadata))

    @classmethod
    def from_json(cls, source: StrPath | Iterable[StrPath], *, vocab_size: int | None = None) -> Tokenizer:
        """Builds the tokenizer from the files of a Hugging Face model.

        Args:
            source: The model's folder, its `tokenizer.json` (the files beside it are read too), or the paths
                of exactly the files to read: tokenizer.json and as many as there are of
                tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json.
            vocab_size: The rows of the model's embedding table; by default what config.json says.

        Raises:
            InputError: A file is missing, malformed or too large, the files contradict each other, or the
                tokenizer has more tokens than the model.
            UnsupportedError: There is no tokenizer.json, or it needs something that anex does not do.
        """
        from anex.models.tokenizer.huggingface import JsonCore
        from anex.models.tokenizer.json_files import model_files

        return cls(JsonCore(model_files(source), vocab_size))

    @property
    def keys_used(self) -> frozenset[str]:
        """The `tokenizer.*` keys of a GGUF file: each is in `CONSUMED`, or `neutral_reason` says why not."""
        return self._facts.keys_used

    @property
    def vocab_size(self) -> int:
        return len(self._facts.kinds)

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._facts.roles.get("bos")

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._facts.roles.get("eos")

    @property
    def eot(self) -> int | None:
        """The token that ends a turn of a conversation."""
        return self._facts.roles.get("eot")

    @property
    def unk(self) -> int | None:
        """The token for what the vocabulary cannot write."""
        return self._facts.roles.get("unk")

    @property
    def eog(self) -> frozenset[int]:
        """The tokens that end generation."""
        return self._facts.ends

    @property
    def suppressed(self) -> frozenset[int]:
        """The tokens that the file says must never be generated."""
        return self._facts.suppressed

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts a BOS token first."""
        return self.bos in self._facts.prefix

    @property
    def add_eos(self) -> bool:
        """Whether `encode` puts an EOS token last."""
        return self.eos in self._facts.suffix

    def id_of(self, text: str) -> int | None:
        """The id of the token that the file writes `text`, such as "<|im_end|>"; None if there is none."""
        return self._facts.ids.get(text)

    def is_control(self, token: int) -> bool:
        """Whether a token is a control or unknown token: no text, hidden by `skip_special`."""
        return bool(self._facts.kinds[self._checked(token)] & HIDDEN)

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
            add_special: Add the tokens before and after a text that the file asks for.
            parse_special: Read the texts of control tokens as these tokens. Where the text is not one's
                own, this lets it pretend to be part of the prompt's structure.

        Raises:
            InputError: The text is not Unicode (lone surrogates), or the vocabulary cannot write it.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not valid Unicode at character {error.start}") from None
        ids = self._core.encode(text, parse_special)
        return [*self._facts.prefix, *ids, *self._facts.suffix] if add_special else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, continued: bool = False) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            skip_special: Leave control and unknown tokens out.
            continued: The ids go on with a text. Otherwise the space that `encode` put before the first
                word of some vocabularies is taken away again.

        Raises:
            InputError: An id is not in the vocabulary.
        """
        stream = self.stream(skip_special=skip_special, continued=continued)
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self, *, skip_special: bool = False, continued: bool = True) -> StreamDecoder:
        """A decoder for ids that come one at a time; by default they go on with a text (see `decode`)."""
        at_start = not continued and self._facts.strips_space
        return StreamDecoder(self, skip_special=skip_special, at_start=at_start)

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise InputError(f"token {token} of a vocabulary of {self.vocab_size}")
        return token


class _Pieces(dict[int, bytes]):
    """The bytes of tokens, made when first asked for."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core

    def __missing__(self, token: int) -> bytes:
        self[token] = piece = self._core.piece(token)
        return piece


class StreamDecoder:
    """Turns ids into text as they come; `push` only gives whole characters."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, at_start: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._at_start = at_start
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
