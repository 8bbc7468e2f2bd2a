"""Builds the emulator's native kernels; without a C++ compiler the package installs without them."""

import sys
from pathlib import Path

import jaxlib
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FFI_HEADERS = Path(jaxlib.__file__).parent / "include"


class BuildNative(build_ext):
    """A plain shared library: it has no Python module in it, so nothing to export."""

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


setup(
    ext_modules=[
        Extension(
            "anex.emulator.native._kernels",
            sources=["anex/emulator/native/matmul.cpp"],
            depends=["anex/emulator/native/simd.h"],
            language="c++",
            optional=True,
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-DNDEBUG",
                "-fvisibility=hidden",
                "-isystem",
                str(FFI_HEADERS),
                "-mcpu=native" if sys.platform == "darwin" else "-march=native",
            ],
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
