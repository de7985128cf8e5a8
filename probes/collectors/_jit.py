"""Folders where libraries keep what they compiled. Standard library alone, Python 3.8 or later."""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH100, PTH110, PTH111, PTH112, PTH118, PTH120, PTH123

from __future__ import annotations

import itertools
import os
import re
from typing import Any

MAX_ENTRIES = 10_000
_PERSISTED = re.compile(r"persistent_envs\[['\"]EP_JIT_CACHE_DIR['\"]\]\s*=\s*['\"]([^'\"\n]+)['\"]")
_OCTAL = re.compile(r"\\([0-7]{3})")


def caches(deep_ep_folder: str) -> list[dict[str, Any]]:
    """One entry a library: its variable, then what was fixed when it was built, then its default."""
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    chosen = {
        "deepep": os.environ.get("EP_JIT_CACHE_DIR") or _persisted(deep_ep_folder) or os.path.join(home, ".deep_ep"),
        "deepgemm": os.environ.get("DG_JIT_CACHE_DIR") or os.path.join(home, ".deep_gemm"),
        "epctl": os.environ.get("EPCTL_CACHE_DIR") or os.path.join(cache, "epctl"),
    }
    mounts = _mounts()
    return [_describe(owner, os.path.abspath(os.path.expanduser(path)), mounts) for owner, path in chosen.items()]


def _persisted(folder: str) -> str:
    """DeepEP writes the EP_JIT_CACHE_DIR of its build into envs.py (its setup.py, persistent_env_names)."""
    try:
        with open(os.path.join(folder, "envs.py"), errors="replace") as stream:
            found = _PERSISTED.search(stream.read(1 << 16))
    except OSError:
        return ""
    return found.group(1) if found else ""


def _describe(owner: str, path: str, mounts: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """The folder may not be there yet: then the nearest one above it decides."""
    nearest = path
    while not os.path.exists(nearest) and os.path.dirname(nearest) != nearest:
        nearest = os.path.dirname(nearest)
    return {
        "owner": owner,
        "path": path,
        "exists": os.path.isdir(path),
        "filesystem": filesystem(os.path.realpath(nearest), mounts) if isinstance(mounts, list) else mounts,
        "writable": os.access(nearest, os.W_OK | os.X_OK),
        "entries": _entries(path),
    }


def _entries(path: str) -> Any:  # noqa: ANN401 - JSON
    """Compiled kernels: DeepEP and DeepGEMM keep them in `cache` below the folder."""
    inner = os.path.join(path, "cache")
    try:
        with os.scandir(inner if os.path.isdir(inner) else path) as found:
            return sum(1 for _ in itertools.islice(found, MAX_ENTRIES))
    except FileNotFoundError:
        return 0
    except PermissionError as error:
        return {"error": "permission", "detail": str(error)}
    except OSError as error:
        return {"error": "failed", "detail": str(error)}


def _mounts() -> Any:  # noqa: ANN401 - JSON
    """(mount point, type) in the order of mounting."""
    try:
        with open("/proc/mounts", errors="surrogateescape") as stream:
            rows = [line.split(" ") for line in stream]
    except OSError as error:
        return {"error": "failed", "detail": str(error)}
    return [(_OCTAL.sub(lambda found: chr(int(found.group(1), 8)), row[1]), row[2]) for row in rows if len(row) > 2]


def filesystem(path: str, mounts: list[tuple[str, str]]) -> Any:  # noqa: ANN401 - JSON
    """Type of the mount with the longest prefix; of several on one point, the last one that is no automounter's trap."""
    best, kind = "", ""
    for point, name in mounts:
        inside = point == "/" or path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best) and not (name == "autofs" and point == best):
            best, kind = point, name
    return kind or {"error": "not_found", "detail": f"no mount holds {path}"}
