"""GPUs: are they all there, in the right mode, and can they reach each other?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import DeviceNode
from epctl.core.views import pcie
from epctl.core.views.needs import GPU, NVML, SEVERAL_GPUS, gpu_functions, has_gpu
from epctl.core.wording import counted

OFF_THE_BUS = 79
"""Xid: the GPU has fallen off the bus."""

_GPU_NODE = re.compile(r"/dev/nvidia\d+", re.ASCII)
SHOWN = 12
"""Pairs that one line of evidence names before it only counts."""


def pairs(entries: Iterable[tuple[int, int]]) -> str:
    """`0→1, 0→2 and 3 more`."""
    listed = [f"{a}→{b}" for a, b in entries]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


NVML_WORDS = {
    0: "works",
    9: "the driver is not loaded (9)",
    12: "its library is not installed (12)",
    18: "library and driver are of different versions (18)",
    999: "unknown error (999)",
}
"""nvmlReturn_t of nvmlInit_v2 (nvml.h)."""


@check(
    "NODE-NO-GPU",
    area="gpu",
    severity="fail",
    title="There is no NVIDIA GPU in this machine",
    why="Expert parallelism runs on NVIDIA GPUs; every other check is skipped here.",
    fix="Run epctl on a GPU node, or pass the GPUs to this virtual machine or container; "
    "replay another node's snapshot with --from.",
    reference="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
)
def node_no_gpu(context: Context) -> Iterator[Seen]:
    node = context.node
    code, functions, gpus = node.gpu.driver.nvml_code, node.pcie.functions, node.gpu.gpus
    if isinstance(functions, Absent) and isinstance(gpus, Absent) and isinstance(code, Absent):
        yield unread("NVML and the PCI tree", functions)
        return
    looked = f"nvmlInit: {code if isinstance(code, Absent) else NVML_WORDS.get(code, f'error {code}')}"
    if isinstance(functions, Absent):
        looked += f"; PCI tree: {functions}"
    else:
        looked += f"; PCI tree: {counted(len(gpu_functions(node)), 'NVIDIA GPU')} among {counted(len(functions), 'function')} looked at"
    looked += f"; NVML lists {counted(len(gpus), 'GPU')}" if isinstance(gpus, tuple) else ""
    if has_gpu(node):
        yield good(looked)
    elif isinstance(node.job.log, str):
        yield bad(f"{looked}; the job's log is read all the same", severity="info")
    else:
        yield bad(looked)


@check(
    "GPU-COUNT-SHORT",
    area="gpu",
    severity="fail",
    title="Fewer GPUs can be used than are in the machine or asked for",
    why="A rank does not find its device, or the world size does not fit.",
    fix="Look for Xid 79 and PCIe errors in the kernel log; if the container hides GPUs, correct the device plugin's limits "
    "or NVIDIA_VISIBLE_DEVICES.",
    commands=("nvidia-smi -L", "lspci -d 10de:"),
    reference="https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_count.nhc",
    needs=(GPU,),
)
def gpu_count_short(context: Context) -> Iterator[Seen]:
    node = context.node
    count = len(pcie.gpus(node))
    wanted = _setting(context, "LOCAL_WORLD_SIZE")
    if wanted.isascii() and wanted.isdigit() and int(wanted) > count and not _shares_gpus(context):
        yield bad(f"LOCAL_WORLD_SIZE={wanted}, NVML lists {counted(count, 'GPU')}")
    functions = known(node.pcie.functions, "PCI functions")
    given_away = {entry.pci for entry in functions if pcie.given_away(entry)}
    addresses = [pci for pci in gpu_functions(node) if pci not in given_away]
    text = f"NVML lists {counted(count, 'GPU')}, the PCI tree has {len(addresses)}"
    if given_away.intersection(gpu_functions(node)):
        text += " besides those handed to virtual machines (vfio)"
    if count >= len(addresses):
        yield good(text)
        return
    listed = {gpu.pci for gpu in pcie.gpus(node)}
    missing = [pci for pci in addresses if pci not in listed]
    yield _missing(context, missing, f"{text}; not listed: {', '.join(missing)}")


def _missing(context: Context, missing: list[str], text: str) -> Seen:
    """Tells GPUs that are lost from those that a batch system or container keeps from this session."""
    node = context.node
    count = len(pcie.gpus(node))
    if any(xid.code == OFF_THE_BUS for xid in value_or(node.gpu.driver.xids, ())):
        return bad(f"{text}; Xid 79 in the kernel log")
    if count and _by_slurm(context) == count:
        return good(f"{text}: SLURM_GPUS_ON_NODE={count} is what this job was given")
    if value_or(node.host.container, "none") != "none":
        if count and _granted(context) == count:
            return good(f"{text}: NVIDIA_VISIBLE_DEVICES names {count}")
        return bad(f"{text}: this container shows only a part of the machine", severity="info")
    closed = [entry.path for entry in value_or(node.host.nvidia_nodes, ()) if _shut(entry)]
    if len(closed) >= len(missing):
        return bad(
            f"{text}: this session may not open {', '.join(closed[:SHOWN])}",
            severity="info",
            fix="Right inside a job with a part of the GPUs; else give the user access to the device files.",
        )
    return bad(text)


def _shut(entry: DeviceNode) -> bool:
    """A GPU's device file that permissions or the device rules of the control group keep from this process."""
    return _GPU_NODE.fullmatch(entry.path) is not None and entry.read_write is False


def _by_slurm(context: Context) -> int:
    """GPUs of this node that Slurm gave to the job; 0 outside of one."""
    count = _setting(context, "SLURM_GPUS_ON_NODE")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 4 else 0


def _setting(context: Context, name: str) -> str:
    """An environment variable, '' also when the environment could not be read: it is only asked for here to narrow a verdict."""
    return context.env.get(name, "").strip() if isinstance(context.node.env.variables, tuple) else ""


def _shares_gpus(context: Context) -> bool:
    return _setting(context, "NCCL_MULTI_RANK_GPU_ENABLE") not in ("", "0")


def _granted(context: Context) -> int:
    """GPUs that NVIDIA_VISIBLE_DEVICES names; 0 for all, void, none or unset."""
    names = _setting(context, "NVIDIA_VISIBLE_DEVICES")
    return 0 if names in ("", "all", "void", "none") else len(set(names.split(",")))


@check(
    "GPU-DUP-RANK",
    area="gpu",
    severity="fail",
    title="Several ranks would get the same GPU",
    why="NCCL refuses ranks that share a GPU, and DeepEP then asks GPU 0 for its NVLink to GPU 0.",
    fix="Give each rank of the node a GPU of its own, and set the device from the local rank before any CUDA call.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/582 https://github.com/NVIDIA/nccl/issues/103",
    needs=(GPU,),
)
def gpu_dup_rank(context: Context) -> Iterator[Seen]:
    visible = [entry.strip() for entry in context.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    ranks = context.env.get("LOCAL_WORLD_SIZE", "")
    if not visible:
        return
    text = f"CUDA_VISIBLE_DEVICES={','.join(visible)}"
    if len(set(visible)) < len(visible):
        yield bad(f"{text} names a GPU twice")
    elif len(visible) == 1 or not (ranks.isascii() and ranks.isdigit()):
        # One device alone is how many launchers hand each rank its own.
        yield good(text)
    elif int(ranks) > len(visible) and not _shares_gpus(context):
        yield bad(f"{text} has {counted(len(visible), 'GPU')} for LOCAL_WORLD_SIZE={ranks} ranks")
    else:
        yield good(f"{text}, LOCAL_WORLD_SIZE={ranks}")


@check(
    "GPU-PERSISTENCE-OFF",
    area="gpu",
    severity="warn",
    title="Persistence mode is off",
    why="The driver shuts down idle GPUs: the first call afterwards takes seconds, and settings are lost.",
    fix="Enable nvidia-persistenced, or persistence mode itself.",
    commands=("sudo systemctl enable --now nvidia-persistenced", "sudo nvidia-smi -pm 1"),
    reference="https://docs.nvidia.com/deploy/driver-persistence/ "
    "https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_persistence.nhc",
    needs=(NVML,),
)
def gpu_persistence_off(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        mode = gpu.persistence
        if isinstance(mode, Absent):
            if mode.absent != "unsupported":
                yield unread(f"GPU {gpu.index} persistence mode", mode)
        elif mode:
            yield good(f"GPU {gpu.index}: persistence mode is on (NVML)")
        else:
            yield bad(f"GPU {gpu.index}: persistence mode is off (NVML)")


@check(
    "GPU-CC-MODE",
    area="gpu",
    severity="fail",
    title="Confidential computing mode is on",
    why="It blocks peer access between GPUs and some memory registrations, on which EP stands.",
    fix="Drain the node and turn confidential computing off (it needs a GPU reset), or use the multi-GPU protected PCIe release and "
    "expect no GPU-initiated path.",
    commands=("nvidia-smi conf-compute -f",),
    reference="https://github.com/NVIDIA/nvtrust/issues/22 https://github.com/NVIDIA/nvtrust/issues/57",
    needs=(NVML,),
)
def gpu_cc_mode(context: Context) -> Iterator[Seen]:
    mode = context.node.gpu.driver.confidential_computing
    if isinstance(mode, Absent) and mode.absent == "unsupported":
        yield good("confidential computing is not supported here (NVML), so it is off")
    elif isinstance(mode, Absent):
        yield unread("confidential computing state", mode)
    elif mode:
        yield bad("confidential computing is on (nvmlSystemGetConfComputeState)")
    else:
        yield good("confidential computing is off (NVML)")


@check(
    "GPU-MIG-ON",
    area="gpu",
    severity="fail",
    title="MIG is enabled",
    why="MIG instances have no CUDA peer access, so NCCL finds neither P2P nor NVLink and EP cannot start.",
    fix="Drain the node, then disable MIG on these GPUs and reset them: it ends the MIG instances of everybody who uses them.",
    reference="https://github.com/NVIDIA/nccl/issues/1716",
    needs=(NVML,),
)
def gpu_mig_on(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        mode = gpu.mig_enabled
        if isinstance(mode, Absent) and mode.absent == "unsupported":
            yield good(f"GPU {gpu.index}: has no MIG")
        elif isinstance(mode, Absent):
            yield unread(f"GPU {gpu.index} MIG mode", mode)
        elif mode:
            yield bad(
                f"GPU {gpu.index}: MIG mode is enabled (NVML)", commands=(f"sudo nvidia-smi -i {gpu.index} -mig 0",)
            )
        else:
            yield good(f"GPU {gpu.index}: MIG mode is disabled (NVML)")


@check(
    "GPU-P2P-PARTIAL",
    area="gpu",
    severity="fail",
    title="Not every pair of GPUs can reach each other",
    why="The kernels inside a node load and store in the memory of every peer; DeepEP stops at the first pair that cannot.",
    fix="Use GPUs that are joined by NVLink (SXM, HGX), or only those that reach each other; else another all-to-all backend.",
    commands=("nvidia-smi topo -p2p r", "nvidia-smi topo -p2p w"),
    reference="https://github.com/deepseek-ai/DeepEP/issues/584 https://github.com/deepseek-ai/DeepEP/pull/730 "
    "https://github.com/sgl-project/sglang/issues/19033",
    needs=(SEVERAL_GPUS,),
)
def gpu_p2p_partial(context: Context) -> Iterator[Seen]:
    peers = context.node.active.peers
    if isinstance(peers, Absent) or any(isinstance(entry.can_access, Absent) for entry in peers):
        yield from _p2p_by_nvml(context.node)
        return
    refused = [(entry.a, entry.b) for entry in peers if entry.can_access is False]
    wrong = [(entry.a, entry.b) for entry in peers if entry.copied is False]
    if refused:
        yield bad(f"no peer access in {len(refused)} of {len(peers)} ordered pairs (CUDA): {pairs(refused)}")
    if wrong:
        yield bad(
            f"1 MiB did not arrive unchanged in {len(wrong)} of {len(peers)} ordered pairs: {pairs(wrong)}",
            fix="Peer access is offered but data is lost: look at ACS, IOMMU and NVLink errors before anything runs here.",
        )
    if peers:
        yield good(f"peer access in all {len(peers)} ordered pairs (CUDA)")


def _p2p_by_nvml(node: Snapshot) -> Iterator[Seen]:
    table = known(node.gpu.p2p, "P2P status (NVML)")
    words: dict[str, list[tuple[int, int]]] = {}
    for entry in table:
        for capability, fact in (("read", entry.read), ("write", entry.write)):
            if isinstance(fact, Absent):
                yield unread(f"P2P {capability} status of {entry.a}→{entry.b}", fact)
            elif fact != "ok":
                words.setdefault(f"{capability}: {fact}", []).append((entry.a, entry.b))
    for word, hit in words.items():
        yield bad(f"P2P {word} in {len(hit)} of {len(table)} ordered pairs (NVML): {pairs(hit)}")
    if table and not words:
        yield good(f"P2P read and write are ok in all {len(table)} ordered pairs (NVML)")
