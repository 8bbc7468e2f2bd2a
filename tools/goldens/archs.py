"""Writes `docs/models.md`: what anex makes of a tiny model of each architecture that llama.cpp knows.

    test-llama-archs -o FOLDER          (of llama.cpp; writes the models, random numbers all of them)
    python tools/goldens/archs.py FOLDER --binding <llama-cpp-python> --libraries <folder with libllama>

A model is right (its logits are llama.cpp's, at level fp32 and but for the one
rounding of its weights to fp16) or refused by name; anything else ends with exit code 1.

The numbers of these models are so small that attention is nearly uniform and a
wrong rotation would not show: both programs get a copy whose norms have 1 added
to their weights, and whose factors of weights are 0.75.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import anex
from anex.errors import AnexError
from anex.formats.gguf import GGUFFile

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "goldens"))

import llama  # noqa: E402

PROMPT, TOKENS, CONTEXT = 70, 90, 256
"""Tokens taken in at once and in all, past the window of 32 that the models have."""

RIGHT = 1e-5
"""Most that the rounding of all weights to fp16 may cost: 2⁻²⁴ each, a few dozen in a row."""

TABLE = "<!-- table: written by tools/goldens/archs.py -->"


def sharpened(path: Path, folder: Path) -> Path:
    """A copy with larger norms, and factors of weights that are neither 1 nor nearly 0."""
    copy = Path(shutil.copy(path, folder / "model.gguf"))
    with GGUFFile(path) as file:
        for name, info in file.tensors.items():
            if info.storage != "F32" or not ("norm" in name or name.endswith(".scale")):
                continue
            numbers = np.memmap(copy, np.float32, "r+", info.offset, (info.size,))
            numbers[:] = 0.75 if name.endswith(".scale") else numbers + (not name.endswith(".bias"))
            numbers.flush()
    return copy


def outcome(path: Path, folder: Path) -> tuple[str, str]:
    """What became of a model: (right | wrong | refused, how far or why)."""
    ids = np.random.default_rng(7).integers(0, 128, TOKENS)
    try:
        with anex.load(path, numerics="fp32", cache_dir=folder, context=CONTEXT, text=False) as model:
            found = [model.session.logits([int(i) for i in ids[:PROMPT]])]
            found += [model.session.decode(int(i))[None] for i in ids[PROMPT:]]
    except AnexError as error:
        return "refused", error.what if hasattr(error, "what") else str(error)
    wanted = llama.logits(path, ids, PROMPT, CONTEXT).astype(np.float64)
    error = np.sum((np.concatenate(found) - wanted) ** 2) / np.sum(wanted**2)
    return ("right" if error < RIGHT else "wrong"), f"{error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--binding", help="folder that holds the package llama_cpp")
    parser.add_argument("--libraries", help="folder of libllama (else LLAMA_CPP_LIB_PATH)")
    parser.add_argument("--only", default="", help="models whose names start so; writes nothing")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "models.md")
    args = parser.parse_args()
    if args.binding:
        sys.path.insert(0, args.binding)
    if args.libraries:
        os.environ["LLAMA_CPP_LIB_PATH"] = args.libraries
    llama.silence()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(args.folder.glob(f"{args.only}*.gguf")):
            verdict, note = outcome(sharpened(path, Path(folder)), Path(folder))
            print(f"{path.stem:28} {verdict:8} {note}", flush=True)
            rows.append((path.stem, verdict, note))
    if not args.only:
        write(args.output, rows)
    raise SystemExit(any(verdict == "wrong" for _, verdict, _ in rows))


def write(page: Path, rows: list[tuple[str, str, str]]) -> None:
    """Put the table at the end of the page, in place of the last one."""
    counts = {verdict: sum(row[1] == verdict for row in rows) for verdict in ("right", "refused", "wrong")}
    head = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    lines = [f"{len(rows)} models: {head}.", "", "| model | | NMSE, or why not |", "|---|---|---|"]
    lines += [f"| {name} | {verdict} | {note.replace('|', '/')} |" for name, verdict, note in rows]
    before = page.read_text("utf-8").partition(TABLE)[0] if page.exists() else ""
    page.write_text(before + TABLE + "\n\n" + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
