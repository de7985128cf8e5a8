"""The dynamic loader of this process, asked without loading anything. Standard library alone, Python 3.8 or later."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctl.core.standalone.loader import (
        LDCONFIG,
        Loader,
        cached,
        constants,
        has_runpath,
        load,
        missing,
        resolve,
        run_path,
        search,
        sections,
    )
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    import _shared  # noqa: F401
    from standalone.loader import (
        LDCONFIG,
        Loader,
        cached,
        constants,
        has_runpath,
        load,
        missing,
        resolve,
        run_path,
        search,
        sections,
    )

__all__ = ["Loader", "constants", "has_runpath", "live", "load", "missing", "resolve", "run_path", "search", "sections"]


def live() -> Loader:
    """The loader of this process."""
    return Loader(dict(os.environ), _ldconfig())


def _ldconfig() -> list[tuple[str, str]]:
    """Entries of the cache for 64-bit libraries; empty where there is no ldconfig (musl)."""
    for argv in LDCONFIG:
        try:
            done = subprocess.run(argv, capture_output=True, timeout=4, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            continue
        return cached(done.stdout.decode("utf-8", "replace"))
    return []
