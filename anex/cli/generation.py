"""What the commands that run a decoder share: the engine's options, and those of generation and sampling."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from anex.errors import InputError

if TYPE_CHECKING:
    from anex.runtime import Model, Options, Progress


class Default:
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
_LENGTH = (("-n", "--predict", "--n-predict"), int, "n_predict", Default("DEFAULT_TOKENS"),
           "most tokens; -1 to the end of the text or context")  # fmt: skip
_SIZES = (
    (("-c", "--ctx-size"), int, "ctx_size", 0, "context in tokens; 0 is the model's own"),
    (("-t", "--threads"), int, "threads", None, "threads; one per core without it"),
)
_SAMPLING = (
    (("--temp",), float, "temperature", Default("temperature"), "0 takes the most likely token"),
    (("--top-k",), int, "top_k", Default("top_k"), "keep the N most likely tokens; 0 keeps all"),
    (("--top-p",), float, "top_p", Default("top_p"),
     "keep the most likely tokens up to this probability; 1 keeps all"),
    (("--min-p",), float, "min_p", Default("min_p"),
     "keep tokens this likely beside the most likely one; 0 keeps all"),
    (("--repeat-penalty",), float, "repeat_penalty", Default("repeat_penalty"),
     "make recent tokens less likely; 1 does not"),
    (("--repeat-last-n",), int, "repeat_last_n", Default("repeat_last_n"),
     "tokens that the penalty looks back on; -1 all"),
    (("-s", "--seed"), int, "seed", -1, "of the draws; -1 is a random one"),
)  # fmt: skip


def add_generation(parser: argparse.ArgumentParser, *, n_predict: int | Default = _LENGTH[3]) -> None:
    """Length, context, threads and sampling; names and defaults are llama.cpp's where it has them."""
    length = (*_LENGTH[:3], n_predict, _LENGTH[4])
    for title, numbers in (("generation", (length, *_SIZES)), ("sampling", _SAMPLING)):
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


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Which engine computes, and how exactly."""
    for name, metavar, help in (
        ("engine", "NAME", "see `anex engines`"),
        ("numerics", "LEVEL", "arithmetic of the emulator, fp16 or fp32"),
    ):
        default = Default(f"DEFAULT_{name.upper()}")
        shown = f"{help} (default: %(default)s)"
        parser.add_argument(f"--{name}", default=default, metavar=metavar, help=shown)


def options(args: argparse.Namespace) -> Options:
    """What was given of length and sampling, for `Model.generate` or `Model.chat`."""
    given: dict[str, Any] = {
        key: value
        for key in ("n_predict", *(row[2] for row in _SAMPLING))
        if not isinstance(value := getattr(args, key), Default)
    }
    given["seed"] = None if args.seed == -1 else args.seed
    return cast("Options", given | {"stop": args.stop})


def load_model(args: argparse.Namespace, path: str, progress: Progress | None) -> Model:
    """The decoder at a path, as the options say."""
    if args.ctx_size < 0:
        raise InputError(f"a context of {args.ctx_size} tokens", hint="-c 0 takes the model's own")
    from anex.runtime import load_decoder

    return load_decoder(
        path,
        engine=str(args.engine),
        numerics=str(args.numerics),
        context=args.ctx_size or None,
        cache_dir=args.cache_dir,
        threads=args.threads,
        progress=progress,
    )
