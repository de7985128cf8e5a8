"""Reads files of this machine, and says why one cannot be read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import TypeVar

from epctl.core.fact import Absent

T = TypeVar("T")


def content(path: str, max_bytes: int) -> bytes:
    """The first `max_bytes` of a regular file. Raises OSError for anything else, and never waits for a writer."""
    # Opened without waiting for the writer of a pipe. sysfs and proc have regular files; a device may have side effects.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as stream:  # noqa: PTH123 - sysfs wants one plain read
        if stat.S_ISDIR(mode := os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        chunks: list[bytes] = []
        size = 0
        while size < max_bytes and (chunk := stream.read(max_bytes - size)):
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)


def guarded(path: str, action: Callable[[], T]) -> T | Absent:
    """`action()`, or the reason why the operating system refused it."""
    try:
        return action()
    except (FileNotFoundError, NotADirectoryError):
        return Absent("not_found", f"{path} does not exist")
    except PermissionError:
        return Absent("permission", f"{path} may not be read by this user")
    except (OSError, ValueError, RuntimeError) as error:
        return Absent("failed", f"{path}: {getattr(error, 'strerror', None) or error}")
