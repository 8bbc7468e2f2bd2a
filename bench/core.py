"""Measures what the core promises, side by side with llama.cpp, and writes docs/performance.md.

    make bench          # fetches SmolLM2, builds llama.cpp, runs this (a quarter of an hour)

Both programs run in one process, in turns, on the same weights: the GGUF's,
dequantised and rounded to fp16 (what the blob holds), written again as F16 and
F32 files for llama.cpp.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import Table, child, machine, spread
from reference import Peer

ROOT = Path(__file__).resolve().parent.parent
ANEX = Path(sys.executable).with_name("anex")
TOKENS, DECODED, ROUNDS = 512, 64, 7
Array = np.ndarray[Any, np.dtype[Any]]


def text() -> str:
    """Real text that is on every machine: Python's own documentation."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in ("class", "import", "exceptions", "naming"))


def rewritten(model: Path, target: Path, wide: bool) -> Path:
    """The weights of `model`, rounded to fp16, as an F16 or F32 file."""
    from anex.formats.gguf import GGMLType, GGUFFile, GGUFWriter, ValueType

    with GGUFFile(model) as source, GGUFWriter(target, source.metadata["general.architecture"]) as writer:
        for key in source.metadata:
            if key not in ("general.architecture", "general.file_type"):
                stored = source.metadata.types[key].removeprefix("array of ").upper()
                writer.add_metadata(key, source.metadata[key], ValueType[stored])
        for tensor in source.tensors.values():
            array = source.array(tensor, np.float16)
            narrow = not wide and len(tensor.shape) > 1
            kind = GGMLType.F16 if narrow else GGMLType.F32
            writer.add_tensor(tensor.name, array if narrow else array.astype(np.float32), kind)
    return target


def random_model(target: Path) -> Path:
    """A llama-family model of the size of Qwen3-0.6B with random F16 weights."""
    from anex.formats.gguf import GGMLType, GGUFWriter

    layers, dim, heads, kv_heads, head_dim, ffn, vocabulary = 28, 1024, 16, 8, 128, 3072, 151936
    numbers = (np.random.default_rng(0).standard_normal(1 << 22) * 0.02).astype(np.float16)

    def add(name: str, rows: int, columns: int) -> None:
        chunks = (np.resize(numbers, (min(1024, rows - i), columns)) for i in range(0, rows, 1024))
        writer.add_tensor(name, chunks, GGMLType.F16, (rows, columns))

    hyperparameters = {
        "block_count": layers,
        "embedding_length": dim,
        "feed_forward_length": ffn,
        "context_length": 4096,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": head_dim,
    }
    with GGUFWriter(target, "llama") as writer:
        for key, value in hyperparameters.items():
            writer.add_metadata(f"llama.{key}", value)
        add("token_embd.weight", vocabulary, dim)
        writer.add_tensor("output_norm.weight", np.ones(dim, np.float32), GGMLType.F32)
        for i in range(layers):
            for norm in ("attn_norm", "ffn_norm"):
                writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(dim, np.float32), GGMLType.F32)
            add(f"blk.{i}.attn_q.weight", heads * head_dim, dim)
            add(f"blk.{i}.attn_k.weight", kv_heads * head_dim, dim)
            add(f"blk.{i}.attn_v.weight", kv_heads * head_dim, dim)
            add(f"blk.{i}.attn_output.weight", dim, heads * head_dim)
            add(f"blk.{i}.ffn_gate.weight", ffn, dim)
            add(f"blk.{i}.ffn_up.weight", ffn, dim)
            add(f"blk.{i}.ffn_down.weight", dim, ffn)
    return target


def log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def accuracy(table: Table, model: Path, peer: Peer, threads: int) -> list[int]:
    """Logits of both levels against llama.cpp in F32; returns the token ids."""
    import anex

    with (
        anex.load(model, numerics="fp32", threads=threads) as wide,
        anex.load(model, numerics="fp16", threads=threads) as narrow,
    ):
        ids = wide.tokenizer.encode(text())[:TOKENS]
        reference = peer.logits(ids)
        exact, rounded = wide.logits(ids), narrow.logits(ids)
    nmse = float(((exact - reference) ** 2).sum() / (reference.astype(np.float64) ** 2).sum())
    table.add("fp32 level: NMSE of the logits", "≤ 1e-6", f"{nmse:.1e}", nmse <= 1e-6)
    order = np.sort(reference, axis=-1)
    clear = order[:, -1] - order[:, -2] > 0.1
    same = exact.argmax(-1) == reference.argmax(-1)
    agree = f"{same[clear].sum()} of {clear.sum()}"
    table.add(
        "fp32 level: same top token where the margin exceeds 0.1", "all", agree, bool(same[clear].all())
    )
    p, q = log_softmax(reference), log_softmax(rounded)
    kl = float((np.exp(p) * (p - q)).sum(-1).mean())
    table.add("fp16 level: KL divergence", "≤ 1e-4", f"{kl:.1e}", kl <= 1e-4)
    targets = np.array(ids[1:])
    loss = [-x[np.arange(TOKENS - 1), targets].mean() for x in (p, q)]
    change = float(np.exp(loss[1] - loss[0]) - 1)
    measured = f"{change:+.3%} ({np.exp(loss[0]):.3f} → {np.exp(loss[1]):.3f})"
    table.add("fp16 level: perplexity", "within 0.2 %", measured, abs(change) <= 0.002)
    return ids


def speed(table: Table, model: Path, narrow: Path, folder: Path, ids: list[int], threads: int) -> None:
    """Prefill and decode at level fp16, in turns with llama.cpp with and without flash attention."""
    import anex

    ours = anex.load(model, numerics="fp16", threads=threads)
    peers = [Peer(folder, narrow, threads=threads, context=1024, flash=flash) for flash in (False, True)]
    prefill: list[list[float]] = [[], [], []]
    decode: list[list[float]] = [[], [], []]
    for turn in range(ROUNDS + 1):
        for i, peer in enumerate(peers):
            peer.clear()
            first = TOKENS / peer.eval(ids, 0)
            steps = [peer.eval([ids[j]], TOKENS + j) for j in range(DECODED)]
            if turn:
                prefill[i].append(first)
                decode[i].append(DECODED / sum(steps))
        ours.session.begin()
        begin = time.perf_counter()
        ours.session.prefill(ids)
        middle = time.perf_counter()
        for j in range(DECODED):
            ours.session.decode(ids[j])
        if turn:  # the first turn compiles
            prefill[2].append(TOKENS / (middle - begin))
            decode[2].append(DECODED / (time.perf_counter() - middle))
    for what, rates, wanted in (
        ("prefill of 512 tokens", prefill, 0.8),
        ("decode of 64 tokens after them", decode, 0.5),
    ):
        best = max(rates[:2], key=np.median)
        ratio = float(np.median(rates[2]) / np.median(best))
        measured = (
            f"{ratio:.2f}×: {spread(rates[2], 0)} tok/s against {spread(best, 0)} "
            f"(flash attention {'off' if best is rates[0] else 'on'})"
        )
        table.add(f"fp16 level: {what}, against llama.cpp F16", f"≥ {wanted}×", measured, ratio >= wanted)
    ours.close()
    for peer in peers:
        peer.close()


def starts(table: Table, model: Path) -> None:
    """The command from nothing, and again; each in a cache of its own."""
    command = [
        Path(sys.executable).parent / "anex",
        "run",
        model,
        "-p",
        "The capital of France is",
        "-n",
        "64",
    ]
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(child(command, ANEX_CACHE=cache))
            warm += [child(command, ANEX_CACHE=cache) for _ in range(2)]
    for what, limit, runs in (
        ("`anex run`, nothing cached: command to first token, s", 12, cold),
        ("second start, s", 5, warm),
    ):
        first = [c.first for c in runs]
        table.add(what, f"≤ {limit}", spread(first), float(np.median(first)) <= limit)
    peak = max(c.peak for c in cold + warm) / 1e9
    table.add("peak memory of that run, GB", "≤ 1.6", f"{peak:.2f}", peak <= 1.6)


def conversions(table: Table, model: Path, large: Path) -> None:
    script = Path(__file__).with_name("convert.py")
    for name, path, seconds, limit in (
        ("SmolLM2 (98 MB, Q4_1)", model, 3.0, 0.35e9),
        ("a random model of Qwen3-0.6B's size (F16)", large, 5.0, 1.5e9),
    ):
        runs = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(child([sys.executable, script, path, folder]))
        peak = max(r.peak for r in runs)
        cpu = [r.cpu for r in runs]
        measured = f"{spread(cpu)} CPU-s, {peak / 1e6:.0f} MB, wall {spread([r.wall for r in runs])} s"
        wanted = f"≤ {seconds:.0f} CPU-s, ≤ {limit / 1e6:.0f} MB"
        reached = float(np.median(cpu)) <= seconds and peak <= limit
        table.add(f"{name} → verified MIL program + blob on disk", wanted, measured, reached)


def imports(table: Table) -> None:
    nothing = [child([sys.executable, "-c", "print()"]).wall for _ in range(7)]
    package = [child([sys.executable, "-c", "import anex; print()"]).wall for _ in range(7)]
    cost = float(np.median(package) - np.median(nothing))
    table.add("`import anex`, s beyond Python itself", "≤ 0.2", f"{cost:.3f}", cost <= 0.2)
    usage = [child([ANEX, "--help"]).wall for _ in range(7)]
    table.add("`anex --help`, s", "≤ 0.5", spread(usage), float(np.median(usage)) <= 0.5)


PAGE = """# Performance

What the core must reach, measured on {date} by `make bench` (`bench/core.py`).
Machine: {machine}; {threads} threads. anex {anex}, jax {jax}, llama.cpp from llama-cpp-python 0.3.36 built
with `GGML_NATIVE=ON`. Medians of several rounds, the range behind them in brackets; the
two programs took turns in one process. **Everything here is the emulator on a CPU; no figure on this
page says anything about the Neural Engine.**

Model: SmolLM2-135M-Instruct; text: Python's own documentation, {tokens} tokens. llama.cpp computes on
the same weights (the GGUF's, rounded to fp16 as the blob holds them), with an F32 KV cache for the
accuracy rows.

{table}

Other tools at the same task, from published figures (not measured here): ANEForge 0.4.0
builds a Qwen3-0.6B in 10.7–14.9 s with 3.6 GB.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--llama-cpp", type=Path, default=ROOT / "build" / "llama.cpp")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance.md")
    args = parser.parse_args()
    table = Table()
    scratch = Path(tempfile.mkdtemp())
    try:
        imports(table)
        starts(table, args.model)
        conversions(table, args.model, random_model(scratch / "random.gguf"))
        wide = rewritten(args.model, scratch / "f32.gguf", wide=True)
        peer = Peer(args.llama_cpp, wide, threads=args.threads, context=TOKENS, flash=False, wide_cache=True)
        ids = accuracy(table, args.model, peer, args.threads)
        peer.close()
        narrow = rewritten(args.model, scratch / "f16.gguf", wide=False)
        speed(table, args.model, narrow, args.llama_cpp, ids, args.threads)
    finally:
        shutil.rmtree(scratch)
    page = PAGE.format(
        date=datetime.date.today().isoformat(),
        machine=machine(),
        threads=args.threads,
        tokens=TOKENS,
        anex=importlib.metadata.version("anex"),
        jax=importlib.metadata.version("jax"),
        table=table.markdown(),
    )
    args.output.write_text(page)


if __name__ == "__main__":
    main()
