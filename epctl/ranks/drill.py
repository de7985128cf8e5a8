"""Exercises: a job that only meets, and one in which a rank misbehaves on request. They prove on a machine that ranks come together
there, and that the end of a rank is noticed, named, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epctl.core.errors import EpctlError
from epctl.ranks.litter import SHM
from epctl.ranks.rank import Rank


def meet(rank: Rank, request: dict[str, Any]) -> None:
    """Each rank tells where it stands, exchanges values for `rounds` rounds, and rank 0 tells what it got."""
    place = rank.placement
    echo = os.environ.get("EPCTL_DRILL_ECHO", "")
    rank.emit("here", host=rank.meeting.roll[place.rank].host, node_idx=place.node_idx, pid=os.getpid(), echo=echo)
    with rank.stage("exchange", float(request.get("limit_s", 30.0))):
        for number in range(int(request.get("rounds", 3))):
            told = rank.meeting.all_gather("round", f"{place.rank}:{number}".encode())
            if told != [f"{other}:{number}".encode() for other in range(place.world_size)]:
                raise EpctlError(f"round {number} gave {told!r}", "values got mixed up", "report it", exit_code=1)
    if place.rank == 0:
        rank.emit("met", num_ranks=place.world_size)


def misbehave(rank: Rank, request: dict[str, Any]) -> None:
    """The rank `who` does `what` in the stage "middle": kill, segv, exit, leave, raise, refuse, hang, freeze, stop or chatter; the others
    wait for it in that stage for `limit_s`."""
    who, what = int(request["who"]), str(request["what"])
    with rank.stage("middle", float(request.get("limit_s", 30.0))):
        rank.emit("ready", pid=os.getpid())
        with _memory() if request.get("memory") else contextlib.nullcontext():
            if rank.placement.rank == who:
                _do(what)
            rank.meeting.arrive("after", float(request.get("arrive_s", 30.0)))


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """Holds a shared-memory file, which stays behind when the process is killed, as NCCL's do."""
    path = Path(f"{SHM}epctl-drill-{os.getpid()}")
    with path.open("w+b") as stream:
        stream.truncate(mmap.PAGESIZE)
        held = mmap.mmap(stream.fileno(), mmap.PAGESIZE)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        held.close()


def _do(what: str) -> None:
    if what in {"kill", "segv", "stop"}:
        number = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "stop": signal.SIGSTOP}[what]
        os.kill(os.getpid(), number)
    elif what == "exit":
        os._exit(3)
    elif what == "leave":
        sys.exit(0)
    elif what == "raise":
        raise ValueError("a drill")
    elif what == "refuse":
        raise EpctlError("the drill refuses", "it was asked to", "ask for something else", exit_code=4)
    elif what == "freeze":
        ctypes.PyDLL(None).sleep(3600)  # holds the GIL, as a driver call may
    elif what == "hang":
        time.sleep(3600.0)
    elif what == "chatter":
        sys.stderr.write("a line\x1b[31m\nno end of line")
        sys.stdout.write("no data")
        sys.stdout.flush()
