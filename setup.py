"""Build the extension with the machine code of all kernels, which may be left out.

Without a C compiler, or without numba for this Python, the package is installed without it and runs
kernels as numba or Python does. SHARDWRIGHT_BUILD_KERNELS=no leaves it out as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path(__file__).parent / "src"
WANTED = os.environ.get("SHARDWRIGHT_BUILD_KERNELS", "yes") != "no" and any(
    map(shutil.which, [os.environ.get("CC", "cc").split()[0], "cc", "gcc", "clang"])
)


class BuildKernels(build_ext):
    """Let the package build its own extension."""

    def build_extension(self, ext: Extension) -> None:
        """Build it; where that fails, say so and install without it."""
        path = os.pathsep.join([str(SOURCES), *filter(None, sys.path)])
        command = [
            sys.executable,
            "-m",
            "shardwright.build_kernels",
            str(Path(self.get_ext_fullpath(ext.name)).absolute()),
        ]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False)


setup(
    # Only what compiles kernels; a machine without a C compiler has no use for it while it builds.
    setup_requires=["numba>=0.59", "numpy>=1.26", "pyyaml>=6.0", "scipy>=1.11"] if WANTED else [],
    ext_modules=[Extension("shardwright._kernels", ["src/shardwright/kernels.c"], optional=True)]
    if WANTED
    else [],
    cmdclass={"build_ext": BuildKernels},
)
