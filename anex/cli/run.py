"""`anex run`: completes a text."""

from __future__ import annotations

import argparse
import io
import sys
import time
from typing import TYPE_CHECKING

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
from anex.errors import InputError

if TYPE_CHECKING:
    from anex.runtime import Completion, Model

NAME = "run"
HELP = "complete a text with a model"

SCHEMA = "anex.run/1"

_STARTED = time.perf_counter()
"""The time from here to the first token is what the user waits."""


class _Default:
    """A default that the library has: looked up when it is shown, so that parsing imports nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        from anex import runtime

        sampling = runtime.Sampling()
        return str(
            getattr(sampling, self.name) if hasattr(sampling, self.name) else getattr(runtime, self.name)
        )


# Names, type, where it goes (a keyword of `Model.generate`, mostly), without the option, help.
_GENERATION = (
    (("-n", "--predict", "--n-predict"), int, "n_predict", _Default("DEFAULT_TOKENS"),
     "most tokens; -1 to the end of the text or context"),
    (("-c", "--ctx-size"), int, "ctx_size", 0, "context in tokens; 0 is the model's own"),
    (("-t", "--threads"), int, "threads", None, "threads; one per core without it"),
)  # fmt: skip
_SAMPLING = (
    (("--temp",), float, "temperature", _Default("temperature"), "0 takes the most likely token"),
    (("--top-k",), int, "top_k", _Default("top_k"), "keep the N most likely tokens; 0 keeps all"),
    (("--top-p",), float, "top_p", _Default("top_p"),
     "keep the most likely tokens up to this probability; 1 keeps all"),
    (("--min-p",), float, "min_p", _Default("min_p"),
     "keep tokens this likely beside the most likely one; 0 keeps all"),
    (("--repeat-penalty",), float, "repeat_penalty", _Default("repeat_penalty"),
     "make recent tokens less likely; 1 does not"),
    (("--repeat-last-n",), int, "repeat_last_n", _Default("repeat_last_n"),
     "tokens that the penalty looks back on; -1 all"),
    (("-s", "--seed"), int, "seed", -1, "of the draws; -1 is a random one"),
)  # fmt: skip
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
    for title, numbers in (("generation", _GENERATION), ("sampling", _SAMPLING)):
        group = parser.add_argument_group(title)
        for names, kind, keyword, default, help in numbers:
            shown = help if default is None else f"{help} (default: %(default)s)"
            group.add_argument(*names, type=kind, dest=keyword, default=default, metavar="N", help=shown)
    parser.add_argument(
        *("-r", "--stop", "--reverse-prompt"),
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    for name, metavar, help in (
        ("engine", "NAME", "see `anex engines`"),
        ("numerics", "LEVEL", "arithmetic of the emulator, fp16 or fp32"),
    ):
        default = _Default(f"DEFAULT_{name.upper()}")
        shown = f"{help} (default: %(default)s)"
        parser.add_argument(f"--{name}", default=default, metavar=metavar, help=shown)
    add_cache_dir(parser)
    add_json(parser)
    for names, help in _FLAGS:
        parser.add_argument(*names, action="store_true", help=help)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    prompt = _prompt(args)
    path = model_path(args)
    if args.ctx_size < 0:
        raise InputError(f"a context of {args.ctx_size} tokens", hint="-c 0 takes the model's own")
    from anex.runtime import load

    with progress_bars(not args.quiet and not args.json) as progress:
        model = load(
            path,
            engine=str(args.engine),
            numerics=str(args.numerics),
            context=args.ctx_size or None,
            cache_dir=args.cache_dir,
            threads=args.threads,
            progress=progress,
        )
        completion = _completion(model, prompt, args)
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


def _completion(model: Model, prompt: str, args: argparse.Namespace) -> Completion:
    with_default = [row[2] for row in (*_GENERATION, *_SAMPLING) if isinstance(row[3], _Default)]
    given = {key: value for key in with_default if not isinstance(value := getattr(args, key), _Default)}
    seed = None if args.seed == -1 else args.seed
    return model.generate(prompt, seed=seed, stop=args.stop, **given)


def _stream(completion: Completion, first: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every character
    last = first
    print(first, end="", flush=True)
    for piece in completion:
        print(piece, end="", flush=True)
        last = piece
    if not last.endswith("\n"):
        print()


def _summary(model: Model, completion: Completion, waited: float) -> str:
    """One line; the engine comes first, so that an emulator is never taken for silicon."""
    stats, engine = completion.stats, model.describe()
    parts = [", ".join(str(engine[key]) for key in ("engine", "numerics") if key in engine)]
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
