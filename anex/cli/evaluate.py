"""`anex eval`: the perplexity of a text, and how far a model is from a reference."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
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
from anex.cli.generation import add_engine, load_model
from anex.errors import InputError

if TYPE_CHECKING:
    from anex.runtime import Divergence, Evaluation, Model, Perplexity

NAME = "eval"
HELP = "measure a model on a text: perplexity, and its distance from a reference"

SCHEMA = "anex.eval/1"

_DESCRIPTION = """Perplexity of a model on a text, as llama-perplexity computes it: windows of -c tokens,
the second half of each scored. With --stride the window slides, and every token but the first is scored.
With a reference, another file or the same one at another arithmetic, also the Kullback-Leibler divergence."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = _DESCRIPTION
    add_model(parser)
    parser.add_argument(
        *("-f", "--file"), required=True, metavar="TEXT", help="a text file; - is standard input"
    )
    parser.add_argument("--reference", metavar="MODEL", help="compare with this model")
    parser.add_argument(
        "--reference-numerics",
        metavar="LEVEL",
        help="arithmetic of the reference, which is the model itself where no other is named (default: fp32)",
    )
    for names, default, help in (
        (("-c", "--ctx-size"), None, "tokens of a window (default: 512, or the model's context if shorter)"),
        (("--stride",), None, "slide the window by so many tokens"),
        (("--chunks",), None, "most windows; all without it"),
        (("-t", "--threads"), None, "threads; one per core without it"),
    ):
        parser.add_argument(*names, type=int, default=default, metavar="N", help=help)
    add_engine(parser)
    add_cache_dir(parser)
    add_json(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    path = model_path(args)
    text = read_text(args.file)
    if not text:
        raise InputError("the text is empty", where=args.file)
    from anex.runtime import evaluate

    window, args.ctx_size = args.ctx_size, 0
    with ExitStack() as opened:
        progress = opened.enter_context(progress_bars(not args.quiet and not args.json))
        model = opened.enter_context(load_model(args, path, progress))
        reference = None
        if args.reference is not None or args.reference_numerics is not None:
            args.numerics = args.reference_numerics or "fp32"
            reference = opened.enter_context(load_model(args, args.reference or path, progress))
        start = time.perf_counter()
        found = evaluate(
            model,
            text,
            reference=reference,
            context=window,
            stride=args.stride,
            windows=args.chunks,
            progress=progress,
        )
        seconds = time.perf_counter() - start
        content = document(found, model, reference, seconds)
    content = {"model": path, "file": args.file, "stride": args.stride, **content}
    if reference is not None:
        content["reference"] = {"model": args.reference or path, **content["reference"]}
    if args.json:
        print_json(SCHEMA, content)
    else:
        _print(content)
    return 0


def document(found: Evaluation, model: Model, reference: Model | None, seconds: float) -> dict[str, Any]:
    """What was found, in the terms of the schema."""
    perplexity = found.perplexity
    content = {
        "engine": _engine(model),
        "window": perplexity.window,
        "windows": perplexity.windows,
        "tokens": perplexity.tokens,
        "scored_tokens": perplexity.losses.size,
        "scored_bytes": perplexity.nbytes,
        "perplexity": perplexity.value,
        "perplexity_error": perplexity.error,
        "nats_per_token": perplexity.mean,
        "bits_per_byte": perplexity.bits_per_byte if perplexity.nbytes else None,
        "seconds": round(seconds, 3),
        "reference": None,
    }
    if found.divergence is not None and reference is not None:
        content["reference"] = {"engine": _engine(reference), **_compared(perplexity, found.divergence)}
    return content


def _engine(model: Model) -> dict[str, Any]:
    """What computed; the functions that were compiled are of no interest here."""
    return {key: value for key, value in model.describe().items() if key != "blocks"}


def _compared(perplexity: Perplexity, divergence: Divergence) -> dict[str, Any]:
    import numpy as np

    kl, base = divergence.kl, float(np.exp(divergence.losses.mean()))
    return {
        "perplexity": base,
        "perplexity_ratio": perplexity.value / base,
        "kl_mean": float(kl.mean()),
        "kl_median": float(np.median(kl)),
        "kl_99": float(np.quantile(kl, 0.99)),
        "kl_max": float(kl.max()),
        "top_1_agreement": float(divergence.same_top.mean()),
        **{
            f"{name}_probability_change_{kind}": value
            for name, change in (("top", divergence.top_change), ("token", divergence.token_change))
            for kind, value in (
                ("mean", float(change.mean())),
                ("rms", float(np.sqrt(np.mean(change**2)))),
                ("max", float(np.abs(change).max())),
            )
        },
    }


# Key of the document, how it is called, format.
_ROWS = (
    ("perplexity", "perplexity", "{:.4f}"),
    ("perplexity_error", "standard error of it", "{:.4f}"),
    ("nats_per_token", "nats per token", "{:.5f}"),
    ("bits_per_byte", "bits per byte", "{:.5f}"),
    ("scored_tokens", "tokens scored", "{:,}"),
)
_REFERENCE_ROWS = (
    ("perplexity", "perplexity of the reference", "{:.4f}"),
    ("perplexity_ratio", "ratio of the perplexities", "{:.6f}"),
    ("kl_mean", "KL divergence, mean", "{:.3e}"),
    ("kl_median", "  median", "{:.3e}"),
    ("kl_99", "  99 % are below", "{:.3e}"),
    ("kl_max", "  maximum", "{:.3e}"),
    ("top_1_agreement", "same most likely token", "{:.3%}"),
    ("top_probability_change_mean", "probability of the reference's, mean change", "{:+.3%}"),
    ("top_probability_change_rms", "  root mean square", "{:.3%}"),
    ("token_probability_change_mean", "probability of the text's token, mean change", "{:+.3%}"),
    ("token_probability_change_rms", "  root mean square", "{:.3%}"),
)


def _print(content: dict[str, Any]) -> None:
    rows = [(label, _shown(form, content[key])) for key, label, form in _ROWS]
    if (reference := content["reference"]) is not None:
        rows += [(label, _shown(form, reference[key])) for key, label, form in _REFERENCE_ROWS]
    engine = ", ".join(
        str(content["engine"][key]) for key in ("engine", "numerics") if key in content["engine"]
    )
    cut = f"a stride of {content['stride']}" if content["stride"] else "the second half of each scored"
    title = f"{content['windows']} windows of {content['window']} tokens, {cut} · {engine}"
    print_table(f"{title} · {content['seconds']:.1f} s", ("measure", "value"), rows)


def _shown(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
