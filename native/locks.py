"""Locks between processes that build the same thing, on one node or on several over a shared file system.

A lock saves work and is no guard of the result: builds go to a folder of their own and are renamed, so that two builders at once
cost time only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError

LIMIT_S = 600.0
"""Longest wait for another builder, from one look at the lock to the other without a change of holder."""
STALE_S = 120.0
"""Age of a lock without flock whose holder lives on another host and no longer touches it."""
TOUCH_S = 20.0
_POLL_S = (0.02, 0.5)
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
"""What flock gives on file systems without locks (NFS without lockd, some FUSE)."""


class Holder(Struct, frozen=True):
    """Who holds a lock; written into it."""

    host: str
    pid: int
    started: int
    """Start of the process in ticks after boot (/proc/PID/stat), so that a reused pid is not taken for it; 0 if unknown."""
    since_s: float
    """Seconds since 1970."""
    command: str
    token: str


class Busy(Exception):  # noqa: N818 - a state, not an error
    """Somebody else holds the lock."""


def me() -> Holder:
    """This process as a holder."""
    command = " ".join(Path(word).name for word in sys.argv[:3])[:200]
    return Holder(socket.gethostname(), os.getpid(), _started(os.getpid()), time.time(), command, uuid.uuid4().hex)


@contextlib.contextmanager
def held(path: Path, what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Holds the lock file `path` during the block. Raises EpctlError that names the holder when `limit_s` pass without it, and
    OSError when the file cannot be made."""
    lock = _wait(path, what, limit_s)
    try:
        yield
    finally:
        lock.release()


def _wait(path: Path, what: str, limit_s: float) -> Lock:
    pause_s = _POLL_S[0]
    holder: Holder | None = None
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return acquire(path)
        except Busy:
            now = read(path) or read(_link_of(path))
        if now is not None and (holder is None or now.token != holder.token):
            holder, deadline = now, time.monotonic() + limit_s
        if time.monotonic() >= deadline:
            raise _too_long(path, what, holder, limit_s)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_S[1])


def _too_long(path: Path, what: str, holder: Holder | None, limit_s: float) -> EpctlError:
    if holder is None:
        who = "its holder has not written who it is"
    else:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since_s))
        who = f"process {holder.pid} on {holder.host} ({holder.command}) has held it since {since}"
    return EpctlError(
        f"{what} has been locked for more than {limit_s:g} s",
        f"{who}; the lock is {path}",
        "end that process if it hangs, or set EPCTL_CACHE_DIR to another folder",
        exit_code=4,
    )


def acquire(path: Path) -> Lock:
    """The lock at `path`, at once. Raises Busy."""
    try:
        return _flocked(path)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    with contextlib.suppress(OSError):
        path.unlink()  # what the attempt left
    return _linked(path)


def _link_of(path: Path) -> Path:
    return path.with_name(path.name + ".link")


class Lock:
    """A lock that is held."""

    def __init__(self, path: Path, fd: int | None, token: str) -> None:
        self.path = path
        self._fd = fd
        self._token = token
        self._done = threading.Event()
        if fd is None:
            threading.Thread(target=self._touch, name="epctl-lock", daemon=True).start()

    def _touch(self) -> None:
        while not self._done.wait(TOUCH_S):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Gives the lock back and removes its file; one that somebody took over stays."""
        self._done.set()
        if self._fd is not None:
            # Removed before it is unlocked: who waits for it sees that the file is gone, and makes a new one.
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._fd)
            return
        held_by = read(self.path)
        if held_by is not None and held_by.token == self._token:
            with contextlib.suppress(OSError):
                self.path.unlink()


def read(path: Path) -> Holder | None:
    """Who holds the lock, as far as the file tells."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _flocked(path: Path) -> Lock:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy from None
        if not _is_still(fd, path):
            raise Busy
        holder = me()
        # A full disk must not cost the lock: without the text, it only cannot be said who holds it.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(holder), 0)
        return Lock(path, fd, holder.token)
    except BaseException:
        os.close(fd)
        raise


def _is_still(fd: int, path: Path) -> bool:
    """The path has not been removed or replaced between open and lock."""
    try:
        now = path.stat()
    except OSError:
        return False
    mine = os.fstat(fd)
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def _linked(path: Path) -> Lock:
    """Without flock: a hard link is made by one host alone, on NFS too, where O_EXCL was not always safe."""
    holder = me()
    link, own = _link_of(path), path.with_name(f"{path.name}.{holder.token}")
    try:
        own.write_bytes(msgspec.json.encode(holder))
        try:
            os.link(own, link)
        except FileExistsError:
            if not _is_stale(link, own):
                raise Busy from None
            _break(link, holder.token)
            raise Busy from None
        return Lock(link, None, holder.token)
    finally:
        with contextlib.suppress(OSError):
            own.unlink()


def _is_stale(link: Path, own: Path) -> bool:
    """The holder is a process of this host that is gone, or has not touched its lock for STALE_S. Both times are the file
    server's, so that clocks of hosts do not matter."""
    holder = read(link)
    if holder is not None and holder.host == socket.gethostname():
        return not _alive(holder)
    try:
        return own.stat().st_mtime - link.stat().st_mtime > STALE_S
    except OSError:
        return False


def _alive(holder: Holder) -> bool:
    return holder.started == _started(holder.pid) if holder.started else Path(f"/proc/{holder.pid}").exists()


def _break(link: Path, token: str) -> None:
    aside = link.with_name(f"{link.name}.{token}")
    with contextlib.suppress(OSError):
        link.rename(aside)
        aside.unlink()


def _started(pid: int) -> int:
    """Field 22 of /proc/PID/stat; the name in field 2 may hold blanks and brackets. 0 for a process that is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0
