"""What ranks tell the process that renders: one JSON object a line."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

LOCK_LIMIT_S = 1.0
"""A watchdog must not wait longer for a thread that hangs while it writes."""
MAX_LINE_BYTES = 64 * 1024 * 1024

STAGE, FAILED, DONE = "rank.stage", "rank.failed", "rank.done"
INTERNAL = (STAGE, FAILED, DONE)
"""Kinds that the machinery of ranks uses itself; a handler never sees them."""


class Event(Struct, frozen=True):
    """One thing that a rank tells."""

    kind: str
    rank: int
    fields: dict[str, Any] = {}


Handler = Callable[[Event], None]
"""Called in the process that renders, one event at a time."""


class Failure(Struct, frozen=True):
    """Why a rank ended early: an error in the three lines of EpctlError, and where."""

    rank: int
    stage: str
    what: str
    why: str
    todo: str
    exit_code: int = 1
    peer: int | None = None
    """The rank whose end was the reason; None when it is this rank's own."""
    common: bool = False
    """All ranks found the same."""


def encode(event: Event) -> bytes:
    """The event as one line. Strings that are no UTF-8 lose what is invalid."""
    try:
        return msgspec.json.encode(event) + b"\n"
    except UnicodeEncodeError:
        from epctl.core.jsontext import dump

        return msgspec.json.encode(msgspec.json.decode(dump(event))) + b"\n"


def decode(line: bytes) -> Event:
    """Raises msgspec.DecodeError on a line that is none."""
    return msgspec.json.decode(line, type=Event)


class Pipe:
    """Writes events into a file descriptor, whole lines whichever thread writes. A reader that is gone is no error: who reads is the
    parent, and its end ends the rank by itself."""

    def __init__(self, fd: int, rank: int) -> None:
        self._fd = fd
        self._rank = rank
        self._lock = threading.Lock()

    def emit(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Sends one event."""
        self.send(Event(kind, self._rank, fields))

    def send(self, event: Event) -> None:
        """Sends an event, which may be another rank's."""
        data = encode(event)
        locked = self._lock.acquire(timeout=LOCK_LIMIT_S)
        try:
            with contextlib.suppress(BrokenPipeError):
                while data:
                    data = data[os.write(self._fd, data) :]
        finally:
            if locked:
                self._lock.release()
