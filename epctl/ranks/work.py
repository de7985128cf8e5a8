"""What one rank does from start to end, whoever started its process."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from epctl.core.errors import CommonError, EpctlError
from epctl.core.placement import Placement
from epctl.ranks import facts
from epctl.ranks.beats import Ended
from epctl.ranks.events import FAILED, Failure
from epctl.ranks.meeting import LIMIT_S, Meeting
from epctl.ranks.rank import Rank, Task
from epctl.ranks.roll import PeerEndedError
from epctl.ranks.watchdog import Emit, Watchdog

LOAD_S = 120.0
"""For importing PyTorch and the task from a file system that may be slow."""
END_S = 600.0
"""How long a rank that is done waits for the others, each of which has limits of its own."""
PEER_GRACE_S = 3.0
"""How long a rank may go on after another one ended, before its watchdog ends it: it may be in a call that waits for the other."""


class Order(Struct, frozen=True):
    """What a rank is to do."""

    task: str
    """`module:function`, in epctl."""
    request: dict[str, Any]
    placement: Placement
    join_s: float = LIMIT_S
    limit_s: float | None = None
    """For everything; None where somebody else watches."""
    debug: bool = False
    run_idx: int = 0


def find(task: str) -> Task:
    """The function of that name. Raises EpctlError unless it is one inside epctl."""
    module, _, name = task.partition(":")
    try:
        if not module.startswith("epctl.") or not name.isidentifier():
            raise ValueError("a task is module:function inside epctl")
        found = getattr(importlib.import_module(module), name)
        if not callable(found):
            raise TypeError(f"it is a {type(found).__name__}")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise EpctlError(
            f"the task {task!r} cannot be run",
            f"{type(error).__name__}: {error}",
            "this is an error in epctl, or its installation is damaged: install it anew",
            exit_code=1,
        ) from None
    task_: Task = found
    return task_


def carry_out(
    order: Order,
    emit: Emit,
    *,
    listen_fd: int | None = None,
    met: Callable[[Meeting], None] = lambda _: None,
    last: Callable[[Meeting], None] = lambda _: None,
) -> Failure | None:
    """Joins, verifies that it is one job, runs the task, and ends together with the others. None when all went well. `met` is called
    once the job has come together, `last` once all have come to the end, or after a failure. SystemExit and KeyboardInterrupt pass
    through, after the others were told."""
    place = order.placement
    dog = Watchdog(place.rank, emit, debug=order.debug)
    try:
        if order.limit_s is None:
            return _steps(order, dog, emit, listen_fd, met, last)
        with dog.stage("the whole run", order.limit_s):
            return _steps(order, dog, emit, listen_fd, met, last)
    finally:
        dog.close()


def _steps(
    order: Order,
    dog: Watchdog,
    emit: Emit,
    listen_fd: int | None,
    met: Callable[[Meeting], None],
    last: Callable[[Meeting], None],
) -> Failure | None:
    meeting: Meeting | None = None
    place = order.placement
    try:
        with dog.stage("load the task", LOAD_S):
            task = find(order.task)
        with dog.stage("join", order.join_s + LOAD_S):
            meeting = Meeting.join(place, order.join_s, listen_fd=listen_fd, run_idx=order.run_idx)
        dog.verdict = _Peers(meeting, dog, emit).verdict
        dog.waits_for = meeting.waits_for
        dog.last_words = _last_words(meeting)
        met(meeting)
        rank = Rank(meeting, dog, emit, debug=order.debug)
        with rank.stage("verify the job", order.join_s + LOAD_S):
            asked = facts.digest([order.task, order.request])
            meeting.verify(facts.own(meeting.placement, request=asked, nccl=nccl_version()), several_ranks_a_gpu=True)
        task(rank, order.request)
        with rank.stage("end", END_S):
            meeting.arrive("end", END_S)
            last(meeting)
        meeting.close()
    except EpctlError as error:
        failure = _of_error(error, place.rank, dog.where(error))
    except Exception as error:  # noqa: BLE001 - whatever a task raises, the others must hear of it
        failure = _of_exception(error, place.rank, dog.where(error))
    except BaseException as error:
        if meeting is not None:
            meeting.tell_end(Ended(place.rank, f"was ended from outside ({_outside(error)})", dog.where(error)))
        raise
    else:
        return None
    if order.debug:
        traceback.print_exc(file=sys.stderr)
    if meeting is not None:
        if failure.peer is None:
            meeting.tell_end(Ended.of(place.rank, failure.what, failure.stage))
        with contextlib.suppress(Exception):
            last(meeting)
        meeting.close(failed=True)
    return failure


def nccl_version() -> str:
    """The NCCL that this rank will load; '' when there is none."""
    from epctl.native import nccl

    try:
        return nccl.find().library.version
    except EpctlError:
        return ""


class _Peers:
    """Ends a rank that hangs in a call while another rank is gone."""

    def __init__(self, meeting: Meeting, dog: Watchdog, emit: Emit) -> None:
        self._meeting = meeting
        self._dog = dog
        self._emit = emit
        self._since: float | None = None

    def verdict(self) -> tuple[str, int] | None:
        ended = self._meeting.peer_ended()
        if ended is None:
            return None
        self._since = time.monotonic() if self._since is None else self._since
        if time.monotonic() - self._since < PEER_GRACE_S:
            return None
        error = PeerEndedError(ended)
        rank = self._meeting.placement.rank
        self._emit(FAILED, **_fields(_of_error(error, rank, self._dog.current)))
        return f'rank {rank} ends in stage "{self._dog.current}", since {ended}', 1


def _last_words(meeting: Meeting) -> Callable[[str, str], None]:
    def tell(reason: str, stage: str) -> None:
        if meeting.peer_ended() is None:
            meeting.tell_end(Ended.of(meeting.placement.rank, reason, stage))

    return tell


def _fields(failure: Failure) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {name: value for name, value in asdict(failure).items() if name != "rank"}


def _of_error(error: EpctlError, rank: int, stage: str) -> Failure:
    peer = error.rank if isinstance(error, PeerEndedError) else None
    common = isinstance(error, CommonError)
    return Failure(rank, stage, error.what, error.why, error.todo, error.exit_code, peer, common)


def _of_exception(error: Exception, rank: int, stage: str) -> Failure:
    last = traceback.extract_tb(error.__traceback__)
    where = f"{last[-1].name}, line {last[-1].lineno} of {last[-1].filename.rpartition('/')[2]}" if last else "nowhere"
    return Failure(
        rank,
        stage,
        f'rank {rank} failed in stage "{stage}": {type(error).__name__}: {str(error)[:2000]}',
        f"raised in {where}",
        "run again with --debug for the traceback; it is an error in epctl unless a library or the machine is named above",
    )


def _outside(error: BaseException) -> str:
    return f"exit code {error.code}" if isinstance(error, SystemExit) else type(error).__name__
