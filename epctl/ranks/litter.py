"""Shared-memory files that killed ranks would leave behind: NCCL removes its own only when it ends in order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

SHM = "/dev/shm/"  # noqa: S108 - the place itself is meant
OURS = ("nccl-", "epctl-")
"""How the names begin of files that a rank of ours makes: NCCL's segments, and epctl's. Others are never touched."""
_INITIAL = {"pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]"}
"""The host's own namespaces have fixed numbers (include/linux/proc_ns.h: PROC_PID_INIT_INO, PROC_IPC_INIT_INO)."""


def held(pids: Iterable[int]) -> set[str]:
    """Files below /dev/shm with such names that these processes map or have open."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines():
                found.add(line.partition("/")[1] + line.partition("/")[2])
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(str(fd.readlink()))
    return {
        path
        for path in found
        if path.startswith(tuple(SHM + name for name in OURS)) and not path.endswith(" (deleted)")
    }


def orphans(since_s: float) -> set[str]:
    """Files with such names that this user made after `since_s` (seconds since 1970) and no process holds. Who makes such a file holds
    it from the first moment on, so that it is no other job's; but not where /dev/shm is shared with processes that cannot be seen
    here, and nothing is found there."""
    if _space("pid") != _INITIAL["pid"] and _space("ipc") == _INITIAL["ipc"]:
        return set()
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHM):
            if entry.name.startswith(OURS) and _made_since(Path(entry.path), since_s):
                found.add(entry.path)
    return (
        found - held(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()) if found else found
    )


def _space(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return _INITIAL["ipc"]  # unknown: nothing is found


def _made_since(file: Path, since_s: float) -> bool:
    with contextlib.suppress(OSError):
        found = file.lstat()
        return found.st_uid == os.geteuid() and found.st_ctime >= since_s
    return False


def remove(paths: Iterable[str], since_s: float) -> None:
    """Removes those that belong to this user and were made after `since_s` (seconds since 1970)."""
    for path in paths:
        with contextlib.suppress(OSError):
            file = Path(path)
            if _made_since(file, since_s):
                file.unlink()
