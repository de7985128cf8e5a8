"""Compiled files for one process, where the cache cannot be used."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

from epctl.native.cache_entry import Build, Entry, make, stem_of
from epctl.native.cache_key import Inputs

_PREFIX = "epctl-private-"
_entries: dict[str, Entry] = {}
_lock = threading.Lock()


def get(name: str, inputs: Inputs, build: Build, why: str) -> Entry:
    """The entry for `inputs`, built once in this process and removed when it ends. `why` the cache was not used becomes a notice."""
    stem = stem_of(name, inputs)
    notice = f"{why}; {name} is compiled for this process alone"
    with _lock:
        if stem not in _entries:
            _sweep()
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            (folder / "out").mkdir()
            try:
                _entries[stem] = Entry(folder / "out", make(folder / "out", name, inputs, build), True, notice)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return _entries[stem]


def _sweep() -> None:
    """Folders of this user's processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = path.name[len(_PREFIX) :].partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and path.stat().st_uid == os.getuid() and not Path("/proc", pid).exists():
                shutil.rmtree(path, ignore_errors=True)
