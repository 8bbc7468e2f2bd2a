"""Writes tests/data/encoder/transformers.npz: hidden states of the tiny encoders, by transformers in float64.

python -m venv encoders && encoders/bin/pip install torch transformers safetensors ml_dtypes
encoders/bin/python tools/goldens/encoder.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
# Not this folder, in which a generator has the name of the library.
sys.path[:1] = [str(ROOT), str(ROOT / "tests" / "models")]

import tiny_encoder  # noqa: E402

NAMES = ("IDS", "PADDED", "SHORTER", "LONG")


def hidden(case: str, ids: list[int], folder: Path) -> np.ndarray:
    import torch
    from transformers import AutoModel

    # Files with the first names of norms are PyTorch's of 2018; transformers renames them when it loads them.
    tiny_encoder.write(folder, case)
    model, report = AutoModel.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
    )
    left = [name for name in report["missing_keys"] if "pooler" not in name]
    assert not any([left, report["unexpected_keys"], report["mismatched_keys"]]), (case, report)
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).last_hidden_state[0].numpy()


def main() -> None:
    golden: dict[str, np.ndarray] = {}
    for case in (*tiny_encoder.CONFIGS, *tiny_encoder.MUTATIONS):
        with tempfile.TemporaryDirectory() as folder:
            for name in NAMES if case in tiny_encoder.CONFIGS else NAMES[:-1]:
                states = hidden(case, getattr(tiny_encoder, name), Path(folder))
                golden[f"{case}/{name}"] = (states if name == "IDS" else states.mean(0)).astype(np.float32)
    for case, (family, changes) in tiny_encoder.MUTATIONS.items():
        changed = any(
            not np.allclose(golden[f"{case}/{n}"], golden[f"{family}/{n}"], atol=1e-4) for n in NAMES[:-1]
        )
        assert changed, f"{json.dumps(changes)} changes nothing"
    target = ROOT / "tests" / "data" / "encoder" / "transformers.npz"
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target, **golden)
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
