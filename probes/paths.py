"""Paths that a user gives: what lies there, and its content, without waiting on a pipe and without a traceback."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

from epctl.core.errors import EpctlError

Kind = Literal["file", "folder", "missing", "other"]


def kind_of(path: Path, todo: str = "check the path and its permissions") -> Kind:
    """What `path` is, links followed. Raises EpctlError when that cannot be told: a name too long, a folder that may not be entered."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError) as error:
        raise unreadable(path, error, todo) from None
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) else "other"


def open_regular(path: Path, todo: str = "check the path and its permissions") -> BinaryIO:
    """`path` opened for reading. Raises EpctlError for whatever is no regular file: opening a pipe would wait for a writer."""
    try:
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except (OSError, ValueError) as error:
        raise unreadable(path, error, todo) from None
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise EpctlError(f"{path} is no file", "it is a device, pipe or socket", todo)


def content(path: Path, limit_bytes: int, todo: str = "check the path and its permissions") -> bytes:
    """Up to `limit_bytes` + 1 bytes of a regular file, so that the caller can tell that there were too many."""
    with open_regular(path, todo) as stream:
        try:
            return stream.read(limit_bytes + 1)
        except OSError as error:
            raise unreadable(path, error, todo) from None


def unreadable(path: Path, error: OSError | ValueError, todo: str) -> EpctlError:
    """The error for a path that the system refused."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return EpctlError(f"{path} could not be read", why, todo)
