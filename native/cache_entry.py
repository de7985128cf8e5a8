"""One entry of the cache: files, and a manifest that tells what they were made from and what they must be."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from epctl.native import cache_key
from epctl.native.cache_key import Inputs

MANIFEST = "manifest.json"
_KEY_DIGITS = 24

Build = Callable[[Path], None]
"""Leaves its files in the folder it is given; the folder above takes temporary ones."""


class File(Struct, frozen=True):
    """One file of an entry."""

    bytes: int
    sha256: str


class Manifest(Struct, frozen=True):
    """What an entry is; its absence or disagreement with the files means that the entry is broken."""

    name: str
    key: str
    made_s: float
    """Seconds since 1970."""
    inputs: Inputs
    files: dict[str, File]


class Entry(Struct, frozen=True):
    """Files that are ready."""

    folder: Path
    manifest: Manifest
    built: bool = False
    """This process compiled it just now."""
    notice: str = ""
    """Why it is not in the cache's folder; '' where it is."""

    def file(self, name: str) -> Path:
        """Path of one file."""
        if name not in self.manifest.files:
            raise KeyError(name)
        return self.folder / name


def stem_of(name: str, inputs: Inputs) -> str:
    """Name of an entry's folder."""
    return f"{name}-{cache_key.key(inputs)[:_KEY_DIGITS]}"


def load(folder: Path, inputs: Inputs | None = None) -> Entry | None:
    """The entry in `folder` when all its files are what the manifest says (and it was made from `inputs`)."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        whole = all(_described(folder / name) == file for name, file in manifest.files.items())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return None
    if not whole or not manifest.files or manifest.key != cache_key.key(manifest.inputs):
        return None
    return Entry(folder, manifest) if inputs is None or inputs == manifest.inputs else None


def _described(path: Path) -> File:
    raw = path.read_bytes()
    return File(len(raw), hashlib.sha256(raw).hexdigest())


def make(out: Path, name: str, inputs: Inputs, build: Build) -> Manifest:
    """Builds into the folder `out` and writes the manifest."""
    build(out)
    files = {path.name: _described(path) for path in sorted(out.iterdir())}
    if not files:
        raise RuntimeError(f"the build of {name} left no file")
    manifest = Manifest(name, cache_key.key(inputs), time.time(), inputs, files)
    (out / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest
