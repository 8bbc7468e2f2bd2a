"""Tokenizers of GGUF files, with llama.cpp's ids, and of tokenizer.json, with the tokenizers library's."""

from anex.models.tokenizer.keys import CONSUMED, NEUTRAL, neutral_reason
from anex.models.tokenizer.tokenizer import StreamDecoder, Tokenizer

__all__ = ["CONSUMED", "NEUTRAL", "StreamDecoder", "Tokenizer", "neutral_reason"]
