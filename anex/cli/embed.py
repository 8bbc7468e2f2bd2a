"""`anex embed`: texts become vectors, near each other where the texts mean the same."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anex.cli.console import (
    add_cache_dir,
    add_json,
    add_model,
    model_path,
    print_json,
    print_table,
    progress_bars,
    read_text,
)
from anex.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from anex.runtime import Embeddings, Encoder

NAME = "embed"
HELP = "turn texts into vectors with a sentence encoder"

SCHEMA = "anex.embed/1"

_TOKENS = "none"
"""The pooling that leaves a vector for each token."""

_SHOWN = 40
"""Characters of a text that a table shows."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser)
    text = parser.add_mutually_exclusive_group()
    text.add_argument(
        *("-p", "--prompt"), action="append", metavar="TEXT", help="a text; may be given several times"
    )
    text.add_argument(
        *("-f", "--file"), metavar="FILE", help="one text per line; - or nothing is standard input"
    )
    parser.add_argument(
        "--pooling",
        metavar="KIND",
        help="mean, cls, last or mean_sqrt_len of the vectors of the tokens, or none: one for each token "
        "(default: what the model says)",
    )
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="make every vector as long as 1 (default: what the model says)",
    )
    parser.add_argument(
        "--truncate", action="store_true", help="use the beginning of texts that are too long"
    )
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads; one per core without it")
    for name, metavar, help in (
        ("engine", "NAME", "see `anex engines`"),
        ("numerics", "LEVEL", "arithmetic of the emulator, fp16 (the default) or fp32"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=help)
    add_cache_dir(parser)
    add_json(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    path, texts = model_path(args), _texts(args)
    if args.pooling == _TOKENS and args.normalize:
        raise InputError("vectors of tokens are not normalised", hint="--normalize goes with a pooling")
    from anex.runtime import load_encoder

    with progress_bars(not args.quiet and not args.json) as progress:
        given = {name: value for name in ("engine", "numerics") if (value := getattr(args, name)) is not None}
        model = load_encoder(path, cache_dir=args.cache_dir, threads=args.threads, progress=progress, **given)
        with model:
            begin = time.perf_counter()
            vectors = _vectors(model, texts, args, progress)
            seconds = time.perf_counter() - begin
            counts = [len(model.tokens(text, truncate=args.truncate)) for text in texts]
            if args.json:
                content = _document(model, args, texts, counts, vectors, seconds)
                print_json(SCHEMA, {"model": path, **content})
                return 0
            engine = model.describe()
    if sys.stdout.isatty() and args.pooling != _TOKENS:
        _print_tables(texts, counts, vectors)
    else:
        _print_numbers(vectors)
    if not args.quiet and sys.stderr.isatty():
        name = ", ".join(str(engine[key]) for key in ("engine", "numerics") if key in engine)
        what = f"{len(texts):,} text{'s' * (len(texts) != 1)}, {sum(counts):,} tokens"
        print(f"\n{name} · {what} in {seconds:.1f} s, compiling included", file=sys.stderr)
    return 0


def _texts(args: argparse.Namespace) -> list[str]:
    if args.prompt is not None:
        return list(args.prompt)
    if args.file is None and sys.stdin.isatty():
        raise InputError("no text is given", hint="-p TEXT, -f FILE, or standard input")
    # Not splitlines: a text may hold a character that Unicode, but no editor, ends a line with.
    texts = [line.removesuffix("\r") for line in read_text(args.file or "-").split("\n")]
    if texts == [""]:
        raise InputError(
            "there is no text", where="standard input" if args.file in (None, "-") else args.file
        )
    return texts


def _vectors(
    model: Encoder, texts: Sequence[str], args: argparse.Namespace, progress: Any
) -> Sequence[Embeddings]:
    """For each text `[D]`, or without pooling `[tokens, D]`."""
    if args.pooling == _TOKENS:
        return [model.hidden_states(text, truncate=args.truncate) for text in texts]
    told = None if progress is None else lambda done: progress("embed", done, len(texts))
    return list(
        model.embed(
            texts,
            pooling=args.pooling,
            normalize=args.normalize,
            truncate=args.truncate,
            progress=told,
        )
    )


def _document(
    model: Encoder,
    args: argparse.Namespace,
    texts: Sequence[str],
    counts: Sequence[int],
    vectors: Sequence[Embeddings],
    seconds: float,
) -> dict[str, Any]:
    said = model.config.pooling
    unit = said.normalize if args.normalize is None else args.normalize
    return {
        "engine": dict(model.describe()),
        "pooling": args.pooling or said.mode,
        "normalized": bool(unit) and args.pooling != _TOKENS,
        "dimension": model.config.dim,
        "seconds": round(seconds, 4),
        "embeddings": [
            {"text": text, "tokens": count, "embedding": _numbers(vector)}
            for text, count, vector in zip(texts, counts, vectors, strict=True)
        ],
    }


def _numbers(vector: Embeddings) -> list[Any]:
    """Nine digits tell every float32 apart."""
    if vector.ndim > 1:
        return [_numbers(row) for row in vector]
    return [float(f"{number:.9g}") for number in vector]


def _print_numbers(vectors: Sequence[Embeddings]) -> None:
    """A line for each vector, an empty one between texts that have several."""
    for index, vector in enumerate(vectors):
        if vector.ndim > 1 and index:
            print()
        for row in vector.reshape(-1, vector.shape[-1]):
            print(" ".join(f"{number:.9g}" for number in row))


def _print_tables(texts: Sequence[str], counts: Sequence[int], vectors: Sequence[Embeddings]) -> None:
    """For people: how similar the texts are, or what one vector looks like."""
    names = [text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…" for text in texts]
    if len(texts) == 1:
        first = " ".join(f"{number:+.4f}" for number in vectors[0][:6])
        print_table(
            "Embedding",
            ["text", "tokens", "dimension", "begins with"],
            [[names[0], counts[0], len(vectors[0]), f"{first} …"]],
        )
        return
    numbers = [str(i) for i in range(1, len(texts) + 1)]
    table = _cosines(vectors)
    rows = [
        [number, name, *(f"{cosine:+.3f}" for cosine in row)]
        for number, name, row in zip(numbers, names, table, strict=True)
    ]
    print_table("Cosine similarity", ["", "text", *numbers], rows)


def _cosines(vectors: Sequence[Embeddings]) -> np.ndarray[Any, Any]:
    import numpy as np

    matrix = np.stack(vectors).astype(np.float64)
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    unit = matrix / np.where(length == 0, 1.0, length)
    return unit @ unit.T
