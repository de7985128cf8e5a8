"""How the files of NCCL and NVSHMEM are called, and the versions that they and their headers tell.

Standard library alone, Python 3.8 or later.
"""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH100, PTH118, PTH119, PTH120, PTH123

from __future__ import annotations

import fnmatch
import os
import re
from typing import Any, NamedTuple

from . import loader  # noqa: TID252 - the collectors' name of this package is another one

_DEFINE = re.compile(r"^\s*#\s*define\s+(?:NCCL|NVSHMEM_VENDOR)_(MAJOR|MINOR|PATCH)(?:_VERSION)?\s+(\d{1,4})\b", re.M)


class Kind(NamedTuple):
    """One library: how its files are called and where they keep their version."""

    name: str
    pattern: str
    sonames: tuple[str, ...]
    hint: bytes
    version: re.Pattern[bytes]
    header: str
    roots: tuple[str, ...]


NCCL = Kind(
    "nccl",
    "libnccl.so*",
    ("libnccl.so.2",),
    b"NCCL version ",
    re.compile(rb"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})(?!\d)"),
    "nccl.h",
    ("EP_NCCL_ROOT_DIR", "NCCL_DIR", "NCCL_ROOT", "NCCL_HOME", "NCCL_ROOT_DIR"),
)
NVSHMEM = Kind(
    "nvshmem",
    "libnvshmem_host.so*",
    ("libnvshmem_host.so.3", "libnvshmem_host.so.2"),
    b"NVSHMEM v",
    re.compile(rb"NVSHMEM v(\d{1,3}\.\d{1,3}\.\d{1,3})(?!\d)"),
    "nvshmem.h",
    ("EP_NVSHMEM_ROOT_DIR", "NVSHMEM_DIR", "NVSHMEM_HOME"),
)


def mapped(pattern: str) -> list[str]:
    """Files of this process's memory map whose name matches."""
    try:
        with open("/proc/self/maps", errors="replace") as stream:
            paths = {line.split(None, 5)[5].rstrip("\n") for line in stream if ".so" in line and "/" in line}
    except (OSError, IndexError):
        return []
    return sorted(path for path in paths if fnmatch.fnmatch(os.path.basename(path), pattern))


_known: dict[tuple[str, str], Any] = {}


def version(kind: Kind, path: str) -> Any:  # noqa: ANN401 - JSON
    """Version from the text inside of a library, else from the headers beside it."""
    key = (kind.name, os.path.realpath(path))
    if key not in _known:
        told = loader.search(path, kind.version, kind.hint) or headers(kind, path)
        _known[key] = told or {"error": "unparsable", "detail": "the file does not tell its version"}
    return _known[key]


def headers(kind: Kind, path: str) -> str:
    """Version of the headers that belong to the library at `path`: ../include, else the system's for a system library."""
    return next(filter(None, (header_version(kind, place) for place in include_folders(path))), "")


def include_folders(path: str) -> list[str]:
    """Where the headers of the library at `path` would be."""
    folder = os.path.dirname(os.path.abspath(path))
    places = [os.path.join(os.path.dirname(folder), "include")]
    return [*places, "/usr/include"] if folder.startswith(("/usr/lib", "/lib")) else places


def header_version(kind: Kind, include: str) -> str:
    """Version that the headers in a folder define; '' without them."""
    for name in (kind.header, "non_abi/nvshmem_version.h") if kind is NVSHMEM else (kind.header,):
        try:
            with open(os.path.join(include, name), errors="replace") as stream:
                numbers = dict(_DEFINE.findall(stream.read(1 << 20)))
        except OSError:
            continue
        if len(numbers) == 3:
            return "{MAJOR}.{MINOR}.{PATCH}".format(**numbers)
    return ""
