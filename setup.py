"""Builds the emulator's native kernels; without a C++ compiler the package installs without them."""

import platform
from pathlib import Path

import jaxlib
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FFI_HEADERS = Path(jaxlib.__file__).parent / "include"

# One library for each instruction set; the best that runs is taken when the package is used, so an
# installed folder may move to another machine.  On ARM the base set has all that the kernels need.
SETS = {
    "x86_64": {
        "avx512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"],
        "avx2": ["-mavx2", "-mfma", "-mf16c"],
    },
}
FLAGS = ["-O3", "-std=c++17", "-DNDEBUG", "-fvisibility=hidden", "-isystem", str(FFI_HEADERS)]


class BuildNative(build_ext):
    """A plain shared library: it has no Python module in it, so nothing to export."""

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


setup(
    ext_modules=[
        Extension(
            f"anex.emulator.native._kernels_{name}",
            sources=["anex/emulator/native/matmul.cpp"],
            depends=["anex/emulator/native/simd.h"],
            language="c++",
            optional=True,
            extra_compile_args=[*FLAGS, *flags],
        )
        for name, flags in SETS.get(platform.machine(), {"base": []}).items()
    ],
    cmdclass={"build_ext": BuildNative},
)
