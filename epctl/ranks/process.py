"""What Linux tells and does about processes: whether one lives, and that a child dies with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def started(pid: int) -> int:
    """When a process began, in ticks after boot; 0 for one that is gone, or a zombie. With the pid it names one process for good:
    pids are used again. Field 22 of /proc/PID/stat; the name in field 2 may hold blanks and brackets."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def pid_space() -> str:
    """Names the pid namespace of this process: pids of another one mean nothing here."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def boot_id() -> str:
    """Differs for each boot of each machine, and is the same in all its containers; '' when /proc does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def die_with(parent: int) -> None:
    """The kernel kills this process when `parent` ends, however that ends. Ends at once when it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def ending(code: int) -> str:
    """`by signal 9 (SIGKILL)` or `with exit code 3`, from a return code as subprocess gives it."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"
