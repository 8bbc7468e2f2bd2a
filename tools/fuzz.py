"""Mutational fuzzer of the readers: MIL text, blob files, GGUF and safetensors files.

    python tools/fuzz.py {mil,blob,gguf,safetensors} -n 100000 --seed 0

Every input is a seed file with a few random changes.  Whatever the input, a
reader may only succeed or raise an error of `anex.errors`, must not allocate
what the input does not explain, and must come back within seconds.  Each
input depends on the seed and its number alone, so one line repeats a finding:

    python tools/fuzz.py mil --seed 0 --only 4711
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(ROOT))

from anex.errors import AnexError  # noqa: E402
from anex.mil import Function, Program, Value  # noqa: E402

GROWTH_LIMIT = 64 << 20
"""Bytes by which one input may raise the peak of the process; seeds are far smaller."""
SECONDS_LIMIT = 10
LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        seeds: Well-formed inputs.
        words: Pieces that mutations insert.
        read: Gives one input to the reader; the path is a scratch file.
    """

    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...]
    read: Callable[[bytes, Path], None]


# --- targets ------------------------------------------------------------------


def _mil_seeds() -> list[bytes]:
    """Whole small programs, and pieces of Apple's: what an input costs is its length."""
    from anex.mil import parse, print_program

    seeds = [path.read_bytes() for path in sorted((DATA / "mil_own").glob("*.mil"))]
    for path in sorted((DATA / "mil").glob("*.mil")):
        function = parse(path.read_text()).functions["main"]
        step = max(7, len(function.ops) // 12)
        for start in range(0, len(function.ops), step):
            program = _piece(function, start, 6)
            seeds += (print_program(program, dialect=dialect).encode() for dialect in ("1.0", "1.3"))
    return seeds


def _piece(function: Function, start: int, count: int) -> Program:
    """A few ops with the constants that they use; other values they use become inputs."""
    constants = {op.output.name: op for op in function.ops if op.kind == "const"}
    ops = list(function.ops[start : start + count])
    made = {value.name for op in ops for value in op.outputs}
    used = {o.name: o for op in ops for o in op.operands() if isinstance(o, Value) and o.name not in made}
    ops[:0] = [constants[name] for name in used if name in constants]
    inputs = tuple(value for name, value in used.items() if name not in constants)
    outputs = ops[-1].outputs
    return Program({"main": Function("main", function.opset, inputs, tuple(ops), outputs)})


def _read_mil(data: bytes, scratch: Path) -> None:
    from anex.mil import parse, print_program, problems

    text = data.decode(errors="surrogateescape")
    program = parse(text)
    for dialect in ("1.0", "1.3"):
        if parse(print_program(program, dialect=dialect)) != program:
            raise AssertionError(f"dialect {dialect} does not round-trip")
    for problem in problems(program, engine=True):
        str(problem)


_SIGNS = rb"""
    ( ) [ ] < > , ; = -> ? [] [[ ]] (( {{ }} // " \" \777 \u00e9 fp16( BLOBFILE( int8(300) int32(-1)
    int32(2147483647) bool(true) true nan -inf nan(0x7e01) 0x1p-24 0x3c00 1e999 999999999999999999999
    tuple<> ios15 ios18 int64 uint1 x const() cond reshape conv concat gather pad split lstm topk tile
"""
MIL_WORDS = (
    *_SIGNS.split(),
    *(b"\0", b"\n", b"\xc3\xa9", b"[0, -1, 0]", b"block() {", b"func f<ios18>() {"),
    *(b"tensor<fp16, [1]>", b"tensor<fp16, [99999999999]>", b"tensor<string, []>", b"list<int8, ?>"),
    *(b"dict<string, string>", b"state<tensor<fp16, [1, 2]>>", b"tensor_buffer<fp16, shape=[1]>"),
)


def _blob_seeds() -> list[bytes]:
    """Blob storage v2 by hand: header, then records of several types (facts: coreml.md §5)."""
    header = struct.pack("<II56x", 4, 2)
    seeds = []
    for codes in ((1, 2, 3, 4), (8, 9, 12, 13), (5, 16, 14, 11)):
        data = header
        for code in codes:
            data += bytes(-len(data) % 64)
            data += struct.pack("<IIQQQ32x", 0xDEADBEEF, code, 24, len(data) + 64, 0) + bytes(range(24))
        seeds.append(data)
    return seeds


def _read_blob(data: bytes, scratch: Path) -> None:
    from anex.mil import BLOB_PATH, BlobFile, BlobRef, DType, TensorType

    scratch.write_bytes(data)
    with BlobFile(scratch) as blob:
        for offset in range(64, min(len(data), 1024), 64):
            for dtype, count in ((DType.FP16, 12), (DType.UINT6, 32), (DType.INT4, 48)):
                try:
                    blob.array(BlobRef(BLOB_PATH, offset), TensorType(dtype, (count,)))
                except AnexError:
                    continue
        for record in blob.records():
            blob.record(record.offset)


INTEGERS = tuple(
    struct.pack(f"<{code}", value)
    for code, bits in (("B", 8), ("H", 16), ("I", 32), ("Q", 64))
    for value in (0, 1, 2, 8, (1 << bits) - 1, (1 << (bits - 1)) - 1, 1 << (bits - 1), 1 << (bits * 2 // 3))
)


def _gguf_seeds() -> list[bytes]:
    """Tiny files with every kind of value, and tiny complete models."""
    import numpy as np

    from anex.formats.gguf import GGMLType, GGUFWriter

    values = {
        "general.name": "seed",
        "tokenizer.ggml.tokens": ["a", "b", "<s>"],
        "tokenizer.ggml.scores": [0.5, -1.0, 2.0],
        "flag": True,
        "whole": -3,
    }
    models = [values, *(_model_keys(tokenizer, lists) for tokenizer in ("bpe", "spm") for lists in (0, 1))]
    seeds = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.gguf"
        for keys in models:
            tokens = len(keys["tokenizer.ggml.tokens"])
            with GGUFWriter(path, "llama") as writer:
                for key, value in keys.items():
                    writer.add_metadata(key, value)
                for name, shape in _model_shapes(tokens).items():
                    kind = GGMLType.F32 if len(shape) == 1 else GGMLType.F16
                    writer.add_tensor(name, np.ones(shape, np.float32), kind)
                if keys is values:
                    writer.add_tensor("quantised", np.ones((2, 32), np.float32), GGMLType.Q8_0)
            seeds.append(path.read_bytes())
    return seeds


DIM, FFN, LAYERS = 8, 4, 2


def _model_keys(tokenizer: str, lists: int) -> dict[str, Any]:
    """The keys of a llama model with a tokenizer; with `lists`, what can be is one number per layer."""
    layered = [2, 2] if lists else 2
    keys: dict[str, Any] = {
        "context_length": 64,
        "embedding_length": DIM,
        "block_count": LAYERS,
        "feed_forward_length": [FFN, FFN] if lists else FFN,
        "attention.head_count": layered,
        "attention.head_count_kv": layered,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 8,
        "rope.dimension_count": DIM // 2,
        "rope.freq_base": 1e4,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0,
    }
    plain = ["a", "b", "ab", "\u2581a", "<s>", "</s>"]
    if tokenizer == "spm":
        tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *plain]
        types = [2, *[6] * 256, 1, 1, 1, 1, 3, 3]
        own = {"model": "llama", "scores": [-float(i) for i in range(len(tokens))], "token_type": types}
    else:
        tokens = [*_byte_letters(), *plain[2:3], "<s>", "</s>"]
        own = {"model": "gpt2", "pre": "gpt-2", "merges": ["a b"], "token_type": [1] * 257 + [3, 3]}
    last = len(tokens) - 1
    own |= {"tokens": tokens, "bos_token_id": last - 1, "eos_token_id": last, "add_bos_token": True}
    return {f"llama.{k}": v for k, v in keys.items()} | {f"tokenizer.ggml.{k}": v for k, v in own.items()}


def _byte_letters() -> list[str]:
    """The characters that byte-level BPE writes the 256 bytes with (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _model_shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (tokens, DIM), "output_norm.weight": (DIM,), "rope_freqs.weight": (DIM // 4,)
    }  # fmt: skip
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (DIM,), "ffn_norm": (DIM,), "attn_output": (DIM, DIM),
        "attn_q": (DIM, DIM), "attn_k": (DIM, DIM), "attn_v": (DIM, DIM),
        "ffn_gate": (FFN, DIM), "ffn_up": (FFN, DIM), "ffn_down": (DIM, FFN),
    }  # fmt: skip
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _read_gguf(data: bytes, scratch: Path) -> None:
    """Every tensor, then what a model makes of the file: config, programs' shapes, tokenizer."""
    from anex.formats.gguf import GGUFFile
    from anex.models import decode_name, load_gguf, signature

    scratch.write_bytes(data)
    with GGUFFile(scratch) as file:
        file.fingerprint()
        for name in file.tensors:
            try:
                file.array(name)
            except AnexError:
                continue
    with load_gguf(scratch) as model:
        signature(model.config, decode_name(256))
        tokenizer = model.tokenizer
        ids = tokenizer.encode("ab é<s> \n")
        tokenizer.decode(ids)


GGUF_WORDS = (
    *(b"GGUF", b"general.alignment", b"\xff\xfe", b"yarn", b"none", b"llama.attention.scale"),
    # A nested array: of one array of two uint32, of one of none, and of two ragged ones.
    *(struct.pack("<IIQIQII", 9, 9, 1, 4, 2, 2, 2), struct.pack("<IIQIQ", 9, 9, 1, 4, 0)),
    struct.pack("<IIQIQIIQII", 9, 9, 2, 4, 1, 2, 4, 2, 2, 2),
    *(struct.pack("<IIQ", 9, kind, count) for kind in (0, 4, 6, 7, 8, 9, 12) for count in (0, 1, 2, 3)),
)


def _safetensors_seeds() -> list[bytes]:
    """Files with every type, spelt out, and an index."""
    import json

    sizes = {
        "F32": 4,
        "BF16": 2,
        "F8_E4M3": 1,
        "F64": 8,
        "F16": 2,
        "F8_E5M2": 1,
        "I64": 8,
        "BOOL": 1,
        "C64": 8,
    }
    seeds = [json.dumps({"metadata": {}, "weight_map": {f"w.{i}": f"m-{i}.safetensors" for i in range(4)}})]
    for shape in ([2, 3], [4], [], [0, 5]):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset, count = 0, shape[0] * shape[-1] if len(shape) == 2 else sum(shape) or 1
        for kind, size in sizes.items():
            end = offset + count * size
            header[f"model.{kind}"] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header)
        seeds.append(struct.pack("<Q", len(text)).decode("latin-1") + text + "\1" * offset)
    return [seed.encode("latin-1") for seed in seeds]


def _read_safetensors(data: bytes, scratch: Path) -> None:
    """Every tensor in each way; what begins like a JSON text is read as the index of shards."""
    import numpy as np

    from anex.formats.safetensors import SafetensorsFile, shards_of_index

    scratch.write_bytes(data)
    if data.startswith(b"{"):
        shards_of_index(scratch)
    with SafetensorsFile(scratch) as file:
        file.fingerprint()
        for name in file.tensors:
            for read in (file.array, lambda n: file.array(n, np.float16), file.stored):
                try:
                    read(name)
                except AnexError:
                    continue


SAFETENSORS_WORDS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b"[0, 0]", b"-1", b"true", b"1e5", b"1e999", b"NaN", b"\\u0000"),
    *(
        b'"F32"',
        b'"BF16"',
        b'"F4"',
        b'"shape": [9999999999]',
        b'"__metadata__": {}, ',
        b"\xff",
        b"../",
        b"[[[[[",
    ),
)

TARGETS = {
    "mil": Target(_mil_seeds, MIL_WORDS, _read_mil),
    "blob": Target(_blob_seeds, (*INTEGERS, struct.pack("<I", 0xDEADBEEF)), _read_blob),
    "gguf": Target(_gguf_seeds, (*INTEGERS, *GGUF_WORDS), _read_gguf),
    "safetensors": Target(_safetensors_seeds, (*INTEGERS, *SAFETENSORS_WORDS), _read_safetensors),
}


# --- mutations ----------------------------------------------------------------


def mutate(seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """One to six random changes of a random seed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        change = rng.choice(CHANGES)
        change(data, seeds, words, rng)
    return bytes(data)


def _span(data: bytearray, rng: random.Random, longest: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(1, longest))


def _flip(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _insert(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    start, _ = _span(data, rng)
    data[start:start] = rng.choice(words) * rng.choice((1, 1, 1, 2, 50))


def _overwrite(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    start, _ = _span(data, rng)
    word = rng.choice(words)
    data[start : start + len(word)] = word


def _delete(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    start, end = _span(data, rng)
    del data[start:end]


def _truncate(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _move(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    start, end = _span(data, rng)
    piece = data[start:end]
    target, _ = _span(data, rng)
    data[target:target] = piece


def _splice(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    other = bytearray(rng.choice(seeds))
    start, end = _span(other, rng, 400)
    target, stop = _span(data, rng)
    data[target:stop] = other[start:end]


def _swap_words(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    """Exchange two space-separated pieces: in text that keeps much of the grammar intact."""
    pieces = bytes(data).split(b" ")
    a, b = rng.randrange(len(pieces)), rng.randrange(len(pieces))
    pieces[a], pieces[b] = pieces[b], pieces[a]
    data[:] = b" ".join(pieces)


def _copy_word(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    """One space-separated piece in the place of another."""
    pieces = bytes(data).split(b" ")
    pieces[rng.randrange(len(pieces))] = rng.choice(pieces)
    data[:] = b" ".join(pieces)


def _number(data: bytearray, seeds: list[bytes], words: tuple[bytes, ...], rng: random.Random) -> None:
    """Replace one decimal digit: in text that gives well-formed programs with other shapes and values."""
    digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if digits:
        data[rng.choice(digits)] = rng.choice(b"0123456789")


CHANGES = (
    _flip, _insert, _overwrite, _delete, _truncate, _move, _splice,
    _swap_words, _swap_words, _copy_word, _copy_word, _number, _number, _number,
)  # fmt: skip


# --- running ------------------------------------------------------------------


class TooSlowError(Exception):
    """One input took longer than SECONDS_LIMIT."""


def _alarm(signum: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"no answer within {SECONDS_LIMIT} s")


def peak_bytes() -> int:
    """Largest resident size of the process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def _time_limit() -> Iterator[None]:
    previous = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run_one(target: Target, data: bytes, scratch: Path) -> tuple[bool, str]:
    """(whether the input was accepted, what is wrong with the reader: empty if nothing)."""
    before = peak_bytes()
    accepted, finding = True, ""
    try:
        with _time_limit():
            target.read(data, scratch)
    except AnexError as error:
        accepted = False
        if "\n" in str(error) or len(str(error)) > LONGEST_MESSAGE:
            finding = f"the message is not one short line: {str(error)[:200]!r}"
    except BaseException as error:  # the point of a fuzzer: whatever comes out
        if isinstance(error, KeyboardInterrupt):
            raise
        finding = "".join(traceback.format_exception(error, limit=-6))
    if peak_bytes() - before > GROWTH_LIMIT:
        finding += f"the peak grew by {(peak_bytes() - before) >> 20} MiB for {len(data)} bytes"
    return accepted, finding


def fuzz(name: str, numbers: range, seed: int) -> int:
    """Run the inputs of these numbers; returns the number of findings and prints them."""
    target = TARGETS[name]
    seeds = target.seeds()
    accepted = findings = 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "input"
        for data in seeds:
            run_one(target, data, scratch)  # imports and warms up, so that growth is that of inputs
        baseline = peak_bytes()
        for number in numbers:
            data = mutate(seeds, target.words, random.Random(f"{seed}:{number}"))
            good, finding = run_one(target, data, scratch)
            accepted += good
            if finding:
                findings += 1
                print(f"--- python tools/fuzz.py {name} --seed {seed} --only {number}\n{finding}", flush=True)
    peak = peak_bytes()
    print(
        f"{name}: {len(numbers)} inputs, {accepted} accepted, {findings} findings, "
        f"peak {peak >> 20} MiB ({(peak - baseline) >> 20} above the seeds), "
        f"{time.monotonic() - started:.0f} s"
    )
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("-n", type=int, default=10_000, help="number of inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this input alone")
    args = parser.parse_args()
    numbers = range(args.n) if args.only is None else range(args.only, args.only + 1)
    return 1 if fuzz(args.target, numbers, args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
