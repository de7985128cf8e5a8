"""The parent of a node's rank processes: starts them, passes on what they say, and ends all of them when one has ended badly, when
time is up, or when the program itself ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.core.placement import Job, Placement
from epctl.ranks import causes, litter
from epctl.ranks.beats import Ended
from epctl.ranks.child import Child
from epctl.ranks.events import Failure, Handler
from epctl.ranks.store import listener
from epctl.ranks.work import Order

GRACE_S = 3.5
"""From the first bad end until the other ranks are told to end: they may have something to say about it."""
TERM_S = 2.0
"""From SIGTERM to SIGKILL."""
EXIT_S = 20.0
"""From the end of a rank's work to the end of its process."""
LINGER_S = 0.5
"""How long output is read on after the end of a process whose descendants hold the pipe."""
_TICK_S = 0.05

Environment = Callable[[Placement], "dict[str, str]"]


class Limits(Struct, frozen=True):
    """How long things may take, in seconds."""

    join_s: float = 60.0
    whole_s: float | None = None
    grace_s: float = GRACE_S
    term_s: float = TERM_S


def supervise(
    task: str,
    request: dict[str, Any],
    job: Job,
    handler: Handler,
    *,
    environment: Environment | None = None,
    limits: Limits | None = None,
    debug: bool = False,
) -> None:
    """Runs the task on the ranks that the job gives this node. Raises EpctlError that names the rank and its stage when one ends badly,
    after all of them have ended. No process, socket or shared-memory file stays, whatever ends this call."""
    Supervisor(handler, limits or Limits()).run(task, request, job, environment, debug=debug)


class Supervisor:
    """Watches over the ranks of one node."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._began_s = time.time()
        self._trouble_at: float | None = None
        self._troubles: list[tuple[int, Failure]] = []
        """(weight, failure) in the order in which they came to be known; the smallest weight is the cause."""
        self._files: set[str] = set()

    def run(
        self, task: str, request: dict[str, Any], job: Job, environment: Environment | None, *, debug: bool
    ) -> None:
        """Starts the ranks and stays until all have ended."""
        try:
            self._start(task, request, job, environment, debug=debug)
            self._watch()
        finally:
            self._end_all()
        if self._troubles:
            _, failure = min(self._troubles, key=lambda entry: entry[0])
            why = "; ".join((failure.why, *causes.forced(self._children)))
            raise EpctlError(failure.what, why, failure.todo, exit_code=failure.exit_code)

    def _start(
        self, task: str, request: dict[str, Any], job: Job, environment: Environment | None, *, debug: bool
    ) -> None:
        listen = None
        if job.num_nodes == 1:
            listen = listener(job.address, 0)
            job = replace(job, port=listen.getsockname()[1], job_id=uuid.uuid4().hex)
        try:
            for place in job.placements():
                order = Order(task, request, place, self._limits.join_s, debug=debug)
                own = listen.fileno() if listen is not None and place.rank == 0 else None
                self._add(Child(order, _environment(place, environment), own))
        finally:
            if listen is not None:
                listen.close()

    def _add(self, child: Child) -> None:
        self._children.append(child)
        self._selector.register(child.event_fd, selectors.EVENT_READ, child)
        self._selector.register(child.error_fd, selectors.EVENT_READ, child)

    def _watch(self) -> None:
        ended_at: float | None = None
        deadline = None if self._limits.whole_s is None else time.monotonic() + self._limits.whole_s
        while self._selector.get_map() or any(child.code is None for child in self._children):
            self._read(_TICK_S)
            now = time.monotonic()
            self._look(now)
            if deadline is not None and now >= deadline and self._trouble_at is None:
                self._over_limit(now)
            self._press(now)
            if all(child.code is not None for child in self._children):
                ended_at = now if ended_at is None else ended_at
                if now - ended_at > LINGER_S:
                    return

    def _read(self, timeout_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            child: Child = key.data
            if not (
                child.read_events(self._handler, time.monotonic()) if key.fd == child.event_fd else child.read_errors()
            ):
                self._selector.unregister(key.fd)

    def _look(self, now: float) -> None:
        for child in self._children:
            if child.look():
                child.read_events(self._handler, now)
                if child.code != 0 or child.done_at is None:
                    self._note(child, now)
            elif child.code is None and child.done_at is not None and now - child.done_at > EXIT_S and not child.cut:
                self._trouble(now, 0, causes.did_not_exit(child, EXIT_S))
                child.cut = True
                child.kill(signal.SIGTERM)

    def _note(self, child: Child, now: float) -> None:
        """A rank has ended badly. Weights: an end by a signal is a cause, an error of its own likely one, another rank's end a
        consequence, and what was ended from here says nothing."""
        assert child.code is not None  # noqa: S101 - it has ended
        if child.cut and (child.failure is None or child.failure.peer is not None):
            return
        if child.failure is None:
            self._trouble(now, 0 if child.code < 0 else 1, causes.died(child))
        elif child.failure.peer is None:
            self._trouble(now, 1, causes.told(child.failure))
        else:
            self._trouble(now, 2, causes.told(child.failure))

    def _trouble(self, now: float, weight: int, failure: Failure) -> None:
        self._troubles.append((weight, failure))
        if weight < 2:
            for child in self._children:
                if child.rank != failure.rank:
                    child.tell(Ended.of(failure.rank, failure.what, failure.stage))
        if self._trouble_at is None:
            self._trouble_at = now
            self._remember_files()

    def _over_limit(self, now: float) -> None:
        stages = {f'rank {child.rank} in stage "{child.stage}"': None for child in self._children if child.code is None}
        where = ", ".join(list(stages)[:8])
        limit_s = self._limits.whole_s or 0.0
        what = f"the ranks were not done within {limit_s:g} s"
        todo = "give more time, or run again with --debug, which shows where each rank stood"
        self._troubles.append((0, Failure(-1, "", what, f"at the end: {where}", todo, 4)))
        self._trouble_at = now - self._limits.grace_s
        self._remember_files()

    def _press(self, now: float) -> None:
        """Ends what still runs after a bad end, step by step."""
        if self._trouble_at is None:
            return
        past_s = now - self._trouble_at - self._limits.grace_s
        for child in self._children:
            if past_s >= self._limits.term_s:
                child.forced = child.forced or child.code is None
                child.kill()
            elif past_s >= 0 and not child.cut and child.code is None:
                child.cut = True
                child.kill(signal.SIGTERM)

    def _remember_files(self) -> None:
        self._files |= litter.held(child.process.pid for child in self._children if child.code is None)

    def _end_all(self) -> None:
        """SIGTERM, a moment, SIGKILL; then nothing of theirs is left."""
        living = [child for child in self._children if child.code is None]
        if living:
            self._remember_files()
            for child in living:
                child.cut = True
                child.kill(signal.SIGTERM)
            deadline = time.monotonic() + self._limits.term_s
            while living and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    self._drain(living)
                living = [child for child in living if not child.look() and child.code is None]
            for child in living:
                child.kill()
            self._reap(living)
        if self._trouble_at is not None or any(child.cut for child in self._children):
            self._files |= litter.orphans(self._began_s)
        litter.remove(self._files, self._began_s)
        for child in self._children:
            child.close()
        self._selector.close()

    def _drain(self, living: list[Child]) -> None:
        for child in living:
            child.read_errors()
        time.sleep(_TICK_S / 2)

    def _reap(self, killed: list[Child]) -> None:
        """A process that hangs in the kernel (a driver) cannot be waited for: the kernel ends it when it comes back."""
        deadline = time.monotonic() + 2.0
        while killed and time.monotonic() < deadline:
            killed = [child for child in killed if not child.look() and child.code is None]
            time.sleep(0.01)


def _environment(place: Placement, extra: Environment | None) -> dict[str, str]:
    """This process's environment with the rank's place under the names that torchrun uses, as libraries look for them."""
    env = dict(os.environ)
    env.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.world_size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_world_size),
    )
    # Each rank would start as many threads as there are cores.
    env.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // place.local_world_size)))
    if extra is not None:
        env.update(extra(place))
    return env
