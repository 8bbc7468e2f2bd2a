"""Child of the benchmark: a model file to a verified MIL program and its blob on disk.

python bench/convert.py MODEL.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from anex.files import atomic_write
from anex.mil import BlobFile, print_program, verify
from anex.models import BLOB_FILE, build_program, decode_name, head_name, load_gguf, prefill_name

FUNCTIONS = (prefill_name(512, 0), prefill_name(128, 512), decode_name(512), head_name())
"""What a conversation of 512 to 1,024 tokens needs."""


def main() -> None:
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    source = load_gguf(model)
    blob = folder / BLOB_FILE
    blob.parent.mkdir(parents=True, exist_ok=True)
    weights = source.write(blob)
    program = build_program(source.config, weights, FUNCTIONS)
    with BlobFile(blob) as written:
        verify(program, written, engine=True)
    with atomic_write(folder / "model.mil") as file:
        file.write(print_program(program).encode())
    source.close()


if __name__ == "__main__":
    main()
