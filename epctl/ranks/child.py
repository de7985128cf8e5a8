"""One rank process as its parent sees it: how it starts, what it says, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec

from epctl.core.render.safe import plain
from epctl.ranks import process
from epctl.ranks.beats import Ended
from epctl.ranks.events import DONE, FAILED, MAX_LINE_BYTES, STAGE, Event, Failure, Handler, decode
from epctl.ranks.work import Order

MAX_ERROR_LINE = 4096
_CHUNK = 1 << 16


class Child:
    """A rank of this node."""

    def __init__(self, order: Order, env: dict[str, str], listen_fd: int | None) -> None:
        self.place = order.placement
        self.stage = "start"
        self.done_at: float | None = None
        self.failure: Failure | None = None
        self.code: int | None = None
        """Of its end, as subprocess gives it; None as long as it runs."""
        self.cut = False
        """It was told to end from here."""
        self.forced = False
        """It had to be killed, since it did not end when it was told to."""
        self._events = bytearray()
        self._errors = bytearray()
        order_fd = os.memfd_create("epctl-order", os.MFD_CLOEXEC)
        control_read, self._control = os.pipe()
        self.event_fd, event_write = os.pipe()
        given = [order_fd, control_read, event_write, *([] if listen_fd is None else [listen_fd])]
        try:
            with os.fdopen(os.dup(order_fd), "wb") as stream:
                stream.write(msgspec.json.encode(order))
            flags = ["-P"] if sys.version_info >= (3, 11) else []
            words = [os.getpid(), *given[:3], -1 if listen_fd is None else listen_fd]
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-m", "epctl.ranks.main", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**env, **_path(env)},
                pass_fds=given,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._control)
            os.close(self.event_fd)
            raise
        finally:
            for fd in given[:3]:
                os.close(fd)
        assert self.process.stderr is not None  # noqa: S101 - it is a pipe
        self.error_fd = self.process.stderr.fileno()
        for fd in (self.event_fd, self.error_fd):
            os.set_blocking(fd, False)

    @property
    def rank(self) -> int:
        return self.place.rank

    def look(self) -> bool:
        """Whether the process has ended since the last look. It is not reaped before its whole group was killed, so that the group's
        number cannot be another's."""
        if self.code is not None:
            return False
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.kill()
        self.code = self.process.wait()
        return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signals the process and its descendants."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def tell(self, ended: Ended) -> None:
        """Passes on that another rank has ended."""
        with contextlib.suppress(OSError):
            os.write(self._control, msgspec.json.encode(ended) + b"\n")

    def read_events(self, handler: Handler, now: float) -> bool:
        """Handles what has come. False when the pipe is at its end."""
        is_open = _fill(self.event_fd, self._events)
        while (end := self._events.find(b"\n")) >= 0:
            line = bytes(self._events[:end])
            del self._events[: end + 1]
            with contextlib.suppress(msgspec.DecodeError):
                self._take(decode(line), handler, now)
        if len(self._events) > MAX_LINE_BYTES:
            self._events.clear()
        return is_open

    def read_errors(self) -> bool:
        """Passes standard error on, line by line. False when the pipe is at its end."""
        is_open = _fill(self.error_fd, self._errors)
        while self._errors:
            end = self._errors.find(b"\n", 0, MAX_ERROR_LINE)
            if end < 0:
                if is_open and len(self._errors) <= MAX_ERROR_LINE:
                    break
                end = min(MAX_ERROR_LINE, len(self._errors))
            line = bytes(self._errors[:end])
            del self._errors[: end + (self._errors[end : end + 1] == b"\n")]
            with contextlib.suppress(OSError):  # nobody reads it any more
                sys.stderr.write(f"[rank {self.rank}] {plain(line.decode('utf-8', 'replace').rstrip())}\n")
                sys.stderr.flush()
        return is_open

    def close(self) -> None:
        """Lets go of the pipes; the control pipe's end would end a rank that still lives."""
        for fd in (self._control, self.event_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _take(self, event: Event, handler: Handler, now: float) -> None:
        if event.kind == STAGE:
            self.stage = str(event.fields.get("name"))
        elif event.kind == DONE:
            self.done_at, self.stage = now, "exit"
        elif event.kind == FAILED:
            self.failure = msgspec.convert({"rank": self.rank, **event.fields}, Failure)
        else:
            handler(event)

    @property
    def fate(self) -> str:
        """`ended by signal 9 (SIGKILL)`."""
        assert self.code is not None  # noqa: S101 - asked after the end only
        return f"ended {process.ending(self.code)}"


def _fill(fd: int, into: bytearray) -> bool:
    """Reads a pipe that does not block. False at its end."""
    for _ in range(64):
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        into += chunk
    return True


def _path(env: dict[str, str]) -> dict[str, str]:
    """PYTHONPATH for a child when this package is not installed but found in a folder."""
    import epctl

    root = str(Path(epctl.__file__).parent.parent)
    if root in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return {}
    return {"PYTHONPATH": ":".join(filter(None, (root, env.get("PYTHONPATH"))))}
