"""Builds llama.cpp's libraries from the `llama-cpp-python` source package, for goldens and benchmarks.

Only single CMake targets are built (a minute or two on two cores).  Prints the
folder: `lib/` in it holds the shared libraries, `python/` the ctypes bindings.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
REQUIREMENTS = ["cmake", "ninja", "typing_extensions", "diskcache", "jinja2"]
TARGETS = ["llama", "ggml-cpu"]
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_CURL=OFF",
]  # fmt: skip


def run(*command: str | Path) -> None:
    subprocess.run([str(c) for c in command], check=True, stdout=sys.stderr)


def build(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "install", "--quiet", *REQUIREMENTS)
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("llama_cpp_python-*.tar.gz")):
        run(*pip, "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
            "--dest", folder, PACKAGE)  # fmt: skip
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    source = folder / archive.name.removesuffix(".tar.gz")
    if not source.is_dir():
        with tarfile.open(archive) as package:
            package.extractall(folder, filter="data")
    tools = Path(sys.executable).parent
    cmake, ninja = tools / "cmake", tools / "ninja"
    run(cmake, "-S", source / "vendor" / "llama.cpp", "-B", folder / "build", "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={ninja}", *OPTIONS)  # fmt: skip
    for target in TARGETS:
        run(cmake, "--build", folder / "build", "--target", target)
    for name, to in (("lib", folder / "build" / "bin"), ("python", source)):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(to.resolve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/llama.cpp"))
    folder = parser.parse_args().folder
    build(folder)
    print(folder)


if __name__ == "__main__":
    main()
