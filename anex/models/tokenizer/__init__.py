"""Tokenizers of GGUF files: byte-level BPE and SentencePiece, with llama.cpp's ids."""

from anex.models.tokenizer.keys import CONSUMED, NEUTRAL, neutral_reason
from anex.models.tokenizer.tokenizer import StreamDecoder, Tokenizer

__all__ = ["CONSUMED", "NEUTRAL", "StreamDecoder", "Tokenizer", "neutral_reason"]
