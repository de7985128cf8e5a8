"""Where a just-in-time compiler finds its CUDA toolkit. Standard library alone, Python 3.8 or later."""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH110, PTH118, PTH120, PTH123, PTH207

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Iterator

DEFAULT = "/usr/local/cuda"
_VERSION = re.compile(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d{4,6})\b", re.M)
_NAMED = re.compile(r"cuda[-_]?(\d{1,2}\.\d{1,2})")


def find() -> tuple[str, str]:
    """The first of `places`; ('', '') without any."""
    return next(places(), ("", ""))


def places() -> Iterator[tuple[str, str]]:
    """(folder, where it comes from): CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda, as PyTorch's and DeepEP's builds look
    for it; then the toolkit of pip packages (nvidia/cu13). The folder of a variable is not looked into."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield os.environ[variable], variable
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield os.path.dirname(os.path.dirname(nvcc)), "nvcc on PATH"
    if os.path.exists(DEFAULT):
        yield DEFAULT, DEFAULT
    for site in sys.path:
        for folder in sorted(glob.glob(f"{glob.escape(site)}/nvidia/cu*"), reverse=True) if site else ():
            if os.access(os.path.join(folder, "bin", "nvcc"), os.X_OK):
                yield folder, "pip packages"


def version_of(folder: str) -> str:
    """CUDA version that an include folder belongs to: from its cuda.h (or that of the folder above, for include/cccl), else from
    the name; '' when it is none of CUDA's."""
    for place in (folder, os.path.dirname(folder.rstrip("/"))):
        try:
            with open(os.path.join(place, "cuda.h"), errors="replace") as stream:
                found = _VERSION.search(stream.read(1 << 20))
        except OSError:
            continue
        if found:
            number = int(found.group(1))
            return f"{number // 1000}.{number % 1000 // 10}"
    named = _NAMED.search(os.path.realpath(folder))
    return named.group(1) if named else ""
