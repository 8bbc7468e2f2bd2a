"""`anex run`: completes a text."""

from __future__ import annotations

import argparse
import io
import sys
import time
from typing import TYPE_CHECKING

from anex.cli import interrupts
from anex.cli.console import (
    add_cache_dir,
    add_json,
    add_model,
    bytes_text,
    model_path,
    print_json,
    progress_bars,
    read_text,
)
from anex.cli.generation import add_engine, add_generation, load_model, options
from anex.errors import InputError

if TYPE_CHECKING:
    from anex.runtime import Completion, Model

NAME = "run"
HELP = "complete a text with a model"

SCHEMA = "anex.run/1"

_STARTED = time.perf_counter()
"""The time from here to the first token is what the user waits."""


_FLAGS = (
    (("--no-display-prompt", "--no-echo"), "print the completion only"),
    (("-q", "--quiet"), "no progress and no summary"),
    (("-v", "--verbose"), "print the summary even where stderr is no terminal"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; names and defaults are llama.cpp's where it has them, but for `-n`."""
    add_model(parser)
    text = parser.add_mutually_exclusive_group()
    text.add_argument("-p", "--prompt", metavar="TEXT", help="text to complete; - reads standard input")
    text.add_argument("-f", "--file", metavar="FILE", help="read the text from a file")
    add_generation(parser)
    add_engine(parser)
    add_cache_dir(parser)
    add_json(parser)
    for names, help in _FLAGS:
        parser.add_argument(*names, action="store_true", help=help)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    prompt = _prompt(args)
    path = model_path(args)
    with progress_bars(not args.quiet and not args.json) as progress:
        model = load_model(args, path, progress)
        completion = model.generate(prompt, **options(args))
        first = next(completion, "")
    waited = time.perf_counter() - _STARTED
    if args.json:
        _print_document(args, model, completion, first + completion.text(), waited)
        return 0
    _stream(completion, ("" if args.no_display_prompt else prompt) + first)
    if not args.quiet and (args.verbose or sys.stderr.isatty()):
        print(_summary(model, completion, waited), file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    if args.file is not None:
        text = read_text(args.file)
    elif args.prompt is None:
        raise InputError("no prompt is given", hint="-p TEXT, -f FILE, or -p - for standard input")
    else:
        text = read_text("-") if args.prompt == "-" else str(args.prompt)
    if not text:
        raise InputError("the prompt is empty", hint="give at least one character")
    return text


def _stream(completion: Completion, first: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every character
    last = first
    print(first, end="", flush=True)
    for piece in completion:
        interrupts.check()
        print(piece, end="", flush=True)
        last = piece
    if not last.endswith("\n"):
        print()


def _summary(model: Model, completion: Completion, waited: float) -> str:
    """One line; the engine comes first, so that an emulator is never taken for silicon."""
    stats, engine = completion.stats, model.describe()
    parts = [", ".join(str(engine[key]) for key in ("engine", "numerics"))] if engine else []
    parts += [f"{stats.prompt_tokens} prompt tokens at {stats.prefill_rate:.1f}/s"]
    generated = f"{stats.generated_tokens} tokens"
    parts.append(f"{generated} at {stats.decode_rate:.1f}/s" if stats.decode_calls else generated)
    parts.append(f"first token after {waited:.1f} s")
    parts.append(f"peak memory {bytes_text(_peak_memory())}")
    if completion.stop_reason:
        parts.append(completion.stop_reason.value)
    return "\n" + " · ".join(parts)


def _print_document(
    args: argparse.Namespace, model: Model, completion: Completion, text: str, waited: float
) -> None:
    stats = completion.stats
    assert completion.stop_reason is not None
    print_json(
        SCHEMA,
        {
            "model": model_path(args),
            "engine": dict(model.describe()),
            "context": model.context,
            "seed": completion.seed,
            "text": text,
            "tokens": completion.ids,
            "stop_reason": completion.stop_reason.name.lower(),
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "compile_seconds": round(stats.compile_seconds, 4),
            "prefill_seconds": round(stats.prefill_seconds, 4),
            "prefill_tokens_per_second": round(stats.prefill_rate, 2),
            "decode_seconds": round(stats.decode_seconds, 4),
            "decode_tokens_per_second": round(stats.decode_rate, 2),
            "first_token_seconds": round(waited, 4),
            "peak_memory_bytes": _peak_memory(),
        },
    )


def _peak_memory() -> int:
    """Largest resident set of this process in bytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
