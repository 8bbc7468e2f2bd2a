"""Which files of a repository a model needs: its documents, and safetensors weights or one GGUF."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from anex.errors import InputError
from anex.formats.gguf import quoted
from anex.formats.safetensors import INDEX, PICKLES, WEIGHTS, pickles_refused

DOCUMENTS = (
    "config.json",
    "generation_config.json",
    # tokenizers
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    # encoders: inputs, pooling
    "preprocessor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    # adapters
    "adapter_config.json",
)
"""What is read beside safetensors weights, where it is there."""

_PART = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.(?P<ending>gguf|safetensors)")
_NO_MODEL = re.compile(r"(?:^|/)[^/]*(?:mmproj|imatrix)[^/]*$", re.IGNORECASE)
"""GGUF files that are parts for another purpose: vision projectors, importance matrices."""
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """What to fetch.

    Attributes:
        files: Names, the small documents first.
        model: The file to open, or None where that is the folder.
        index: Whether the shards that the index names are needed too.
    """

    files: tuple[str, ...]
    model: str | None = None
    index: bool = False


def choose(files: Collection[str], pattern: str | None, where: str) -> Choice:
    """The files of a model among those of a repository.

    Args:
        files: All names of the repository, as POSIX paths.
        pattern: A shell pattern for a path or file name, in either case; None
            takes the safetensors model, else the only GGUF.
        where: The repository, for messages.

    Raises:
        InputError: Nothing matches, or several GGUF models do.
        UnsupportedError: The weights are Python pickles.
    """
    names = sorted(files)
    if pattern is not None:
        return _matching(names, pattern, where)
    if INDEX in names:
        return Choice((*_documents(names), INDEX), index=True)
    if WEIGHTS in names:
        return Choice((*_documents(names), WEIGHTS))
    groups = _gguf_groups(name for name in names if not _NO_MODEL.search(name))
    if groups:
        return _one_gguf(groups, where)
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        raise pickles_refused(pickles[0], where)
    raise InputError(
        f"no model: there is neither {WEIGHTS} nor a GGUF file", where=where, hint=_listed(names)
    )


def _matching(names: list[str], pattern: str, where: str) -> Choice:
    wanted = pattern.lower()
    matched = [
        name
        for name in names
        if fnmatchcase(name.lower(), wanted) or fnmatchcase(PurePosixPath(name).name.lower(), wanted)
    ]
    if not matched:
        models = [name for name in names if name.endswith((".gguf", ".safetensors"))]
        raise InputError(f"no file matches {quoted(pattern)}", where=where, hint=_listed(models or names))
    kept = [name for name in matched if not name.endswith(PICKLES)]
    if not kept:
        raise pickles_refused(matched[0], where)
    tensors = [name for name in kept if name.endswith(".safetensors") or name == INDEX]
    if tensors:
        sharded = INDEX in names and any(name == INDEX or _PART.fullmatch(name) for name in tensors)
        extra = [INDEX] if sharded else []
        return Choice(tuple(dict.fromkeys([*_documents(names), *extra, *kept])), index=sharded)
    all_groups = _gguf_groups(names)
    groups = {stem: all_groups[stem] for stem in _gguf_groups(kept)}
    if not groups:
        return Choice(tuple(kept), model=kept[0] if len(kept) == 1 else None)
    others = [name for name in kept if not name.endswith(".gguf")]
    chosen = _one_gguf(groups, where)
    return Choice((*others, *chosen.files), model=chosen.model)


def _documents(names: Collection[str]) -> list[str]:
    return [name for name in DOCUMENTS if name in names]


def _gguf_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """GGUF models by what their names begin with; the parts of a split model are one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(".gguf"):
            part = _PART.fullmatch(name)
            groups.setdefault(f"{part['stem']}-of-{part['count']}" if part else name, []).append(name)
    return groups


def _one_gguf(groups: dict[str, list[str]], where: str) -> Choice:
    if len(groups) > 1:
        raise InputError(
            f"{len(groups)} GGUF models are there",
            where=where,
            hint="choose one with --file; " + _listed([parts[0] for parts in groups.values()]),
        )
    (parts,) = groups.values()
    match = _PART.fullmatch(parts[0])
    if match and len(parts) != int(match["count"]):
        raise InputError(f"{len(parts)} of {int(match['count'])} parts of the model are there", where=where)
    return Choice(tuple(parts), model=parts[0])


def _listed(names: list[str]) -> str:
    """What there is, short enough for one line."""
    if not names:
        return "the repository is empty"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "there is " + ", ".join(map(quoted, names[:_SHOWN])) + more
