"""The log of a failed job: GIN, symmetric memory and NVLink between nodes, where NCCL offered none."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks._job import advice, at_most, doctor, explains
from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, value_or
from epctl.core.snapshot.job import JobArea, LogEvent
from epctl.core.views import gin, versions
from epctl.core.views import job as view
from epctl.core.views.job import Sort
from epctl.core.views.needs import JOB_LOG

_NO_GIN = Sort(("gin_unavailable",))
_NO_GIN_CONFIRM = ("GIN-TYPE-NONE", "ENV-GIN-DISABLED", "ENV-GIN-TYPE-MISMATCH", "CUDA-VMM-GDR-ATTR", "GDR-NONE")
_NO_GIN_FIX = (
    "Open the gates that NCCL asks for: GPUDirect for cuMem memory on every rank, a GIN type that the adapters have, no "
    "NCCL_GIN_ENABLE=0. Within one NVLink domain EP can do without (EP_DISABLE_GIN=1)."
)


def _has_gin(context: Context) -> str:
    missing = JOB_LOG.test(context)
    found = "" if missing else value_or(context.node.job.nccl_versions, ("",))[0]
    return missing or (f"NCCL {found} has no GIN" if versions.below(found, gin.FIRST_NCCL) else "")


HAS_GIN = Need("job_gin", _has_gin)


@check(
    "JOB-GIN-UNAVAILABLE",
    area="job",
    severity="fail",
    title="NCCL offered the job no GPU-initiated networking",
    why="DeepEP 2 and newer talk between nodes through GIN alone; all ranks must agree on a type.",
    fix=advice(_NO_GIN_FIX, _NO_GIN_CONFIRM),
    commands=(doctor(_NO_GIN_CONFIRM),),
    reference="https://github.com/deepseek-ai/DeepEP/issues/628 https://github.com/deepseek-ai/DeepEP/issues/680",
    needs=(HAS_GIN,),
)
def gin_unavailable(context: Context) -> Iterator[Seen]:
    job = context.node.job
    passed_over = view.events(job, _NO_GIN)
    words = advice(_NO_GIN_FIX, _NO_GIN_CONFIRM, view.ends(passed_over) or value_or(job.hosts, ()))
    needed: Severity = "fail" if view.wants_gin(context) and view.over_network(job) is True else "info"
    if job.gin_type == 0:
        yield bad("NCCL says GIN type 0 (none)", severity=needed, fix=words)
    elif isinstance(job.gin_type, int) or isinstance(job.gin_plugin, str):
        yield good(f"NCCL assigned {value_or(job.gin_plugin, 'a plugin')}, GIN type {job.gin_type}")
        return
    for event in passed_over:
        yield bad(view.told(event), severity=needed, fix=words)
    if not passed_over:
        yield from _without_notes(job, "line about a GIN plugin that was passed over")


def _without_notes(job: JobArea, nothing: str) -> Iterator[Seen]:
    """Good only where the log has the level at which NCCL prints notes, and was read from end to end."""
    gap = view.incomplete(job)
    if job.info is not True:
        gap = Absent("not_found", "the log has no NCCL_DEBUG=INFO records")
    yield good(f"no {nothing} in {job.log}") if gap is None else unread(nothing, gap)


gin_failed = explains(
    "JOB-GIN-FAILED",
    Sort(("gin_failed",)),
    severity="fail",
    title="GPU-initiated networking could not be set up",
    why="NCCL chose a GIN type and its queues could not be made, or a rank cannot do what the others ask for.",
    fix="Go by the errors before it. GDAKI needs DevX rights in the container and enough queues on the adapter; EFA has weak signals "
    "only; ranks must not differ in GIN type.",
    confirm=(
        "GIN-GDAKI-DOCA21",
        "GIN-QP-EXHAUST",
        "EFA-GDA-UNSUPPORTED-USE",
        "ENV-GIN-TYPE-MISMATCH",
        "ROCE-MTU-SMALL",
    ),
    nothing="failed GIN call",
    reference="https://github.com/NVIDIA/nccl/issues/1943 https://github.com/NVIDIA/nccl/issues/2137",
)

_NO_SYMMETRIC = Sort(("symmetric_memory_unsupported", "cumem_disabled"))


@check(
    "JOB-SYMMETRIC-MEMORY-OFF",
    area="job",
    severity="fail",
    title="The communicator had no symmetric memory",
    why="NCCL's device API, and so EP, works on symmetric windows: they need cuMem allocations and peer access in the node.",
    fix=advice(
        "Unset NCCL_CUMEM_ENABLE=0, NCCL_P2P_DISABLE=1 and NCCL_WIN_ENABLE=0; the line of the log tells which condition is 0.",
        ("SYMMEM-CUMEM-OFF", "SYMMEM-P2P-WIN-OFF", "CUDA-VMM-GDR-ATTR"),
    ),
    commands=(doctor(("SYMMEM-CUMEM-OFF", "SYMMEM-P2P-WIN-OFF", "CUDA-VMM-GDR-ATTR")),),
    reference="https://github.com/vllm-project/vllm/issues/24532",
    needs=(JOB_LOG,),
)
def symmetric_memory_off(context: Context) -> Iterator[Seen]:
    job = context.node.job
    found = [event for event in view.events(job, _NO_SYMMETRIC) if not _of_host_memory(event)]
    for event in found:
        yield bad(view.told(event), severity="fail" if context.wants("symmetric_memory") else "info")
    if not found:
        yield from _without_notes(job, "line that says that symmetric memory or cuMem is off")


def _of_host_memory(event: LogEvent) -> bool:
    """cuMem for host buffers (NCCL_CUMEM_HOST_ENABLE) may be off without harm: NCCL then shares them through /dev/shm."""
    return event.kind == "cumem_disabled" and "host" in event.text.lower()


@check(
    "JOB-MNNVL-OFF",
    area="job",
    severity="warn",
    title="NVLink between nodes was there and not used",
    why="Ranks of one rack talk over the network instead of NVLink.",
    fix=advice(
        "When no job runs bring the IMEX domain up on all nodes of the rack, and pass its channel.",
        ("IMEX-DAEMON-DOWN", "FABRIC-UNHEALTHY"),
    ),
    commands=(doctor(("IMEX-DAEMON-DOWN", "FABRIC-UNHEALTHY", "IMEX-CHANNEL-MISSING")),),
    reference="https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/626",
    needs=(JOB_LOG,),
)
def mnnvl_off(context: Context) -> Iterator[Seen]:
    job = context.node.job
    found = view.events(job, Sort(("mnnvl_unavailable",)))
    for event in found:
        yield bad(view.told(event), severity=at_most("warn", event))
    if not found and job.mnnvl is True:
        yield good("NCCL says MNNVL 1")
    elif not found:
        yield from _without_notes(job, "line that says that MNNVL cannot be used")
