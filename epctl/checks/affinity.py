"""Which NIC and which CPUs are near which GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot.gpu import Gpu
from epctl.core.views import nics, pcie, plugins
from epctl.core.views.needs import GPU, NVML, RDMA, VERBS, is_virtual
from epctl.core.views.settings import is_on, number, setting, told
from epctl.core.views.userspace import symbol_version
from epctl.core.wording import counted

MAX_CPUS = 65536
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
RELAXED_ORDERING = "IBVERBS_1.8"
"""Symbol version of libibverbs with ibv_reg_mr_iova2, which registers memory with relaxed ordering (NCCL misc/ibvsymbols.cc)."""
_NEAR = ("PIX", "PXB")


def cpu_set(text: str) -> frozenset[int] | None:
    """CPUs of a list such as `0-55,112-167`; None when it is none."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first or last >= MAX_CPUS:
            return None
        found.update(range(first, last + 1))
    return frozenset(found)


@check(
    "PCI-VIRTUAL-TOPO",
    area="pcie",
    severity="warn",
    title="The PCI tree does not show which NIC is near which GPU",
    why="NCCL pairs GPUs and NICs by the PCI tree; from a flat or hidden one it picks bad pairs and reaches a fraction of line "
    "rate.",
    fix="Give NCCL the provider's topology file with NCCL_TOPO_FILE (Azure ND images ship one); in a container mount /sys "
    "of the host.",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://github.com/Azure/aks-rdma-infiniband/issues/36",
    needs=(NVML, RDMA),
)
def pci_virtual_topo(context: Context) -> Iterator[Seen]:
    file = setting(context, "NCCL_TOPO_FILE")
    if file:
        yield good(f"NCCL gets a topology file: {told(context, 'NCCL_TOPO_FILE')}")
        return
    lost = sorted({nic.device.name for nic in nics.fabric(context) if _is_lost(nic.device.pci)})
    flat = f"/sys/class/infiniband/*/device does not resolve for {', '.join(lost)}" if lost else _flat(context)
    if not flat:
        yield good(
            "PCI functions of all fabric NICs resolve, and the tree has different distances or is that of real hardware"
        )
    elif any(plugins.is_ofi(plugin) for plugin in value_or(context.node.software.net_plugins, ())) and not lost:
        yield good(f"{flat}; aws-ofi-nccl brings the topology of the instance type")
    elif known(context.node.pcie.default_topology_file, f"{flat}; NCCL's default topology file"):
        yield good(f"{flat}; NCCL reads /var/run/nvidia-topologyd/virtualTopology.xml")
    else:
        yield bad(f"{flat}; NCCL_TOPO_FILE is not set")


def _is_lost(pci: object) -> bool:
    return isinstance(pci, Absent) and pci.absent == "not_found"


def _flat(context: Context) -> str:
    """Why a guest's PCI tree says nothing about distance; '' when it does, or on bare metal. Raises Unreadable."""
    node = context.node
    if not is_virtual(node):
        return ""
    known(node.pcie.functions, "PCI functions")
    gpus = [entry for gpu in pcie.gpus(node) if (entry := pcie.function(node, gpu.pci))]
    cards = [entry for nic in nics.fabric(context) if (entry := pcie.function(node, nic.device.pci))]
    cards = list({entry.pci: entry for entry in cards}.values())
    if len(gpus) < 2 or len(cards) < 2:  # nothing to choose
        return ""
    if all(isinstance(entry.numa_node, Absent) for entry in (*gpus, *cards)) and not any(
        entry.upstream for entry in gpus
    ):
        return "no NUMA node and no PCIe bridge is known for any GPU (sysfs)"
    paths = {pcie.distance(gpu, card) for gpu in gpus for card in cards}
    # GPUs of Grace boards have no switch in common with a NIC, in a guest or not.
    switched = node.host.architecture != "aarch64"
    if not paths & set(_NEAR) and (switched or len(paths) == 1):
        return f"{len(gpus)} GPUs and {len(cards)} NICs of a virtual machine, every pair is {' or '.join(sorted(paths))} (sysfs)"
    return ""


@check(
    "PCI-GPU-NIC-FAR",
    area="pcie",
    severity="warn",
    title="A GPU has no fabric NIC near it while others have",
    why="Its traffic to other nodes crosses the CPU interconnect; a third of the bandwidth of other GPUs was measured.",
    fix="Correct the NIC list (NCCL_IB_HCA) or the placement of cards, or plan fewer flows for that GPU.",
    commands=("nvidia-smi topo -m",),
    reference="https://github.com/NVIDIA/nccl/issues/595 https://github.com/deepseek-ai/DeepEP/issues/137",
    needs=(NVML, RDMA),
)
def pci_gpu_nic_far(context: Context) -> Iterator[Seen]:
    node = context.node
    names = tuple(dict.fromkeys(nic.device.name for nic in nics.fabric(context) if nic.active))
    if not names:
        return
    found = {gpu.index: pcie.nearest(node, gpu, names) for gpu in pcie.gpus(node)}
    best = {path.path for path in found.values() if isinstance(path, pcie.Nearest)}
    for idx, path in found.items():
        if isinstance(path, Absent):
            yield unread(f"path from GPU {idx} to a NIC", path)
            continue
        text = f"GPU {idx}: nearest fabric NIC is {', '.join(path.devices)}, {path.path} ({path.origin})"
        far = (path.path in ("NODE", "SYS") and best & set(_NEAR)) or (path.path == "SYS" and best - {"SYS"})
        yield bad(f"{text}; other GPUs have {min(best, key=pcie.ORDER.__getitem__)}") if far else good(text)


def _visible(context: Context) -> tuple[Gpu, ...]:
    """GPUs that this process may use; of a rank that a launcher started, its own."""
    gpus = pcie.gpus(context.node)
    wanted = context.env.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        named = [entry.strip() for entry in wanted.split(",")]
        picked = [gpu for name in named for gpu in gpus if _is_named(gpu, name)]
        gpus = tuple(picked) or gpus
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        rank = number(context, name)
        if rank is not None and 0 <= rank < len(gpus):
            return (gpus[rank],)
    return gpus


def _is_named(gpu: Gpu, name: str) -> bool:
    uuid = value_or(gpu.uuid, "")
    return str(gpu.index) == name or (name.startswith("GPU-") and uuid.startswith(name))


@check(
    "CPU-AFFINITY-WRONG",
    area="pcie",
    severity="warn",
    title="This process may not run on the CPUs near its GPU",
    why="Proxy threads and pinned host memory end on the other socket; rates vary from run to run.",
    fix="Bind each rank to the NUMA node of its GPU (launcher option or numactl), or set NCCL_IGNORE_CPU_AFFINITY=1.",
    commands=("nvidia-smi topo -m",),
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ignore-cpu-affinity",
    needs=(NVML,),
)
def cpu_affinity_wrong(context: Context) -> Iterator[Seen]:
    if is_on(context, "NCCL_IGNORE_CPU_AFFINITY"):
        yield good(f"NCCL sets the affinity itself: {told(context, 'NCCL_IGNORE_CPU_AFFINITY')}")
        return
    text = known(context.node.host.affinity, "CPU affinity of this process")
    allowed = cpu_set(text)
    if not allowed:
        yield unread("CPU affinity of this process", Absent("unparsable", "no CPU list", text[:80]))
        return
    gpus = _visible(context)
    if len(allowed) < len(gpus):
        yield bad(
            f"this process may use {counted(len(allowed), 'CPU')} ({text}) for {counted(len(gpus), 'GPU')} (Cpus_allowed_list)"
        )
    for gpu in gpus:
        yield _near_cpus(context, gpu, allowed, text)


def _near_cpus(context: Context, gpu: Gpu, allowed: frozenset[int], text: str) -> Seen:
    if isinstance(gpu.local_cpus, Absent):
        if context.node.host.num_numa_nodes == 1:
            return good(f"GPU {gpu.index}: one NUMA node, all CPUs are near")
        return unread(f"GPU {gpu.index} local CPUs", gpu.local_cpus)
    local = cpu_set(gpu.local_cpus)
    if local is None:
        return unread(f"GPU {gpu.index} local CPUs", Absent("unparsable", "no CPU list", gpu.local_cpus[:80]))
    said = f"GPU {gpu.index}: local CPUs {gpu.local_cpus} (sysfs), allowed {text}"
    return bad(f"{said}: none in common") if local and not local & allowed else good(said)


@check(
    "CPU-NUMA-BALANCING",
    area="pcie",
    severity="warn",
    title="Automatic NUMA balancing is on",
    why="The kernel scans and unmaps pages of the EP process; dispatch latency gets spikes of 8 to 30 ms.",
    fix="Switch it off, and keep it off with a file in /etc/sysctl.d.",
    commands=("sudo sysctl -w kernel.numa_balancing=0",),
    reference="https://github.com/deepseek-ai/DeepEP/issues/624 https://github.com/deepseek-ai/DeepEP/issues/644",
    needs=(GPU,),
)
def cpu_numa_balancing(context: Context) -> Iterator[Seen]:
    found = context.node.host.numa_balancing
    if isinstance(found, Absent) and found.absent == "not_found":
        yield good("this kernel has no automatic NUMA balancing (/proc/sys/kernel/numa_balancing does not exist)")
        return
    value = known(found, "kernel.numa_balancing")
    yield bad(f"kernel.numa_balancing = {value}") if value else good("kernel.numa_balancing = 0")


@check(
    "PCI-RELAXED-ORDER-OFF",
    area="pcie",
    severity="warn",
    title="RDMA goes without PCIe relaxed ordering",
    why="On AMD EPYC and newer Intel Xeon hosts strict ordering keeps RDMA at a half or a third of line rate.",
    fix="Unset NCCL_IB_PCI_RELAXED_ORDERING (the default is automatic) and use an rdma-core whose libibverbs has IBVERBS_1.8.",
    reference="https://github.com/openucx/ucx/issues/8062 https://github.com/openucx/ucx/issues/10955 "
    "https://github.com/NVIDIA/nccl/blob/master/src/misc/ibvsymbols.cc",
    needs=(VERBS,),
)
def pci_relaxed_order_off(context: Context) -> Iterator[Seen]:
    if number(context, "NCCL_IB_PCI_RELAXED_ORDERING") == 0:
        yield bad(told(context, "NCCL_IB_PCI_RELAXED_ORDERING"), commands=("unset NCCL_IB_PCI_RELAXED_ORDERING",))
    else:
        yield good("NCCL_IB_PCI_RELAXED_ORDERING does not switch it off")
    yield symbol_version(context, "libibverbs", RELAXED_ORDERING, "relaxed ordering")
