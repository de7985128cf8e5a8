"""A check: one condition that really hits people, as a small declaration around a pure function.

The function looks at facts and yields what it saw: `bad(...)`, `good(...)`, `unread(...)`. Any `bad` makes the finding
`failed`; else any `unread` (or a fact opened with `known` that is absent) makes it `unknown`; else any `good` makes it
`passed`; a function that yields nothing had nothing to look at and is `skipped`. Nothing passes by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Struct

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable
from epctl.core.wording import by_reader, grouped

Severity = Literal["fail", "warn", "info"]
Status = Literal["failed", "passed", "skipped", "unknown"]
RANK: dict[str, int] = {"fail": 0, "warn": 1, "info": 2}
"""Worst first."""

AREAS: dict[str, str] = {
    "job": "Log of the failed job",
    "driver": "Driver and CUDA",
    "gpu": "GPU health, NVLink, fabric",
    "pcie": "PCIe and affinity",
    "rdma": "RDMA ports",
    "efa": "AWS EFA",
    "gdr": "GPUDirect RDMA",
    "atomics": "RDMA atomics",
    "nccl": "NCCL and GIN",
    "nvshmem": "NVSHMEM and IBGDA",
    "env": "Environment variables",
    "limits": "System limits",
    "container": "Containers",
    "python": "Python and PyTorch",
    "jit": "Compilers and JIT",
    "topology": "Topology, MNNVL, IMEX",
    "perf": "Performance",
}
"""Area → title, in the order of reports."""


class Seen(Struct, frozen=True):
    """One thing that a check saw. `text` is the evidence: the value read, and from where."""

    verdict: Literal["bad", "good", "unread"]
    text: str
    severity: Severity | None = None
    fix: str = ""
    commands: tuple[str, ...] = ()


def bad(text: str, *, severity: Severity | None = None, fix: str = "", commands: tuple[str, ...] = ()) -> Seen:
    """The condition is there. `severity`, `fix` and `commands` override those of the check."""
    return Seen("bad", text, severity, fix, commands)


def good(text: str) -> Seen:
    """Looked at, and in order."""
    return Seen("good", text)


def unread(what: str, absent: Absent) -> Seen:
    """`what` could not be read."""
    return Seen("unread", absent.of(what))


class Need(Struct, frozen=True):
    """A precondition with a name. `test` says '' when it holds, else why the check does not apply here; it may raise
    Unreadable (through `known`), which makes the check unknown."""

    name: str
    test: Callable[[Context], str]


class Check(Struct, frozen=True):
    """One check. `id` is that of the catalogue of conditions and never changes."""

    id: str
    area: str
    severity: Severity
    title: str
    """The condition, as a statement about the node when it is there."""
    why: str
    """What goes wrong because of it."""
    fix: str
    reference: str
    """Public source: issue, document or source file."""
    look: Callable[[Context], Iterable[Seen]]
    needs: tuple[Need, ...] = ()
    commands: tuple[str, ...] = ()
    """Shell lines of the fix, for `--fix-script`; never run by epctl."""


class Finding(Struct, frozen=True):
    """What a check says of a node."""

    id: str
    area: str
    severity: Severity
    status: Status
    title: str
    evidence: tuple[str, ...] = ()
    """With status skipped or unknown: the reason."""
    why: str = ""
    fix: str = ""
    commands: tuple[str, ...] = ()
    reference: str = ""


_registry: dict[str, Check] = {}


def check(
    id: str,  # noqa: A002
    *,
    area: str,
    severity: Severity,
    title: str,
    why: str,
    fix: str,
    reference: str,
    needs: tuple[Need, ...] = (),
    commands: tuple[str, ...] = (),
) -> Callable[[Callable[[Context], Iterable[Seen]]], Check]:
    """Declares the decorated function as a check and registers it. Raises ValueError on a duplicate id, an unknown area
    or an empty text, at import."""

    def register(look: Callable[[Context], Iterable[Seen]]) -> Check:
        made = Check(id, area, severity, title, why, fix, reference, look, needs, commands)
        if id in _registry:
            raise ValueError(f"check {id} is declared twice")
        if area not in AREAS:
            raise ValueError(f"check {id}: unknown area {area!r}")
        if not (title and why and fix and reference):
            raise ValueError(f"check {id}: title, why, fix and reference must not be empty")
        _registry[id] = made
        return made

    return register


def registered() -> dict[str, Check]:
    """All checks that were declared so far, by id. Import `epctl.checks` first."""
    return dict(_registry)


def evaluate(one: Check, context: Context) -> Finding:
    """The finding of one check; never raises. A bug in a check is a finding with status unknown that says so."""
    try:
        return _evaluate(one, context)
    except Unreadable as error:
        return _finding(one, "unknown", (by_reader(str(error), context.node),))
    except Exception as error:  # noqa: BLE001 - the doctor never raises
        return _finding(
            one, "unknown", (f"the check itself failed ({type(error).__name__}: {error}); please report this",)
        )


def _evaluate(one: Check, context: Context) -> Finding:
    for need in one.needs:
        reason = need.test(context)
        if reason:
            return _finding(one, "skipped", (reason,))
    seen = list(_collect(one.look(context)))

    def told(entries: Iterable[Seen]) -> tuple[str, ...]:
        return grouped(by_reader(entry.text, context.node) for entry in entries)

    wrong = [entry for entry in seen if entry.verdict == "bad"]
    if wrong:
        worst = min((entry.severity or one.severity for entry in wrong), key=RANK.__getitem__)
        fixes = list(dict.fromkeys(entry.fix or one.fix for entry in wrong))
        commands = tuple(dict.fromkeys(line for entry in wrong for line in (entry.commands or one.commands)))
        return _finding(one, "failed", told(wrong), severity=worst, fix=" ".join(fixes), commands=commands)
    missing = [entry for entry in seen if entry.verdict == "unread"]
    if missing:
        return _finding(one, "unknown", told(missing))
    if seen:
        return _finding(one, "passed", told(seen))
    return _finding(one, "skipped", ("nothing on this node that it could look at",))


def _collect(seen: Iterable[Seen]) -> Iterator[Seen]:
    """Entries up to the first fact that could not be opened; that one becomes an `unread`, what was seen before stays."""
    try:
        yield from seen
    except Unreadable as error:
        yield unread(error.what or "a fact", error.absent)


def _finding(
    one: Check,
    status: Status,
    evidence: tuple[str, ...],
    *,
    severity: Severity | None = None,
    fix: str = "",
    commands: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        id=one.id,
        area=one.area,
        severity=severity or one.severity,
        status=status,
        title=one.title,
        evidence=evidence,
        why=one.why,
        fix=fix or one.fix,
        commands=commands or one.commands,
        reference=one.reference,
    )
