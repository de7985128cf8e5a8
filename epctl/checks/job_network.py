"""The log of a failed job: which network it took, and whether it used GPUDirect over it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from epctl.checks._job import CLAIMED, advice, doctor, explains
from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot.job import JobArea
from epctl.core.views import job as view
from epctl.core.views import versions
from epctl.core.views.job import Sort
from epctl.core.views.needs import JOB_LOG
from epctl.core.views.settings import integer

SOCKET = "Socket"
GDRDMA = "GDRDMA"
RO_SINCE = "2.12"
"""First NCCL that marks relaxed ordering ([RO]) where it lists adapters (release notes of NCCL_IB_PCI_RELAXED_ORDERING)."""


def _network(context: Context) -> str:
    return known(context.node.job.network, "network that NCCL chose ('Using network')")


def _rdma(context: Context) -> str:
    missing = JOB_LOG.test(context)
    return missing or ("the job ran over sockets" if _network(context).startswith(SOCKET) else "")


def _verbs(context: Context) -> str:
    missing = _rdma(context)
    libfabric = not missing and any(word in _network(context).lower() for word in ("libfabric", "ofi"))
    return missing or ("libfabric does not tell it" if libfabric else "")


OVER_RDMA = Need("job_rdma", _rdma)
OVER_VERBS = Need("job_verbs", _verbs)


class Reason(Struct, frozen=True):
    """Why NCCL went to sockets: what the log says, what to do, and the checks of the node that show it."""

    text: str
    fix: str
    confirm: tuple[str, ...]


_BY_EVENT: dict[str, Reason] = {
    view.FALLBACK: Reason(
        "libibverbs could not be opened",
        "Install libibverbs1 and ibverbs-providers (rdma-core) in the image.",
        ("RDMA-PROVIDER-MISSING",),
    ),
    "ib_no_device": Reason(
        "NCCL found no RDMA device",
        "Pass /dev/infiniband (the RDMA or EFA resource of the device plugin) to the container and bring the ports up.",
        ("CTR-NO-INFINIBAND", "NIC-PORT-NOT-ACTIVE", "RDMA-PROVIDER-MISSING", "EFA-POD-RESOURCE"),
    ),
    "net_plugin_not_found": Reason(
        "no network plugin was found",
        "On EFA and on clouds with a plugin of their own, put it on the loader path; elsewhere NCCL needs none.",
        ("EFA-PLUGIN-NOT-FOUND", "NCCL-PLUGIN-UNLOADABLE"),
    ),
    "net_plugin_failed": Reason(
        "a network plugin did not start",
        "Make the plugin's libraries and devices available in the container.",
        ("NCCL-PLUGIN-UNLOADABLE", "EFA-GDR-OFF"),
    ),
}
_SOCKETS_FIX = "Set NCCL_NET to the network that must be used, so that a job stops instead of crawling."
_SOCKETS_CONFIRM = ("ENV-IB-DISABLED", "RDMA-PROVIDER-MISSING", "CTR-NO-INFINIBAND", "EFA-PLUGIN-NOT-FOUND")
CLAIMED.append(Sort((view.FALLBACK,)))


def _reasons(job: JobArea) -> tuple[Reason, ...]:
    """Settings when they rule RDMA out; else what NCCL looked for in vain."""
    return tuple(_by_setting(job)) or tuple(_by_event(job))


def _by_setting(job: JobArea) -> Iterator[Reason]:
    disabled, net = view.setting(job, "NCCL_IB_DISABLE"), view.setting(job, "NCCL_NET")
    if disabled is not None and integer(disabled) != 0:
        yield Reason(f"NCCL_IB_DISABLE={disabled}", "Unset NCCL_IB_DISABLE, also in nccl.conf.", ("ENV-IB-DISABLED",))
    if net is not None and net.strip().casefold() == SOCKET.casefold():
        yield Reason(f"NCCL_NET={net}", "Unset NCCL_NET or name the RDMA network.", ("ENV-IB-DISABLED",))


def _by_event(job: JobArea) -> Iterator[Reason]:
    for kind, found in _BY_EVENT.items():
        for event in view.events(job, Sort((kind,))):
            yield Reason(f"{found.text} ({view.told(event)})", found.fix, found.confirm)


@check(
    "JOB-SOCKETS",
    area="job",
    severity="fail",
    title="The job ran over TCP sockets between nodes",
    why="Without RDMA there is no GPUDirect and no GIN: EP over several nodes cannot run, and plain NCCL reaches a fraction of the "
    "adapters. NCCL falls back without an error.",
    fix=advice(_SOCKETS_FIX, _SOCKETS_CONFIRM),
    commands=(doctor(_SOCKETS_CONFIRM),),
    reference="https://github.com/NVIDIA/nccl/issues/959 https://github.com/NVIDIA/nccl/issues/1597",
    needs=(JOB_LOG,),
)
def sockets(context: Context) -> Iterator[Seen]:
    job = context.node.job
    networks = known(job.networks, "network that NCCL chose ('Using network')")
    if not any(name.startswith(SOCKET) for name in networks):
        yield good(f"network {', '.join(networks)}")
        return
    if not known(view.over_network(job), "number of nodes"):
        yield good("network Socket, but all ranks are on one node")
        return
    reasons = _reasons(job)
    confirm = tuple(dict.fromkeys(one for reason in reasons for one in reason.confirm)) or _SOCKETS_CONFIRM
    fix = " ".join(dict.fromkeys(reason.fix for reason in reasons)) + " " + _SOCKETS_FIX
    hosts = value_or(job.hosts, ())
    words, lines = advice(fix.strip(), confirm, hosts), (doctor(confirm),)
    others = [name for name in networks if not name.startswith(SOCKET)]
    mixed = f" on some ranks, {', '.join(others)} on others" if others else ""
    severity: Severity = "fail" if view.wants_network(context) else "warn"
    yield bad(f"{view.listed(hosts)}: network {SOCKET}{mixed}", severity=severity, fix=words, commands=lines)
    for reason in reasons:
        yield bad(f"reason in the log: {reason.text}", severity="warn", fix=words, commands=lines)


_GDR_CONFIRM = ("GDR-NONE", "PEERMEM-LOADED-GDR-OFF", "GDR-LEVEL-TIGHT", "GDR-PROPRIETARY-MODULE", "EFA-GDR-OFF")
_GDR_FIX = (
    "Load nvidia-peermem when no job runs, or use the open kernel modules with DMA-BUF; in containers /sys must show the module. If "
    "only the distance is to blame (virtual topologies, Grace), try NCCL_NET_GDR_LEVEL=SYS."
)


@check(
    "JOB-GDR-OFF",
    area="job",
    severity="warn",
    title="RDMA without GPUDirect: data took the way through host memory",
    why="Every message is copied through the CPU's memory, which costs half of the bandwidth or more, and GIN is not offered at all.",
    fix=advice(_GDR_FIX, _GDR_CONFIRM),
    commands=(doctor(_GDR_CONFIRM),),
    reference="https://github.com/NVIDIA/nccl/issues/1412 https://github.com/NVIDIA/nccl/issues/1939",
    needs=(OVER_RDMA,),
)
def gdr_off(context: Context) -> Iterator[Seen]:
    job = context.node.job
    hosts = value_or(job.hosts, ())
    ways = [way for way in value_or(job.transports, ()) if way.startswith("NET/") and not way.startswith("NET/Socket")]
    direct = [way for way in ways if GDRDMA in way]
    told = [view.told(event) for event in view.events(job, Sort(("gdr_disabled",)))]
    if direct:
        yield good(f"channels go {', '.join(direct)}")
    elif ways or job.gdr is False:
        said = f"channels go {', '.join(ways)}, none {GDRDMA}" if ways else "NCCL says GDR 0"
        severity: Severity = "fail" if view.wants_gin(context) and view.over_network(job) is True else "warn"
        for line in told or [f"{view.listed(hosts)}: {said}"]:
            yield bad(line, severity=severity, fix=advice(_GDR_FIX, _GDR_CONFIRM, hosts))
    elif job.gdr is True:
        yield good("NCCL says that GPUDirect RDMA is enabled")
    elif view.over_network(job) is False:
        yield good("all ranks are on one node")
    else:
        yield unread("use of GPUDirect", Absent("not_found", "the log shows no channel over the network"))


@check(
    "JOB-RELAXED-ORDERING-OFF",
    area="job",
    severity="warn",
    title="The job used its adapters without PCIe relaxed ordering",
    why="On AMD EPYC and several Intel hosts RDMA reaches half of line rate or less without it.",
    fix=advice(
        "Unset NCCL_IB_PCI_RELAXED_ORDERING and upgrade rdma-core in the image (libibverbs with IBVERBS_1.8).",
        ("PCI-RELAXED-ORDER-OFF", "OFED-USERSPACE-OLD"),
    ),
    commands=(doctor(("PCI-RELAXED-ORDER-OFF", "OFED-USERSPACE-OLD")),),
    reference="https://github.com/openucx/ucx/issues/8062 https://github.com/openucx/ucx/issues/10955",
    needs=(OVER_VERBS,),
)
def relaxed_ordering_off(context: Context) -> Iterator[Seen]:
    job = context.node.job
    listed = known(job.relaxed_ordering, "list of adapters ('NET/IB : Using')")
    found = known(job.nccl_versions, "NCCL version")[0]
    if listed:
        yield good("the list of adapters has the mark [RO]")
    elif versions.below(found, RO_SINCE):
        yield good(f"NCCL {found} does not tell it apart")
    else:
        yield bad(f"NCCL {found} lists {view.listed(value_or(job.net_devices, ()))} without the mark [RO]")


incompatible = explains(
    "JOB-NIC-INCOMPATIBLE",
    Sort(("ib_device_incompatible",)),
    severity="fail",
    title="Two ranks chose adapters that do not fit together",
    why="One end took an InfiniBand port and the other an Ethernet one (or other merged ports); they cannot be connected.",
    fix="List the same kind of adapters on all nodes in NCCL_IB_HCA (exact names with =), and leave management cards out.",
    confirm=("NIC-LINKLAYER-MIX", "NIC-STORAGE-SELECTED", "NIC-PF-AND-VF"),
    nothing="pair of incompatible devices",
    reference="https://github.com/deepseek-ai/DeepEP/issues/223 https://github.com/NVIDIA/nccl/issues/1422",
)

libfabric = explains(
    "JOB-LIBFABRIC-FAILED",
    Sort(("libfabric_failed",)),
    severity="fail",
    title="The libfabric plugin (aws-ofi-nccl) failed",
    why="On EFA everything between nodes goes through this plugin.",
    fix="Bring plugin, libfabric and (on a drained node) the EFA driver to one release of the EFA installer, and give the pod all EFA "
    "devices and memlock.",
    confirm=("EFA-POD-RESOURCE", "EFA-GDR-OFF", "EFA-GDRDRV-OLD", "EFA-MIXED-UVERBS", "LIM-MEMLOCK"),
    nothing="error of NET/OFI",
    reference="https://github.com/aws/aws-ofi-nccl/issues/803 https://github.com/aws/aws-ofi-nccl/issues/1350",
)
