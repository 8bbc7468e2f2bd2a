"""`anex info`: what a model file holds, what becomes of it, and the programs it makes."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from anex.cli.console import add_json, add_model, bytes_text, model_path, print_json, print_table

if TYPE_CHECKING:
    from anex.mil import Function
    from anex.models import ModelFile

NAME = "info"
HELP = "show the architecture, tensors, ledger and programs of a model file"

SCHEMA = "anex.info/1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser)
    parser.add_argument(
        "--tensors", action="store_true", help="list every tensor and every key (always, in JSON)"
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    from anex.models import load

    with load(model_path(args)) as model:
        content = describe(model)
    if args.json:
        print_json(SCHEMA, content)
    else:
        _print(content, everything=args.tensors)
    return 0


def describe(model: ModelFile) -> dict[str, Any]:
    """The document of the schema, from an open model file."""
    return {
        "model": str(model.path),
        "file_bytes": model.file.nbytes,
        "name": model.name,
        "config": _config(model),
        "parameters": sum(math.prod(t.shape) for t in model.file.tensors.values()),
        "tokenizer": _tokenizer(model),
        "tensors": [
            {"name": t.name, "type": t.storage, "shape": list(t.shape), "bytes": t.nbytes}
            for t in model.file.tensors.values()
        ],
        "ledger": [
            {"name": a.name, "what": a.what, "status": a.status, "note": a.note}
            for a in model.ledger.accounts
        ],
        "functions": [_function(f) for f in model.weightless(_typical(model)).functions.values()],
    }


def _config(model: ModelFile) -> dict[str, Any]:
    from dataclasses import asdict

    config: dict[str, Any] = _plain(asdict(model.config))
    return config


def _plain(value: Any) -> Any:
    """The same in the types of JSON."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (frozenset, tuple)):
        return [_plain(entry) for entry in (sorted(value) if isinstance(value, frozenset) else value)]
    return value


def _fields(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(field, value) of a config, those of its groups under the group's name; empty lists are left out."""
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            rows += _fields(value, f"{prefix}{key}.")
        elif value != []:
            rows.append((prefix + key, str(value)))
    return rows


def _tokenizer(model: ModelFile) -> dict[str, Any]:
    """What the tokenizer is, or why there is none: a file without one can still be looked at."""
    from anex.errors import AnexError

    try:
        tokenizer = model.tokenizer
    except AnexError as error:
        return {"error": str(error)}
    kind = str(model.metadata.get("tokenizer.ggml.model", "tokenizer.json"))
    return {"kind": kind, "vocabulary": tokenizer.vocab_size, "end_tokens": sorted(tokenizer.eog)}


def _typical(model: ModelFile) -> list[str]:
    """The functions of a first question and its answer."""
    from anex.models import CHUNKS, Rungs, decode_name, head_name, plan, prefill_name

    limit = model.config.context_length
    chunks = [chunk for chunk in CHUNKS if chunk <= limit] or [plan(1, limit=limit)[0].chunk]
    return [
        *(prefill_name(chunk, 0) for chunk in chunks),
        decode_name(Rungs(limit).holding(1)),
        head_name(),
    ]


def _function(function: Function) -> dict[str, Any]:
    from anex.mil import TensorType

    weights = {
        (op.literal.data.offset, op.literal.type.nbytes)
        for op in function.ops
        if op.literal is not None and op.literal.is_blob and isinstance(op.literal.type, TensorType)
    }
    kinds = Counter(op.kind for op in function.ops if op.kind != "const")
    return {
        "name": function.name,
        "ops": kinds.total(),
        "ops_by_kind": dict(kinds.most_common()),
        "weight_bytes": sum(nbytes for _, nbytes in weights),
        "inputs": {value.name: str(value.type) for value in function.inputs},
        "outputs": {value.name: str(value.type) for value in function.outputs},
    }


def _print(content: dict[str, Any], *, everything: bool) -> None:
    config, tokenizer = content["config"], content["tokenizer"]
    head = [
        ("file", f"{content['model']} ({bytes_text(content['file_bytes'])})"),
        ("name", content["name"]),
        ("parameters", f"{content['parameters']:,}"),
        ("tokenizer", tokenizer.get("error") or f"{tokenizer['kind']}, {tokenizer['vocabulary']:,} tokens"),
    ]
    print_table("Model", ("what", "value"), head)
    print_table("Configuration", ("field", "value"), _fields(config))
    types = Counter(t["type"] for t in content["tensors"])
    sizes: Counter[str] = Counter()
    for t in content["tensors"]:
        sizes[t["type"]] += t["bytes"]
    print_table(
        "Tensors by type",
        ("type", "tensors", "size"),
        [(name, count, bytes_text(sizes[name])) for name, count in types.most_common()],
    )
    if everything:
        tensors = [
            (t["name"], t["type"], "×".join(map(str, t["shape"])), bytes_text(t["bytes"]))
            for t in content["tensors"]
        ]
        print_table("Tensors", ("name", "type", "shape", "size"), tensors)
    ledger = [
        (a["name"], a["status"], a["note"]) for a in content["ledger"] if everything or a["what"] == "key"
    ]
    print_table("Ledger (every key and tensor is used, neutral, or the file is refused)",
                ("name", "status", "note"), ledger)  # fmt: skip
    functions = [
        (f["name"], f["ops"], bytes_text(f["weight_bytes"]),
         ", ".join(f"{kind} {count}" for kind, count in f["ops_by_kind"].items()))
        for f in content["functions"]
    ]  # fmt: skip
    print_table("Programs", ("function", "ops", "weights", "ops by kind"), functions)
