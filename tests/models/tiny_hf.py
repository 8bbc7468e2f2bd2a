"""Tiny random checkpoints in the manner of transformers, the same ones on every machine.

`tools/goldens/transformers.py` writes `tests/data/transformers/<model type>.json`
(each case's `config.json` and the shapes of its tensors) and `.npz` (transformers'
logits); the tests make the weights again and compare.  Every number is exact in
fp16, also once it is multiplied with the powers of two that these models have as
1/sqrt(head_dim) and sqrt(dim), so conversion loses nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DATA = Path(__file__).parents[1] / "data" / "transformers"

TOKENS = 44
"""Tokens of a golden run: past a window of 16 and past one chunk of a prefill."""

POSITIONS = (0, 1, 15, 16, 17, 31, 32, 36, 43)
"""Columns whose logits are stored."""

LONG_TOKENS, LONG_POSITIONS = 270, (0, 100, 254, 255, 256, 257, 269)
"""The same for cases that go past a rung of the cache."""

DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Case:
    """One checkpoint and what transformers computes with it.

    Attributes:
        shapes: Of its tensors, by name.
        changes: transformers' logits are others than those of the base case.
    """

    model_type: str
    name: str
    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    changes: bool

    @property
    def id(self) -> str:
        return f"{self.model_type}-{self.name}"

    @property
    def long(self) -> bool:
        return self.name.startswith("long")

    @property
    def ids(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The tokens of the golden run."""
        return tokens(self.config["vocab_size"], self.long)

    @property
    def logits(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """transformers', at the stored positions; where nothing changes, those of the base case."""
        with np.load(DATA / f"{self.model_type}.npz") as stored:
            found: np.ndarray[Any, np.dtype[np.float32]] = stored[self.name if self.changes else "base"]
        return found

    @property
    def positions(self) -> list[int]:
        return list(LONG_POSITIONS if self.long else POSITIONS)


def tokens(vocab_size: int, long: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    count = LONG_TOKENS if long else TOKENS
    return np.random.default_rng(1).integers(4, vocab_size, count)


def cases(model_type: str) -> list[Case]:
    """The stored cases of a model type, `base` first."""
    stored = json.loads((DATA / f"{model_type}.json").read_text("utf-8"))
    base = stored["cases"]["base"]
    found = []
    for name, entry in stored["cases"].items():
        shapes = {**base["shapes"], **entry["shapes"]}
        found.append(
            Case(
                model_type,
                name,
                {
                    key: value
                    for key, value in {**base["config"], **entry["config"]}.items()
                    if key not in entry["without"]
                },
                {tensor: shape for tensor, shape in shapes.items() if shape is not None},
                entry["changes"],
            )
        )
    return found


def array(name: str, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor by its name: large queries and keys make attention sharp, so that a wrong position shows."""
    values = np.random.default_rng(list(name.encode())).standard_normal(tuple(shape))
    if len(shape) == 1:
        mean = 0.0 if name.endswith("bias") else 1.0
        return (np.round((mean + 0.25 * values) * 256) / 256).astype(np.float32)
    sharp = any(part in name for part in ("q_proj", "k_proj", "qkv", "c_attn", "query_key_value"))
    gain = (2.0 if sharp else 1.0) / math.sqrt(min(shape[-1], 128))
    table = any(part in name for part in ("embed", "wte", "wpe", "lm_head"))
    return (values * (0.5 if table else gain)).astype(np.float16).astype(np.float32)


def arrays(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {name: array(name, shape) for name, shape in shapes.items()}


def write(folder: Path, case: Case, *, dtype: str = "F32", shards: int = 1) -> Path:
    """The checkpoint as a folder, with the `safetensors` package."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(case.config)))
    tensors = {name: values.astype(DTYPES[dtype]) for name, values in arrays(case.shapes).items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    weight_map = {tensor: names[index % shards] for index, tensor in enumerate(tensors)}
    for file in names:
        save_file({t: v for t, v in tensors.items() if weight_map[t] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
