"""Checks of what EFA limits, and of settings that outlived their use on it."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks.limits import HUGE_PAGES_PER_CPU
from epctl.core.check import Need, Seen, bad, check, good
from epctl.core.context import Context
from epctl.core.fact import known
from epctl.core.views import gin, nics, plugins, versions
from epctl.core.views.gin import SEVERAL_NODES
from epctl.core.views.needs import EFA
from epctl.core.views.settings import setting, told
from epctl.core.wording import counted

RDMA_READ_PLUGIN, OLD_PLUGIN = "1.7.0", "1.6.0"
"""aws-ofi-nccl releases: from 1.7 on no FI_* setting is needed, before 1.6 FI_PROVIDER and NCCL_PROTO were (efa-env-var.md)."""
SMALL_PAGE_BYTES = 95 * 1000**3
"""Host memory that was registered with 4 KiB pages before EFA refused (ofiwg/libfabric#9739)."""
DIRECT_QUEUES = 17
"""Queues a peer of DeepEP 2 in direct mode (profile deepep-2), the smallest layout of those in use."""


def _queue_per_peer(context: Context) -> str:
    there = {"uccl", "deep-ep"} & set(context.distributions)
    return "" if there else "no library that makes queues for each peer (UCCL-EP, DeepEP) is installed"


@check(
    "EFA-QP-LIMIT",
    area="efa",
    severity="warn",
    title="The planned job needs more queue pairs than an EFA device has",
    why="Libraries that make queues for each peer run out of them; UCCL-EP crashed at 64 ranks on P5en.",
    fix="Use fewer queues per peer, fewer ranks, or spread them over more EFA devices.",
    reference="https://github.com/uccl-project/uccl/issues/922",
    needs=(EFA, SEVERAL_NODES, Need("queue_per_peer", _queue_per_peer)),
)
def efa_qp_limit(context: Context) -> Iterator[Seen]:
    devices = [device for device in nics.devices(context.node) if gin.driver(device) == "efa"]
    limits = {device.name: known(device.max_qp, f"{device.name} max_qp") for device in devices}
    name = min(limits, key=lambda device: limits[device])
    num_gpus = len(known(context.node.gpu.gpus, "GPUs (NVML)"))
    num_ranks = num_gpus * context.num_nodes
    per_device = -(-num_gpus // len(devices))
    queues = num_ranks * DIRECT_QUEUES * per_device
    text = (
        f"{num_ranks} ranks × {DIRECT_QUEUES} queues a peer (DeepEP's direct mode) × {counted(per_device, 'GPU')} a device = {queues}; "
        f"{name} max_qp {limits[name]}"
    )
    yield bad(text) if queues > limits[name] else good(text)


@check(
    "EFA-MR-PAGES",
    area="efa",
    severity="warn",
    title="No huge pages are set aside for EFA",
    why="EFA limits the number of registered pages; with 4 KiB pages a host buffer of about 95 GB does not register.",
    fix="Set 2 MiB huge pages aside when no job runs (the EFA installer does; they leave the memory of everything else), and back "
    "large host buffers with them.",
    reference="https://github.com/ofiwg/libfabric/issues/9739",
    needs=(EFA,),
)
def efa_mr_pages(context: Context) -> Iterator[Seen]:
    total = known(context.node.host.hugepages_2m_total, "HugePages_Total")
    memory = known(context.node.host.memory_total_bytes, "memory size")
    if total:
        yield good(f"{total} huge pages of 2 MiB")
    elif memory <= SMALL_PAGE_BYTES:
        yield good(f"no huge pages, but the host has only {memory / 1e9:.0f} GB")
    else:
        # Only buffers in host memory meet the limit; Engram tables are the ones of EP libraries that may be that large.
        large = bool(context.wants("engram_get"))
        yield bad(
            f"HugePages_Total is 0, the host has {memory / 1e9:.0f} GB",
            severity=None if large else "info",
            commands=_reserve(context),
        )


def _reserve(context: Context) -> tuple[str, ...]:
    """What the EFA installer sets aside (as LIM-EFA-HUGEPAGES asks for)."""
    num_cpus = context.node.host.num_cpus
    return (f"sudo sysctl -w vm.nr_hugepages={HUGE_PAGES_PER_CPU * num_cpus}",) if isinstance(num_cpus, int) else ()


@check(
    "EFA-STALE-ENV",
    area="efa",
    severity="warn",
    title="Settings of old EFA recipes are in force",
    why="They do nothing for current releases of the plugin, or harm: RDMAV_FORK_SAFE breaks registration on newer kernels, "
    "NCCL_PROTO=simple takes the fast protocols away.",
    fix="Remove these variables.",
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md",
    needs=(EFA,),
)
def efa_stale_env(context: Context) -> Iterator[Seen]:
    rdmav = sorted(name for name in context.env if name.startswith("RDMAV_"))
    for name in rdmav:
        yield bad(told(context, name))
    stale: list[str] = [name for name in ("FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE") if name in context.env]
    if (setting(context, "FI_PROVIDER") or "").lower() == "efa":
        stale.append("FI_PROVIDER")
    if (setting(context, "NCCL_PROTO") or "").lower() == "simple":
        stale.append("NCCL_PROTO")
    needed = _still_needed(context) if stale else frozenset()
    for name in stale:
        if name in needed:
            yield good(f"{told(context, name)} is what this old plugin needs")
        else:
            yield bad(told(context, name), severity="info")
    if not stale and not rdmav:
        yield good("no RDMAV_*, FI_EFA_USE_DEVICE_RDMA, FI_EFA_FORK_SAFE, FI_PROVIDER=efa or NCCL_PROTO=simple")


def _still_needed(context: Context) -> frozenset[str]:
    """Settings that the installed plugin asks for; those of a plugin whose version is not known are taken for current."""
    found = [plugin.version for plugin in plugins.found(context.node) if plugins.is_ofi(plugin)]
    told_by = [version for version in found if isinstance(version, str)]
    if not told_by or not versions.below(told_by[0], RDMA_READ_PLUGIN):
        return frozenset()
    if versions.below(told_by[0], OLD_PLUGIN):
        return frozenset(("FI_EFA_USE_DEVICE_RDMA", "FI_PROVIDER", "NCCL_PROTO"))
    return frozenset(("FI_EFA_USE_DEVICE_RDMA",))
