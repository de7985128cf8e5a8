"""Runs a task on all ranks of a job, whoever starts them: this process, for one node, or the launcher that started it."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

from epctl.core.errors import EpctlError
from epctl.core.placement import Job, Placement
from epctl.core.render.safe import plain
from epctl.ranks import spawn, work
from epctl.ranks.events import Event, Failure, Handler
from epctl.ranks.meeting import Meeting
from epctl.ranks.relay import Relay
from epctl.ranks.spawn import Environment, Limits
from epctl.ranks.store import need_torch

__all__ = ["Event", "Limits", "renders", "run"]

_runs = itertools.count()


def renders(job: Job) -> bool:
    """Whether this process gets the events, and prints the result: the parent of a node's ranks (of the first node), or rank 0."""
    return job.node_idx == 0 if job.placement is None else job.placement.rank == 0


def run(
    request: dict[str, Any],
    job: Job,
    handler: Handler,
    *,
    environment: Environment | None = None,
    limits: Limits | None = None,
    debug: bool = False,
) -> int:
    """Runs `request["task"]` (`module:function`) on every rank with the request, which is JSON. `handler` is called for each event, in
    the process that renders. `environment` gives variables for each rank. Gives the exit code of this process: 0, or that of an error
    that another process of the job reports. Raises EpctlError that names rank and stage."""
    limits = limits or Limits()
    task = str(request.get("task", ""))
    need_torch()
    if job.placement is not None:
        return _here(task, request, job.placement, handler, environment, limits, debug=debug)
    if job.num_local < 1:
        raise EpctlError(
            "nobody has said how many ranks this node starts",
            f"the launcher ({job.origin}) leaves it to epctl",
            "give --ranks N",
        )
    listening = handler if job.node_idx == 0 else _elsewhere
    spawn.supervise(task, request, job, listening, environment=environment, limits=limits, debug=debug)
    return 0


def _elsewhere(_: Event) -> None:
    """Events of ranks that run on other nodes than the one that renders."""


def _here(
    task: str,
    request: dict[str, Any],
    place: Placement,
    handler: Handler,
    environment: Environment | None,
    limits: Limits,
    *,
    debug: bool,
) -> int:
    if environment is not None:
        os.environ.update(environment(place))
    relay = Relay(place.rank, handler)
    met: list[Meeting] = []

    def meet(meeting: Meeting) -> None:
        met.append(meeting)
        relay.met(meeting)

    order = work.Order(task, request, place, limits.join_s, limits.whole_s, debug, next(_runs))
    failure = work.carry_out(order, relay.emit, met=meet, last=relay.drain)
    if failure is None:
        return 0
    return _report(failure, place)


def _report(failure: Failure, place: Placement) -> int:
    """Rank 0 and the rank whose own error it is say it in full; the others in one line, since all say the same."""
    others = failure.peer is not None or failure.common
    if place.rank == 0 or not others:
        named = others or f"rank {place.rank} " in failure.what
        what = failure.what if named else f"rank {place.rank}: {failure.what}"
        raise EpctlError(what, failure.why, failure.todo, exit_code=failure.exit_code)
    sys.stderr.write(f"[rank {place.rank}] ends: {plain(failure.what)}\n")
    return failure.exit_code
