"""Libraries that play libibverbs, libmlx5 and libcuda (fake_rdma.c), compiled for a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("gcc") or shutil.which("cc")
SOURCE = Path(__file__).resolve().parent / "fake_rdma.c"
LIBRARIES = ("libibverbs.so.1", "libmlx5.so.1", "libcuda.so.1")


def build(folder: Path, *flags: str) -> Path:
    """`folder`, for LD_LIBRARY_PATH: the played library under the names of the real ones. Skips without a C compiler."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    plain = folder / "libfake.so"
    argv = [COMPILER, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(plain), str(SOURCE)]
    subprocess.run(argv, check=True, timeout=60)
    for name in LIBRARIES:
        (folder / name).symlink_to(plain)
    return folder
