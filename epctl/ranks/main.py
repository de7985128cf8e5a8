"""The process of one rank that `spawn` started: python -m epctl.ranks.main PARENT ORDER CONTROL EVENTS LISTEN (pid and descriptors)."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

import msgspec
from msgspec.structs import asdict

from epctl.ranks import process
from epctl.ranks.beats import Ended
from epctl.ranks.events import DONE, FAILED, INTERNAL, Pipe
from epctl.ranks.meeting import Meeting
from epctl.ranks.relay import Relay
from epctl.ranks.work import Order, carry_out


class Control:
    """The line from the parent: ends of other ranks, for all other nodes to know; its own end ends this process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._meeting: Meeting | None = None
        self._early: list[Ended] = []
        threading.Thread(target=self._read, name="epctl-control", daemon=True).start()

    def met(self, meeting: Meeting) -> None:
        """The job has come together; passes on what was heard before."""
        with self._lock:
            self._meeting = meeting
            early, self._early = self._early, []
        for ended in early:
            meeting.tell_end(ended)

    def _read(self) -> None:
        with os.fdopen(self._fd, "rb") as lines:
            for line in lines:
                ended = msgspec.json.decode(line, type=Ended)
                with self._lock:
                    meeting = self._meeting
                    if meeting is None:
                        self._early.append(ended)
                if meeting is not None:
                    meeting.tell_end(ended)
        os._exit(1)  # the parent is gone


def main(argv: list[str]) -> int:
    """Exit code 0, or that of the failure."""
    parent, order_fd, control_fd, event_fd, listen_fd = (int(word) for word in argv)
    process.die_with(parent)
    with os.fdopen(order_fd, "rb") as stream:
        stream.seek(0)
        order = msgspec.json.decode(stream.read(), type=Order)
    os.dup2(2, 1)  # what libraries print is no data
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    pipe = Pipe(event_fd, order.placement.rank)
    control = Control(control_fd)
    relay = Relay(order.placement.rank, pipe.send)

    def emit(kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        on_first_node = order.placement.node_idx == 0
        (pipe.emit if on_first_node or kind in INTERNAL else relay.emit)(kind, **fields)

    def met(meeting: Meeting) -> None:
        control.met(meeting)
        if order.placement.num_nodes > 1:
            relay.met(meeting)

    last = relay.drain if order.placement.num_nodes > 1 else _nothing
    failure = carry_out(order, emit, listen_fd=None if listen_fd < 0 else listen_fd, met=met, last=last)
    if failure is None:
        pipe.emit(DONE)
        return 0
    fields = asdict(failure)
    del fields["rank"]
    pipe.emit(FAILED, **fields)
    return failure.exit_code


def _nothing(_: Meeting) -> None:
    """On one node, every rank has a pipe to the parent."""


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _leave(code: int) -> NoReturn:
    """Ends without Python's own teardown: threads that are inside a library when it takes the interpreter away abort the process. What
    is registered with atexit has run by then."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        _leave(main(sys.argv[1:]))
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
