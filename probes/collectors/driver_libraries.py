"""Prints which NVIDIA driver libraries the loader picks, and where the driver's programs are on PATH, as one JSON document.

Run as a script, in a process of its own: the only sure way to know what the loader picks is to load it. A library that
cannot be loaded is {"error": reason, "detail": words}; a program that is not there is "".
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
PROGRAMS = ("nvidia-smi", "nvlsm", "nv-fabricmanager")


def resolved(library: str) -> Any:  # noqa: ANN401 - JSON
    """Real path of `library`."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        missing = str(error).startswith(library) and "No such file" in str(error)
        return {"error": "not_found" if missing else "failed", "detail": str(error)}
    stem = library.removesuffix(".1")
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError as error:
        return {"error": "failed", "detail": str(error)}
    mapped = (Path(line.split(maxsplit=5)[-1].strip()) for line in lines if stem in line)
    found = next((path for path in mapped if path.name.startswith(stem)), None)
    return str(found.resolve()) if found else {"error": "failed", "detail": f"{library} is not in /proc/self/maps"}


def main() -> None:
    document = {
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
        "programs": {name: shutil.which(name) or "" for name in PROGRAMS},
        "libraries": {name: resolved(name) for name in LIBRARIES},
    }
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
