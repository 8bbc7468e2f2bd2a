"""Telling model files apart without reading all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

SAMPLES, SAMPLE_BYTES = 512, 4096
"""How many pieces of a file's data, and how large, a fingerprint looks at."""


def fingerprint(parts: Iterable[tuple[memoryview, int]]) -> bytes:
    """A digest of the headers and of samples of the tensor data, spread over the files.

    Costs reading about 2 MB a file; files that differ in a few numbers only may have the same one.

    Args:
        parts: The bytes of each file, and how many of them are its header.
    """
    digest = hashlib.sha256()
    for data, header in parts:
        size = len(data)
        digest.update(data[:header])
        for start in range(header, size, max(SAMPLE_BYTES, (size - header) // SAMPLES)):
            digest.update(data[start : start + SAMPLE_BYTES])
        digest.update(data[max(header, size - SAMPLE_BYTES) :])
    return digest.digest()
