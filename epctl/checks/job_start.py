"""The log of a failed job: what kept the ranks from meeting, and settings and versions that do not agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from epctl.checks._job import CLAIMED, advice, doctor, explains, none_of
from epctl.core.check import Seen, Severity, bad, check, good
from epctl.core.context import Context
from epctl.core.fact import known, value_or
from epctl.core.snapshot.job import JobArea
from epctl.core.views import job as view
from epctl.core.views import versions
from epctl.core.views.job import Sort
from epctl.core.views.needs import JOB_LOG
from epctl.core.views.settings import integer

GID_BY_ITSELF = "2.21"
"""NCCL chooses the GID index by itself from here on (release notes of NCCL 2.21)."""
_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_CONNECT = Sort(
    (
        "connection_refused",
        "connection_timed_out",
        "host_unreachable",
        "no_socket_interface",
        "socket_failed",
        "bootstrap_failed",
    )
)
_RETRIED = Sort(("connect_retried",))
CLAIMED.append(_CONNECT)
_MEANING = {
    "connection_refused": "the port was closed: the peer's process is gone, or the address belongs to another machine",
    "connection_timed_out": "nothing answered: a firewall, or an interface that the peers do not reach",
    "host_unreachable": "there is no route from this interface to the peer",
    "no_socket_interface": "no interface fits NCCL_SOCKET_IFNAME, or none has an address",
    "socket_failed": "a socket call failed",
    "bootstrap_failed": "the ranks could not exchange their addresses",
}
_CONNECT_FIX = (
    "Set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) on all nodes to the interface that holds the node's own address, and open the "
    "ports of net.ipv4.ip_local_port_range between them. Refused connections: look at the peer's output first."
)
_CONNECT_CONFIRM = ("ENV-SOCKET-IFNAME", "ENV-GLOO-IFNAME-SYNTAX", "LIM-PORTS-FIREWALL")


@check(
    "JOB-BOOTSTRAP",
    area="job",
    severity="fail",
    title="Ranks could not reach each other over TCP",
    why="Before any RDMA, ranks meet over one TCP interface that each host chooses by itself; docker0, link-local or storage "
    "interfaces lead nowhere.",
    fix=advice(_CONNECT_FIX, _CONNECT_CONFIRM),
    commands=(doctor(_CONNECT_CONFIRM),),
    reference="https://github.com/NVIDIA/nccl/issues/286 https://github.com/NVIDIA/nccl/issues/352 "
    "https://github.com/pytorch/pytorch/issues/68893",
    needs=(JOB_LOG,),
)
def bootstrap(context: Context) -> Iterator[Seen]:
    job = context.node.job
    found = view.events(job, _CONNECT)
    retried = () if view.finished(job) else view.events(job, _RETRIED)
    words = advice(_CONNECT_FIX, _CONNECT_CONFIRM, view.ends((*found, *retried)))
    for event in found:
        severity: Severity = "warn" if event.level == "info" else "fail"
        meaning = _MEANING.get(event.kind, "")
        yield bad(f"{view.told(event)} ({meaning}){_chosen(job, event.hosts)}", severity=severity, fix=words)
    for event in retried:
        yield bad(f"still trying: {view.told(event)}{_chosen(job, event.hosts)}", fix=words)
    if not found and not retried:
        yield from none_of(context, "failed TCP connection")


def _chosen(job: JobArea, hosts: tuple[str, ...]) -> str:
    """The interfaces that these hosts chose to meet over."""
    chosen = [f"{entry.name} uses {entry.value}" for entry in value_or(job.bootstrap, ()) if entry.name in hosts]
    return f"; {view.listed(chosen)}" if chosen else ""


_MISMATCH = Sort(("version_mismatch",))
CLAIMED.append(_MISMATCH)
_MISMATCH_CONFIRM = ("NCCL-DUPLICATE-LOADED", "NCCL-DOWNGRADED-BY-PIP")


@check(
    "JOB-NCCL-VERSIONS",
    area="job",
    severity="fail",
    title="The job used several versions of NCCL",
    why="NCCL refuses to build a communicator of different versions, and the same program with two of them fails on one node only.",
    fix=advice("Use one image or one environment on all nodes.", _MISMATCH_CONFIRM),
    commands=(doctor(_MISMATCH_CONFIRM),),
    reference="https://github.com/deepseek-ai/DeepEP/issues/710",
    needs=(JOB_LOG,),
)
def nccl_versions(context: Context) -> Iterator[Seen]:
    job = context.node.job
    refused = view.events(job, _MISMATCH)
    for event in refused:
        yield bad(view.told(event))
    found = known(job.nccl_versions, "NCCL version")
    plain = dict.fromkeys(version.split("+", 1)[0] for version in found)
    if len(plain) > 1:
        yield bad(
            f"the log names NCCL {', '.join(found)}: several libraries, or several jobs in one file", severity="warn"
        )
    elif not refused:
        yield good(f"NCCL {', '.join(found)}")


PER_HOST = frozenset(
    {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_DEBUG_FILE", "NCCL_HOSTID"}
)
"""Variables that may rightly differ between hosts."""


@check(
    "JOB-ENV-CONFLICT",
    area="job",
    severity="warn",
    title="Processes of the job ran with different NCCL settings",
    why="NCCL expects most settings to be equal on all ranks; different ones end in hangs, in GIN that is not offered, or in wrong rails.",
    fix="Set NCCL's variables in one place for all ranks; compare /etc/nccl.conf and the images of the nodes.",
    reference=_ENV,
    needs=(JOB_LOG,),
)
def env_conflict(context: Context) -> Iterator[Seen]:
    job = context.node.job
    view.setting(job, "NCCL settings")
    found = known(job.env_conflicts, "settings of the processes")
    for entry in found:
        severity: Severity = "info" if entry.name in PER_HOST else "warn"
        yield bad(f"{entry.name}: {view.listed(entry.values)}", severity=severity)
    if not found:
        yield good(f"{len(value_or(job.settings, ()))} settings in the log, none with two values")


def _zero(text: str) -> bool:
    return integer(text) == 0


def _not_zero(text: str) -> bool:
    return integer(text) != 0


class Trap(Struct, frozen=True):
    """A setting that is known to cost more than its author meant."""

    holds: Callable[[str], bool]
    severity: Severity
    text: str
    confirm: tuple[str, ...] = ()
    """Checks of the node that look for it."""


TRAPS: dict[str, Trap] = {
    "NCCL_IB_DISABLE": Trap(_not_zero, "warn", "no RDMA at all, RoCE neither", ("ENV-IB-DISABLED",)),
    "NCCL_P2P_DISABLE": Trap(_not_zero, "warn", "no NVLink between GPUs, no symmetric memory", ("SYMMEM-P2P-WIN-OFF",)),
    "NCCL_CUMEM_ENABLE": Trap(_zero, "warn", "no symmetric memory, so no device API and no GIN", ("SYMMEM-CUMEM-OFF",)),
    "NCCL_WIN_ENABLE": Trap(_zero, "warn", "no symmetric windows", ("SYMMEM-P2P-WIN-OFF",)),
    "NCCL_GIN_ENABLE": Trap(_zero, "warn", "no GPU-initiated networking", ("ENV-GIN-DISABLED",)),
    "NCCL_GIN_TYPE": Trap(_zero, "warn", "no GPU-initiated networking", ("ENV-GIN-TYPE-MISMATCH",)),
    "NCCL_IB_PCI_RELAXED_ORDERING": Trap(
        _zero, "warn", "slow RDMA on AMD EPYC and several Intel hosts", ("PCI-RELAXED-ORDER-OFF",)
    ),
    "NCCL_SHM_DISABLE": Trap(_not_zero, "info", "GPUs without peer access talk over the network inside a node"),
    "NCCL_NVLS_ENABLE": Trap(_zero, "info", "no NVLink SHARP: slower all-reduces"),
    "NCCL_DMABUF_ENABLE": Trap(_zero, "info", "GPUDirect through nvidia-peermem alone"),
}
"""Meanings of the settings: NCCL user guide, environment variables."""
_TRAPS_FIX = "Remove them from the job, the image and nccl.conf unless you know that this fabric needs them."
_GID_CONFIRM = ("ROCE-GID-FORCED-WRONG",)


@check(
    "JOB-SETTINGS",
    area="job",
    severity="warn",
    title="The job ran with settings that are known traps",
    why="Variables of an old recipe or a debugging session switch off what EP needs, mostly without an error.",
    fix=_TRAPS_FIX,
    reference=_ENV,
    needs=(JOB_LOG,),
)
def settings(context: Context) -> Iterator[Seen]:
    job = context.node.job
    caught = list(_trapped(job))
    confirm = tuple(dict.fromkeys(one for _, trap in caught for one in trap.confirm))
    words, lines = advice(_TRAPS_FIX, confirm, value_or(job.hosts, ())), (doctor(confirm),) if confirm else ()
    for name, trap in caught:
        yield bad(f"{name}: {trap.text}", severity=trap.severity, fix=words, commands=lines)
    if not caught:
        yield good(f"{len(value_or(job.settings, ()))} settings in the log, none of them a known trap")


def _trapped(job: JobArea) -> Iterator[tuple[str, Trap]]:
    """`NAME=value` and the trap."""
    for name, trap in TRAPS.items():
        value = view.setting(job, name)
        if value is not None and trap.holds(value):
            yield f"{name}={value}", trap
    index, found = view.setting(job, "NCCL_IB_GID_INDEX"), value_or(job.nccl_versions, ("",))[0]
    if index is not None and versions.below(found, GID_BY_ITSELF) is False:
        text = f"NCCL {found} finds the right index by itself"
        yield f"NCCL_IB_GID_INDEX={index}", Trap(_zero, "info", text, _GID_CONFIRM)


duplicate_gpu = explains(
    "JOB-DUPLICATE-GPU",
    Sort(("duplicate_gpu",)),
    severity="fail",
    title="Two ranks used the same GPU",
    why="NCCL takes one rank a GPU; the launcher gave two ranks the same one.",
    fix="Call torch.cuda.set_device(local_rank) before anything else on CUDA; check CUDA_VISIBLE_DEVICES and the ranks of each node.",
    confirm=("CTR-CVD-PER-RANK", "GPU-COUNT-SHORT"),
    nothing="pair of ranks on one GPU",
    reference="https://github.com/NVIDIA/nccl/issues/103 https://github.com/deepseek-ai/DeepEP/issues/582",
)

shared_memory = explains(
    "JOB-SHM-FAILED",
    Sort(("shared_memory_failed",)),
    severity="fail",
    title="Shared memory (/dev/shm) could not be used",
    why="Ranks of a node share buffers in /dev/shm; containers have 64 MiB of it by default, and crashed jobs leave files there.",
    fix="Start the container with --shm-size=16g (Kubernetes: a Memory emptyDir on /dev/shm); delete the files that LIM-SHM-STALE names "
    "when no process of the host holds them.",
    confirm=("LIM-SHM-SMALL", "LIM-SHM-STALE"),
    commands=("df -h /dev/shm", "ls -l /dev/shm"),
    nothing="failure in /dev/shm",
    reference="https://github.com/NVIDIA/nccl/issues/290 https://github.com/NVIDIA/nccl/issues/525",
)

open_files = explains(
    "JOB-OPEN-FILES",
    Sort(("too_many_open_files",)),
    severity="fail",
    title="A process ran out of file descriptors",
    why="NCCL opens sockets, shared memory and RDMA queues for each peer and GIN context; large jobs need tens of thousands.",
    fix="Raise nofile to 131072 or more where the job is started (limits.d, the scheduler's or container daemon's unit).",
    confirm=("LIM-NOFILE", "LIM-FILEMAX"),
    nothing="process without file descriptors",
    reference="https://github.com/NVIDIA/nccl/issues/550",
)

usage = explains(
    "JOB-USAGE",
    Sort(("invalid_setting", "invalid_usage", "invalid_argument", "message_truncated")),
    severity="fail",
    title="NCCL was called or set up in a way it does not allow",
    why="Ranks disagree on a call (sizes, order, root), a pointer is not of the right device, or a variable has a value that NCCL does "
    "not know.",
    fix="Correct the variable that the line names; else compare the calls of all ranks. NCCL_DEBUG=INFO with NCCL_CHECK_POINTERS=1 tells "
    "which argument is wrong.",
    nothing="wrong call or setting",
    reference=f"{_GUIDE} {_ENV}",
)
