"""How the dynamic loader would find a library, and what a library's constants say, without loading anything.

Standard library alone, Python 3.8 or later.
"""

# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH113, PTH118, PTH119, PTH120, PTH123, PTH207

from __future__ import annotations

import fnmatch
import glob
import mmap
import os
import re
import struct
from typing import Any

from . import elf  # noqa: TID252 - the collectors' name of this package is another one

LDCONFIG = (("/sbin/ldconfig", "-p"), ("/usr/sbin/ldconfig", "-p"), ("ldconfig", "-p"))
"""What tells the loader's cache, to be tried in turn; musl has none of them."""
_CACHED = re.compile(r"\s*(\S+) \(([^)]*)\) => (/\S.*)")
_SHT_PROGBITS, _SHT_DYNAMIC = 1, 6
_DT_RUNPATH = 29


class Loader:
    """Folders and files of LD_PRELOAD, LD_LIBRARY_PATH and the loader's cache."""

    def __init__(self, environ: dict[str, str], cache: list[tuple[str, str]]) -> None:
        machine = os.uname().machine
        self.preload = [path for path in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")) if path]
        self.folders = [path for path in re.split(r"[:;]", environ.get("LD_LIBRARY_PATH", "")) if path]
        self.cache = cache
        """(soname, path) in the cache's order."""
        self.defaults = [
            f"/lib/{machine}-linux-gnu",
            f"/usr/lib/{machine}-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/lib",
        ]
        self._cached: dict[str, str] = {}
        for soname, path in cache:
            self._cached.setdefault(soname, path)

    def find(self, soname: str, head: list[str] | None = None, tail: list[str] | None = None) -> str:
        """Path of `soname`, '' when it is not found. `head`: folders of DT_RPATH, `tail`: of DT_RUNPATH."""
        if "/" in soname:
            return soname if os.path.isfile(soname) else ""
        for path in self.preload:
            if os.path.basename(path) == soname and os.path.isfile(path):
                return path
        for folder in [*(head or []), *self.folders, *(tail or [])]:
            path = os.path.join(folder, soname)
            if os.path.isfile(path):
                return path
        if soname in self._cached and os.path.isfile(self._cached[soname]):
            return self._cached[soname]
        return next((path for path in (f"{folder}/{soname}" for folder in self.defaults) if os.path.isfile(path)), "")

    def every(self, pattern: str) -> list[str]:
        """Paths that match a file-name pattern, in the order of the search, each once."""
        found = [path for path in self.preload if fnmatch.fnmatch(os.path.basename(path), pattern)]
        for folder in self.folders:
            found.extend(sorted(glob.glob(os.path.join(glob.escape(folder), pattern))))
        found.extend(path for _, path in self.cache if fnmatch.fnmatch(os.path.basename(path), pattern))
        for folder in self.defaults:
            found.extend(sorted(glob.glob(f"{folder}/{pattern}")))
        return [path for path in dict.fromkeys(found) if os.path.isfile(path)]


def cached(told: str) -> list[tuple[str, str]]:
    """(soname, path) of the 64-bit libraries that `ldconfig -p` lists."""
    entries = map(_CACHED.fullmatch, told.splitlines())
    return [(entry.group(1), entry.group(3)) for entry in entries if entry and "64" in entry.group(2)]


def run_path(path: str, runpath: tuple[str, ...]) -> list[str]:
    """Folders of a library's run path, $ORIGIN filled in."""
    origin = os.path.dirname(os.path.realpath(path))
    return [folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin) for folder in runpath]


def resolve(loader: Loader, path: str, soname: str, parsed: Any) -> str:  # noqa: ANN401 - an Elf
    """What the loader takes for `soname` on behalf of the library at `path`: an old DT_RPATH comes before LD_LIBRARY_PATH (pip
    wheels of PyTorch have it), a DT_RUNPATH after."""
    folders = run_path(path, parsed.runpath)
    return loader.find(soname, tail=folders) if has_runpath(path) else loader.find(soname, head=folders)


def missing(loader: Loader, path: str, parsed: Any, besides: list[str]) -> list[str]:  # noqa: ANN401 - an Elf
    """Needed libraries that are neither found nor in the folders `besides`."""
    return [
        soname
        for soname in parsed.needed
        if not resolve(loader, path, soname, parsed)
        and not any(os.path.isfile(os.path.join(folder, soname)) for folder in besides)
    ]


def has_runpath(path: str) -> bool:
    """The library carries DT_RUNPATH (and not the older DT_RPATH alone)."""
    with _mapped(path) as raw:
        for kind, name, begin, size in sections(raw):
            if kind == _SHT_DYNAMIC and name == ".dynamic":
                tags = struct.iter_unpack("<qQ", raw[begin : begin + size // 16 * 16])
                return any(tag == _DT_RUNPATH for tag, _ in tags)
    return False


def constants(raw: mmap.mmap) -> tuple[int, int]:
    """Place and end of the constants (.rodata) of a library: text stands there, GPU code does not. All of the file when it has
    no section headers."""
    for kind, name, begin, size in sections(raw):
        if kind == _SHT_PROGBITS and name == ".rodata":
            return begin, min(begin + size, len(raw))
    return 0, len(raw)


def sections(raw: mmap.mmap) -> list[tuple[int, str, int, int]]:
    """(type, name, offset, size) of the sections of a little-endian 64-bit ELF file; empty for anything else."""
    if raw[:6] != b"\x7fELF\x02\x01" or len(raw) < 64:
        return []
    try:
        offset, size, count, names_idx = struct.unpack_from("<40xQ10xHHH", raw, 0)
        rows = [struct.unpack_from("<IIQQQQ", raw, offset + i * size) for i in range(count)]
        names = rows[names_idx][4]
        return [(row[1], _name(raw, names + row[0]), row[4], row[5]) for row in rows]
    except (struct.error, IndexError, OverflowError):
        return []


def _name(raw: mmap.mmap, begin: int) -> str:
    end = raw.find(b"\0", begin, begin + 256)
    return raw[begin : max(end, begin)].decode("ascii", "replace")


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def search(path: str, pattern: re.Pattern[bytes], hint: bytes, max_hits: int = 64) -> str:
    """Group 1 of the first match of `pattern` near one of the first `max_hits` occurrences of `hint` among the constants of a
    library; '' without one, or when the file cannot be read."""
    try:
        with _mapped(path) as raw:
            begin, end = constants(raw)
            at = begin
            for _ in range(max_hits):
                at = raw.find(hint, at, end)
                if at < 0:
                    return ""
                found = pattern.match(raw[at : at + 128])
                if found:
                    return found.group(1).decode("ascii", "replace")
                at += len(hint)
    except (OSError, ValueError):
        return ""
    return ""


def load(path: str, names: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - an Elf
    """Dynamic section of a library, with the symbols that begin with one of `names`."""
    return elf.load(path, elf.any_of(prefixes=names)) if names else elf.load(path)
