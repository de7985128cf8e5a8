"""Views of the log of a job: its events, in words, and over how many nodes it ran."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from epctl.core import wording
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, Unreadable, known, value_or
from epctl.core.snapshot.job import JobArea, LogEvent

COMPLETION = "ib_completion_error"
CUDA_KINDS = ("cuda_failure", "nvls_failed", "cumem_failed", "unhandled_cuda_error", "out_of_memory")
"""Kinds whose code is one of CUDA (the reader's choice)."""
CONSEQUENCES = (
    "unhandled_cuda_error",
    "unhandled_system_error",
    "internal_error",
    "watchdog_error",
    "watchdog_timeout",
    "connection_closed",
)
"""Kinds that say that something failed, but not what: results handed up the stack, and peers that are gone."""
FALLBACK = "libibverbs_missing"
"""NCCL counts it as trouble and goes on over sockets; on one node nothing is lost by it."""
SHOWN = 4
"""Names that one line of evidence lists before it only counts."""
MAX_TEXT = 220


class Sort(Struct, frozen=True):
    """Which events a check explains: of these kinds, with one of `codes` (empty: any) and none of `apart_from`."""

    kinds: tuple[str, ...]
    codes: tuple[int, ...] = ()
    apart_from: tuple[int, ...] = ()

    def holds(self, event: LogEvent) -> bool:
        """Does this event belong here?"""
        if event.kind not in self.kinds or event.code in self.apart_from:
            return False
        return not self.codes or event.code in self.codes


def events(job: JobArea, *sorts: Sort) -> tuple[LogEvent, ...]:
    """Events of these sorts, by first appearance; all when no sort is given. Raises Unreadable."""
    found = known(job.events, "events of the log")
    return tuple(event for event in found if not sorts or any(sort.holds(event) for sort in sorts))


def errors(job: JobArea) -> tuple[LogEvent, ...]:
    """Events that can have stopped the job, by first appearance."""
    return tuple(event for event in events(job) if event.weight == "error" and event.kind != FALLBACK)


def causes(job: JobArea) -> tuple[LogEvent, ...]:
    """Errors that are not merely consequences of others; a CUDA error that has its number is one, whoever reports it."""
    return tuple(
        event
        for event in errors(job)
        if event.kind not in CONSEQUENCES or (event.kind in CUDA_KINDS and isinstance(event.code, int))
    )


def listed(names: Iterable[object]) -> str:
    """`a, b, c, d and 3 more`."""
    every = [str(name) for name in names]
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7`: numbers in ascending order, runs of them put together."""
    return listed(filter(None, wording.ranges(numbers).split(", ")))


def code_of(event: LogEvent) -> str:
    """`status 12 IBV_WC_RETRY_EXC_ERR, vendor error 129`; '' when the text has no number."""
    if isinstance(event.code, Absent):
        return ""
    word = "status" if event.kind == COMPLETION else "CUDA error" if event.kind in CUDA_KINDS else "errno"
    words = " ".join((word, str(event.code), value_or(event.code_name, ""))).strip()
    return words if isinstance(event.vendor_err, Absent) else f"{words}, vendor error {event.vendor_err}"


def told(event: LogEvent) -> str:
    """One event as evidence: host, device, peer, ranks, call, code, how often, and its first line."""
    where = listed(event.hosts) or "the program's own output"
    if not isinstance(event.hca, Absent):
        where += f", device {event.hca}"
    if not isinstance(event.peer, Absent):
        where += f", peer {event.peer}"
    if not isinstance(event.ranks, Absent):
        where += f", ranks {listed(event.ranks)}"
    what = [value_or(event.call, ""), code_of(event), "once" if event.count == 1 else f"{event.count} times"]
    return f"{where}: {', '.join(part for part in what if part)}: {event.text[:MAX_TEXT].strip()}"


def ends(found: Iterable[LogEvent]) -> tuple[str, ...]:
    """Hosts that printed these events, then the peers they name: the machines to look at."""
    every = tuple(found)
    hosts = [host for event in every for host in event.hosts]
    peers = [event.peer for event in every if not isinstance(event.peer, Absent)]
    return tuple(dict.fromkeys((*hosts, *peers)))


def over_network(job: JobArea) -> Fact[bool]:
    """Did ranks of the job talk over a network? By what the log says of nodes, hosts and channels; absent when it says too
    little (a log of one process out of many)."""
    if isinstance(job.num_nodes, int):
        return job.num_nodes > 1
    if len(value_or(job.hosts, ())) > 1 or any(way.startswith("NET/") for way in value_or(job.transports, ())):
        return True
    if isinstance(job.num_ranks, int) and len(value_or(job.ranks, ())) == job.num_ranks:
        return False
    return Absent("not_found", "the log does not say over how many nodes the job ran")


def finished(job: JobArea) -> bool:
    """At least one rank completed its initialisation."""
    return any(rank.finished for rank in value_or(job.ranks, ()))


def setting(job: JobArea, name: str) -> str | None:
    """The value of a variable that NCCL says it read; None when it names none. Raises Unreadable when the log is not one of
    NCCL_DEBUG=INFO, which alone names them."""
    if job.info is not True:
        raise Unreadable(name, Absent("not_found", "the log has no NCCL_DEBUG=INFO records, which name the settings"))
    return next((entry.value for entry in value_or(job.settings, ()) if entry.name == name), None)


def incomplete(job: JobArea) -> Absent | None:
    """Why an event that is not among the events may still have happened; None when the log was read from end to end."""
    return None if job.whole is True else Absent("not_read", "; ".join(job.notes) or "part of the log was left out")


def wants_network(context: Context) -> bool:
    """A profile in force cannot do without RDMA between nodes."""
    return any(context.wants(feature) for feature in ("rdma", "gin", "gin_gdaki", "gin_efa_gda", "ibgda"))


def wants_gin(context: Context) -> bool:
    """A profile in force asks for GPU-initiated networking."""
    return any(context.wants(feature) for feature in ("gin", "gin_gdaki", "gin_efa_gda"))
