"""Can one process take a file descriptor from a sibling (pidfd_getfd), as memory sharing between ranks does?"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

PIDFD_OPEN, PIDFD_GETFD = 434, 438
"""System call numbers; the same on every architecture since Linux 5.6 (asm-generic/unistd.h)."""
LIMIT_S = 5


def main() -> None:
    """Prints {"errno": …}: 0 when it works."""
    json.dump({"errno": attempt()}, sys.stdout)


def attempt() -> int:
    """errno of the second of two sibling processes that asks for a descriptor of the first."""
    offered_read, offered_write = os.pipe()
    holder = os.fork()
    if holder == 0:
        signal.alarm(LIMIT_S)
        with contextlib.suppress(OSError):
            signal.pause()
        os._exit(0)
    report_read, report_write = os.pipe()
    asker = os.fork()
    if asker == 0:
        signal.alarm(LIMIT_S)
        os.write(report_write, str(_take(holder, offered_read)).encode())
        os._exit(0)
    os.close(report_write)
    told = os.read(report_read, 16)
    os.kill(holder, signal.SIGKILL)
    for child in (holder, asker):
        os.waitpid(child, 0)
    for descriptor in (offered_read, offered_write, report_read):
        os.close(descriptor)
    return int(told or b"110")


def _take(pid: int, descriptor: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    if pidfd < 0:
        return ctypes.get_errno()
    return 0 if libc.syscall(PIDFD_GETFD, pidfd, descriptor, 0) >= 0 else ctypes.get_errno()


if __name__ == "__main__":
    main()
