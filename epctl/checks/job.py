"""The log of a failed job as a whole: what came first, who was waited for, and what nobody explains."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks._job import CLAIMED, at_most, explains, none_of
from epctl.core.check import Seen, bad, check, good
from epctl.core.context import Context
from epctl.core.fact import known, value_or
from epctl.core.snapshot.job import JobArea, JobRank
from epctl.core.views import job as view
from epctl.core.views.job import Sort
from epctl.core.views.needs import JOB_LOG

_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_HANDED_UP = Sort(("unhandled_cuda_error", "unhandled_system_error", "internal_error", "watchdog_error"))
CLAIMED.append(_HANDED_UP)


@check(
    "JOB-FIRST-ERROR",
    area="job",
    severity="info",
    title="The first error of the job",
    why="When one rank fails, the others lose their connections and time out; what came first is nearest to the cause.",
    fix="Begin with the finding that explains the first error, on the host that printed it; later ones are often consequences. The "
    "order is that of the lines: outputs of several files that were joined are not in order of time.",
    reference=_GUIDE,
    needs=(JOB_LOG,),
)
def first_error(context: Context) -> Iterator[Seen]:
    job = context.node.job
    found = view.causes(job) or view.errors(job)
    if not found:
        yield from none_of(context, "error")
        return
    yield bad(f"first: {found[0].kind}: {view.told(found[0])}")
    later = dict.fromkeys(event.kind for event in view.errors(job) if event.order > found[0].order)
    later.pop(found[0].kind, None)
    if later:
        yield bad(f"after it: {', '.join(later)}")


@check(
    "JOB-OTHER-ERRORS",
    area="job",
    severity="warn",
    title="The log has warnings of a kind that epctl does not know",
    why="NCCL or a plugin of it warns only when something is wrong; no other check explains these lines.",
    fix="Search NCCL's issues for the words of the line; please report it to epctl with the log.",
    reference="https://github.com/NVIDIA/nccl/issues",
    needs=(JOB_LOG,),
)
def other_errors(context: Context) -> Iterator[Seen]:
    found = [event for event in view.errors(context.node.job) if not any(sort.holds(event) for sort in CLAIMED)]
    for event in found:
        yield bad(view.told(event))
    if not found:
        yield from none_of(context, "warning of an unknown kind")


@check(
    "JOB-CAUSE-NOT-LOGGED",
    area="job",
    severity="warn",
    title="The log says that NCCL failed, but not why",
    why="The program only repeats the result code; the cause stands in a line of NCCL that is not in this log: on another rank, in "
    "another file, or not printed at all.",
    fix="Collect the output of all ranks. Run again with NCCL_DEBUG=INFO, or at least WARN.",
    commands=("export NCCL_DEBUG=INFO",),
    reference=_ENV,
    needs=(JOB_LOG,),
)
def cause_not_logged(context: Context) -> Iterator[Seen]:
    job = context.node.job
    found, causes = view.events(job, _HANDED_UP), view.causes(job)
    for event in found:
        if causes:
            yield good(f"follows from {causes[0].kind}: {view.told(event)}")
        else:
            yield bad(view.told(event), severity=at_most("warn", event))
    if not found:
        yield from none_of(context, "result that the program handed up")


def _without_end(job: JobArea) -> tuple[list[JobRank], list[JobRank]]:
    """Ranks whose initialisation has no end: those that hang, and those whose last line was only lost. The ranks of a host pass
    a barrier right before it, so where one got through all did (NCCL's src/init.cc, end of initTransportsRank)."""
    unfinished = set(known(job.ranks_unfinished, "ranks that did not finish"))
    ranks = known(job.ranks, "ranks")
    through = {rank.host for rank in ranks if rank.finished}
    without = [rank for rank in ranks if rank.rank in unfinished]
    return [rank for rank in without if rank.host not in through], [rank for rank in without if rank.host in through]


@check(
    "JOB-INIT-UNFINISHED",
    area="job",
    severity="fail",
    title="Ranks never finished building their communicator",
    why="Building a communicator ends only when every rank takes part; one that fails, is late or cannot be reached keeps the others "
    "waiting without an error.",
    fix="Look first at ranks that never began and at errors of those that did. If there is neither, the ranks cannot reach each "
    "other: interface, firewall, rails. A log that was saved while the job was starting looks the same.",
    reference="https://github.com/NVIDIA/nccl/issues/286 https://github.com/NVIDIA/nccl/issues/2318",
    needs=(JOB_LOG,),
)
def init_unfinished(context: Context) -> Iterator[Seen]:
    job = context.node.job
    hanging, lost = _without_end(job)
    ranks = known(job.ranks, "ranks")
    size = value_or(job.num_ranks, len(ranks))
    for host in dict.fromkeys(rank.host for rank in hanging):
        mine = [rank for rank in hanging if rank.host == host]
        yield bad(f"{host}: ranks {view.ranges(rank.rank for rank in mine)} began and did not finish, of {size} ranks")
    if hanging and len(ranks) < size:
        missing = view.ranges(set(range(size)) - {rank.rank for rank in ranks}) if size <= MAX_RANKS else "others"
        yield bad(f"waited for: ranks {missing} never began in this log, or their output is not in it")
    if lost:
        words = "their hosts got through, so these lines are probably lost"
        yield bad(f"ranks {view.ranges(rank.rank for rank in lost)} have no end, but {words}", severity="info")
    if not hanging and not lost:
        yield good(f"all {len(ranks)} ranks in the log finished, of {size} ranks")


MAX_RANKS = 1 << 20
"""A larger communicator is a damaged number."""

watchdog = explains(
    "JOB-WATCHDOG-TIMEOUT",
    Sort(("watchdog_timeout",)),
    severity="fail",
    title="A collective did not end in time (PyTorch's watchdog)",
    why="Some rank did not come to the same call (it failed, is busy, or took another branch), or data stopped on the way.",
    fix="Compare the last collective of every rank (SeqNum, OpType): a rank that is behind or printed no time-out is the one to look "
    "at. PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE) keeps them. If all are at the same one, look for network errors.",
    confirm=("GPU-XID-FATAL", "ATOMIC-LOST-CQE-HANG", "PERF-GPU-THROTTLE", "JIT-COLD-TIMEOUT"),
    nothing="time-out of PyTorch's watchdog",
    reference="https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html https://github.com/NVIDIA/nccl/issues/1609",
)

peer_gone = explains(
    "JOB-PEER-GONE",
    Sort(("connection_closed",)),
    severity="warn",
    title="Peers closed their connections",
    why="A process ended while others still talked to it. This is a consequence: the cause is on the host that is named as the peer.",
    fix="Read the end of the peer's output first: an exception, a signal, an out-of-memory kill.",
    confirm=("GPU-XID-FATAL", "LIM-SHM-SMALL"),
    commands=("sudo dmesg --ctime | grep -iE 'oom|killed process|xid' | tail -20",),
    nothing="connection that a peer closed",
    reference="https://github.com/NVIDIA/nccl/issues/1232",
)
