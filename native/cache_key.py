"""What a compiled file depends on, as one key."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError

VERSION = 1
"""To be raised when what is built changes in a way that the other inputs do not show."""
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(.*)$", re.M)
_FILE = re.compile(r'(["<])([^">]+)[">]')


class Inputs(Struct, frozen=True):
    """Everything that decides what comes out of a build."""

    sources: tuple[tuple[str, str], ...]
    """(path below its root, SHA-256), the file itself first and then all that it includes."""
    flags: tuple[str, ...]
    compilers: tuple[str, ...]
    """Names with versions."""
    nccl: str = ""
    """Versions of headers and library; '' for code that does not use NCCL."""
    architecture: str = ""
    """90a; '' for code of the host."""
    version: int = VERSION


def key(inputs: Inputs) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(inputs)).hexdigest()


def sources(entry: Path, root: Path, includes: tuple[Path, ...]) -> tuple[tuple[str, str], ...]:
    """`entry` and the files that it includes, directly or not, as far as they lie below `root`: those of the toolkit, of NCCL and
    of the system are known by their versions. `includes`: folders of -I."""
    found: dict[Path, str] = {}
    waiting = [entry.resolve()]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        raw = path.read_bytes()
        found[path] = hashlib.sha256(raw).hexdigest()
        waiting += _included(path, raw.decode("utf-8", "replace"), root.resolve(), includes)
    named = {str(path.relative_to(root.resolve())): digest for path, digest in found.items()}
    first = str(entry.resolve().relative_to(root.resolve()))
    return ((first, named.pop(first)), *sorted(named.items()))


def _included(path: Path, text: str, root: Path, includes: tuple[Path, ...]) -> list[Path]:
    files = []
    for line in _INCLUDE.findall(text):
        named = _FILE.match(line)
        if named is None:
            raise EpctlError(
                f"{path.name} includes something that cannot be followed",
                f"#include {line.strip()}: the cache must know every file",
                "name the file in quotes or angle brackets",
            )
        folders = (path.parent, *includes) if named.group(1) == '"' else includes
        target = next((place for folder in folders if (place := (folder / named.group(2)).resolve()).is_file()), None)
        if target is not None and target.is_relative_to(root):
            files.append(target)
    return files
