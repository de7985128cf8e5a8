"""How a check that explains lines of a job's log is declared: which lines, what they mean, and which checks of the node would
confirm it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.check import RANK, Check, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.snapshot.job import LogEvent
from epctl.core.views import job as view
from epctl.core.views.job import Sort
from epctl.core.views.needs import JOB_LOG

CLAIMED: list[Sort] = []
"""Sorts of events that some check explains; what is left over is for JOB-OTHER-ERRORS."""
_NAME = re.compile(r"[\w.:%\-]{1,120}", re.ASCII)
"""Hosts and addresses that are repeated in an instruction; other texts of a log stay in the evidence."""


def doctor(ids: tuple[str, ...]) -> str:
    """The command that runs these checks alone."""
    return " ".join(("epctl doctor", *(f"--only {one}" for one in ids)))


def advice(fix: str, ids: tuple[str, ...], hosts: tuple[str, ...] = ()) -> str:
    """`fix`, and where to run which checks of the node."""
    named = [host for host in hosts if _NAME.fullmatch(host)]
    where = view.listed(named) or "the hosts concerned"
    return f"{fix} To confirm, run `{doctor(ids)}` on {where}." if ids else fix


def explains(
    id: str,  # noqa: A002
    *sorts: Sort,
    severity: Severity,
    title: str,
    why: str,
    fix: str,
    reference: str,
    nothing: str,
    confirm: tuple[str, ...] = (),
    commands: tuple[str, ...] = (),
) -> Check:
    """Declares a check that fails when the log has events of `sorts`. `nothing`: what such events are called where there are
    none. `confirm`: ids of checks of the node that would show the cause. Lines of level INFO are never worse than a warning:
    NCCL itself did not take them for an error."""
    CLAIMED.extend(sorts)
    lines = (*((doctor(confirm),) if confirm else ()), *commands)

    def look(context: Context) -> Iterator[Seen]:
        found = view.events(context.node.job, *sorts)
        words = advice(fix, confirm, view.ends(found))
        for event in found:
            yield bad(view.told(event), severity=at_most(severity, event), fix=words, commands=lines)
        if not found:
            yield from none_of(context, nothing)

    declared = check(
        id,
        area="job",
        severity=severity,
        title=title,
        why=why,
        fix=advice(fix, confirm),
        commands=lines,
        reference=reference,
        needs=(JOB_LOG,),
    )
    return declared(look)


def at_most(severity: Severity, event: LogEvent) -> Severity:
    """`severity`, or warn for what NCCL printed at level INFO."""
    return "warn" if event.level == "info" and RANK[severity] < RANK["warn"] else severity


def none_of(context: Context, nothing: str) -> Iterator[Seen]:
    """What to say when the log has no such line: good, if all of it was read."""
    gap = view.incomplete(context.node.job)
    yield good(f"no {nothing} in {context.node.job.log}") if gap is None else unread(nothing, gap)
