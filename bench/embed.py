"""Measures sentence embeddings beside torch on the same cores, and writes a section of docs/performance.md.

    make bench-embed PEER=/path/to/python     # a Python with sentence-transformers

The model is all-MiniLM-L6-v2 (tools/fetch_minilm.py).  The two programs take turns on the same texts.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import re
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import Table, machine, spread

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, SENTENCES, PARAGRAPHS = 5, 96, 24
MARK = "## Sentence embeddings"

SECTION = """{mark}

Measured on {date} by `make bench-embed` (`bench/embed.py`).
Machine: {machine}; {threads} threads. anex {anex}, jax {jax}; {peer}, in float32. The model is
all-MiniLM-L6-v2, the texts are Python's own documentation: {sentences} sentences of {short:.0f} tokens and
{paragraphs} paragraphs of {long:.0f} tokens on average. anex runs one text at a time, as the engine would;
torch runs batches of texts of like length, and one at a time. Medians of {rounds} rounds taken in turns.
**The emulator on a CPU: nothing here says anything about the Neural Engine.**

{table}
"""


def texts() -> tuple[list[str], list[str]]:
    """Sentences, and paragraphs of about a hundred tokens."""
    from pydoc_data.topics import topics

    plain = "\n\n".join(topics[name] for name in ("class", "import", "exceptions", "naming", "strings"))
    parts = [" ".join(part.split()) for part in plain.split("\n\n")]
    sentences = [s for part in parts for s in re.findall(r"[A-Z][^.!?]{20,200}[.!?]", part)]
    return sentences[:SENTENCES], textwrap.wrap(" ".join(parts), 400)[:PARAGRAPHS]


class Peer:
    """A process of the peer's Python; see embed_peer.py."""

    def __init__(self, python: str, folder: Path, given: list[str], threads: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        texts = Path(self.folder.name) / "texts.json"
        texts.write_text(json.dumps(given))
        script = Path(__file__).with_name("embed_peer.py")
        self.process = subprocess.Popen(
            [python, script, folder, texts, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        first = self._answer()
        self.versions = str(first["versions"])
        self.embeddings = np.array(first["embeddings"])

    def seconds(self, batch: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batch}\n")
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        self.process.communicate()
        self.folder.cleanup()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))


def compare(table: Table, name: str, ours: Any, peer: Peer, given: list[str]) -> None:
    found = ours.embed(given).astype(np.float64)
    worst = float((found * peer.embeddings).sum(1).min())
    table.add(f"{name}: smallest cosine with torch's", "≥ 0.9999", f"{worst:.7f}", worst >= 0.9999)
    rates: dict[str, list[float]] = {"anex": [], "batches of 32": [], "one at a time": []}
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        ours.embed(given)
        rates["anex"].append(len(given) / (time.perf_counter() - begin))
        rates["batches of 32"].append(len(given) / peer.seconds(32))
        rates["one at a time"].append(len(given) / peer.seconds(1))
    for way in ("batches of 32", "one at a time"):
        ratio = float(np.median(rates["anex"]) / np.median(rates[way]))
        measured = f"{ratio:.2f}×: {spread(rates['anex'], 1)} texts/s against {spread(rates[way], 1)}"
        table.add(f"{name}: against torch, {way}", "", measured, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--peer", required=True, help="a Python with sentence-transformers")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance.md")
    args = parser.parse_args()
    import anex

    table, means, versions = Table(), [], ""
    with anex.load_encoder(args.model, numerics="fp16", threads=args.threads) as ours:
        for name, given in zip(("sentences", "paragraphs"), texts(), strict=True):
            means.append(float(np.mean([len(ours.tokens(text)) for text in given])))
            peer = Peer(args.peer, args.model, given, args.threads)
            versions = peer.versions
            compare(table, name, ours, peer, given)
            peer.close()
    section = SECTION.format(
        mark=MARK,
        date=datetime.date.today().isoformat(),
        machine=machine(),
        threads=args.threads,
        anex=importlib.metadata.version("anex"),
        jax=importlib.metadata.version("jax"),
        peer=versions,
        sentences=SENTENCES,
        paragraphs=PARAGRAPHS,
        short=means[0],
        long=means[1],
        rounds=ROUNDS,
        table=table.markdown(),
    )
    page = args.output.read_text() if args.output.exists() else "# Performance\n"
    before, _, after = page.partition(MARK)
    _, head, rest = after.partition("\n## ")
    args.output.write_text(before.rstrip() + "\n\n" + section + (f"\n{head.strip()} {rest}" if head else ""))
    print(section)


if __name__ == "__main__":
    main()
