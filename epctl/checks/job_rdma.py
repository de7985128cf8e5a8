"""The log of a failed job: RDMA operations that ended with an error, and verbs calls that were refused."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks._job import CLAIMED, advice, at_most, doctor, explains, none_of
from epctl.core.check import Seen, bad, check, good
from epctl.core.context import Context
from epctl.core.views import job as view
from epctl.core.views.job import COMPLETION, Sort
from epctl.core.views.needs import JOB_LOG

RETRY_EXCEEDED, RNR, FLUSHED = 12, 13, 5
ACCESS = (2, 4, 8, 9, 10, 11)
"""enum ibv_wc_status: LOC_QP_OP, LOC_PROT, LOC_ACCESS, REM_INV_REQ, REM_ACCESS, REM_OP (rdma-core, verbs.h)."""
FIRMWARE = 249
"""Vendor error of flushed requests that NCCL's maintainers trace to ACS, then to the server's firmware (NVIDIA/nccl#1353)."""
ENOMEM, EFAULT, ENODEV, EINVAL, ETIMEDOUT = 12, 14, 19, 22, 110

retry_exceeded = explains(
    "JOB-IB-RETRY-EXCEEDED",
    Sort((COMPLETION,), codes=(RETRY_EXCEEDED,)),
    severity="fail",
    title="RDMA peers stopped answering (retries exceeded)",
    why="The adapter sent again and again and got no acknowledgement: the path between the two ports does not work or lost "
    "the peer. At the start of a job it is the address (GID), MTU or rail; in the middle a cable, PFC, or a peer that died.",
    fix="Look first whether the peer's process failed earlier. Then test this pair of ports with ib_write_bw; on RoCE compare "
    "GID index, MTU and traffic class of both ends and the switch's lossless class, on InfiniBand the cable's error counters. "
    "When only ports of different rails fail, set NCCL_CROSS_NIC=0.",
    confirm=("ROCE-GID-FORCED-WRONG", "ROCE-GID-V6-ONLY", "ROCE-MTU-SMALL", "ROCE-GDAKI-TC", "NIC-PORT-NOT-ACTIVE"),
    nothing="work completion with status 12 (retry exceeded)",
    reference="https://github.com/NVIDIA/nccl/issues/426 https://github.com/NVIDIA/nccl/issues/2383 "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)

access_refused = explains(
    "JOB-IB-ACCESS",
    Sort((COMPLETION,), codes=ACCESS),
    severity="fail",
    title="RDMA operations were refused at the memory they address",
    why="An adapter could not read or write the buffer it was told to. With GPU memory this is nearly always the PCIe path: ACS or "
    "an IOMMU redirects what the adapter sends to the GPU (status 4 with vendor error 81), or GPUDirect mixes its two ways.",
    fix="On a drained node turn ACS off on the bridges between GPU and adapter (bare metal without guests: ACS is what keeps these "
    "apart) and the IOMMU to pass-through as PCI-IOMMU-TRANSLATE says (not on Arm); keep one GPUDirect way. "
    "NCCL_NET_GDR_LEVEL=LOC for one run shows whether GPU memory is the cause: it must pass then, slowly.",
    confirm=("PCI-ACS-ON", "PCI-IOMMU-TRANSLATE", "GDR-NONE", "PEERMEM-KMSG", "GDR-PROPRIETARY-MODULE"),
    nothing="work completion with a protection or access error (status 2, 4, 8, 9, 10, 11)",
    reference="https://github.com/NVIDIA/nccl/issues/928 https://github.com/NVIDIA/nccl-tests/issues/252 "
    "https://github.com/NVIDIA/nccl/issues/489",
)

rnr = explains(
    "JOB-IB-RNR",
    Sort((COMPLETION,), codes=(RNR,)),
    severity="fail",
    title="The peer had no receive buffer posted for too long",
    why="The path works, but the receiving process did not get to post its buffers: it was stopped, starved of CPU, or had failed.",
    fix="Look at the peer: a crash or an out-of-memory kill, a debugger, proxy threads without CPUs.",
    confirm=("CPU-AFFINITY-WRONG", "CPU-NUMA-BALANCING", "GPU-XID-FATAL"),
    nothing="work completion with status 13 (receiver not ready)",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)

other_status = explains(
    "JOB-IB-OTHER-STATUS",
    Sort((COMPLETION,), apart_from=(RETRY_EXCEEDED, RNR, FLUSHED, *ACCESS)),
    severity="fail",
    title="RDMA operations ended with an unusual error",
    why="The adapter reports a work completion that is neither a lost path nor a refused access.",
    fix="Look the status up in ibv_wc_status, and the kernel log of both ends for errors of the adapter's driver at that time.",
    confirm=("NIC-PORT-NOT-ACTIVE", "OFED-USERSPACE-OLD"),
    commands=("sudo dmesg --ctime | grep -iE 'mlx5|bnxt|infiniband' | tail -50",),
    nothing="work completion with another status",
    reference="https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/verbs.h",
)

_FLUSHED = Sort((COMPLETION,), codes=(FLUSHED,))
_FLUSHED_FIX = (
    "Drain the node and turn ACS off on the PCIe bridges first (not beside guests); then update BIOS, BMC and PCIe switch firmware of "
    "the server; then look for other RDMA programs (monitors) on it that died at that time. Without vendor error 249, find out why "
    "the peer closed its queue."
)
_FLUSHED_CONFIRM = ("PCI-ACS-ON", "PCI-FW-VENDOR249")
CLAIMED.append(_FLUSHED)


@check(
    "JOB-IB-FLUSHED",
    area="job",
    severity="fail",
    title="RDMA queues were flushed with no error before it in the log",
    why="Flushed requests (status 5) follow from a queue that went into its error state. Here the log does not show why; with vendor "
    "error 249 it was ACS or the server's firmware in the cases that are known.",
    fix=advice(_FLUSHED_FIX, _FLUSHED_CONFIRM),
    commands=(doctor(_FLUSHED_CONFIRM),),
    reference="https://github.com/NVIDIA/nccl/issues/1353 https://github.com/NVIDIA/nccl/issues/1405",
    needs=(JOB_LOG,),
)
def flushed(context: Context) -> Iterator[Seen]:
    job = context.node.job
    found = view.events(job, _FLUSHED)
    others = [event for event in view.events(job, Sort((COMPLETION,))) if event.code != FLUSHED]
    words = advice(_FLUSHED_FIX, _FLUSHED_CONFIRM, view.ends(found))
    for event in found:
        if others:
            yield good(f"follows from {view.code_of(others[0])}: {view.told(event)}")
        else:
            known_sign = event.vendor_err == FIRMWARE
            yield bad(view.told(event), severity=at_most("fail" if known_sign else "warn", event), fix=words)
    if not found:
        yield from none_of(context, "work completion with status 5 (flushed)")


qp_timeout = explains(
    "JOB-QP-TIMEOUT",
    Sort(("ibv_modify_qp_failed",), codes=(ETIMEDOUT,)),
    severity="fail",
    title="Connecting RDMA queues timed out",
    why="The kernel could not resolve the peer's address from this port: the GID in use is not routable (link-local, RoCE v1), or the "
    "two ports belong to rails that are not connected.",
    fix="Unset NCCL_IB_GID_INDEX with NCCL 2.21 or newer. Where rails are separate networks, set NCCL_CROSS_NIC=0 and give all nodes "
    "the same order of adapters; else ping from this port's address to the peer's.",
    confirm=("ROCE-GID-FORCED-WRONG", "ROCE-GID-V6-ONLY", "ROCE-GID-EMPTY", "NIC-STORAGE-SELECTED"),
    nothing="ibv_modify_qp that timed out (errno 110)",
    reference="https://github.com/NVIDIA/nccl/issues/2013 https://github.com/NVIDIA/nccl/issues/769",
)

qp_no_device = explains(
    "JOB-QP-NO-DEVICE",
    Sort(("ibv_modify_qp_failed",), codes=(ENODEV,)),
    severity="fail",
    title="An RDMA port has no network interface in this container",
    why="All adapters of the host can be opened here, but the interface of this one lives in another network namespace, so the GID "
    "leads nowhere.",
    fix="Name the adapters that have addresses here in NCCL_IB_HCA, use the host's network, or attach the RDMA networks to the pod.",
    confirm=("NIC-OTHER-NETNS", "ROCE-GID-EMPTY"),
    nothing="ibv_modify_qp that failed with no such device (errno 19)",
    reference="https://github.com/NVIDIA/nccl/issues/925 https://github.com/microsoft/mscclpp/issues/431",
)

qp_invalid = explains(
    "JOB-QP-INVALID",
    Sort(("ibv_modify_qp_failed",), codes=(EINVAL,)),
    severity="fail",
    title="An RDMA queue was given an address that is not valid",
    why="The GID index points to an entry that is empty or of another type than the peer's, or the ends differ in MTU or link layer.",
    fix="Unset NCCL_IB_GID_INDEX with NCCL 2.21 or newer; otherwise choose the RoCE v2 entry of the routable address.",
    confirm=("ROCE-GID-FORCED-WRONG", "ROCE-GID-EMPTY", "NIC-LINKLAYER-MIX"),
    nothing="ibv_modify_qp that failed with invalid argument (errno 22)",
    reference="https://github.com/NVIDIA/nccl/issues/426 https://github.com/deepseek-ai/DeepEP/issues/268",
)

qp_failed = explains(
    "JOB-QP-FAILED",
    Sort(("ibv_modify_qp_failed",), apart_from=(ETIMEDOUT, ENODEV, EINVAL)),
    severity="fail",
    title="RDMA queues could not be connected",
    why="The driver refused to bring a queue to its connected state.",
    fix="Compare address, route and state of this port and of the peer's (ibv_devinfo -v, ip route get PEER).",
    confirm=("NIC-PORT-NOT-ACTIVE", "ROCE-GID-EMPTY", "IB-NO-SM"),
    nothing="ibv_modify_qp that failed for another reason",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)

memlock = explains(
    "JOB-MR-MEMLOCK",
    Sort(("ibv_reg_mr_failed", "ibv_call_failed"), codes=(ENOMEM,)),
    severity="fail",
    title="Memory could not be locked for RDMA",
    why="Buffers and queues of an adapter are locked in memory; the process reached its limit of locked memory, or the host is out of it.",
    fix="Set memlock to unlimited where the job is started: limits.d, the scheduler's or container daemon's unit "
    "(LimitMEMLOCK=infinity), `--ulimit memlock=-1`, IPC_LOCK in pods. Look inside the job: a login shell has other limits.",
    confirm=("LIM-MEMLOCK", "CTR-NO-IPCLOCK", "IB-VF-GUID-ZERO"),
    nothing="verbs call that could not get memory (errno 12)",
    reference="https://github.com/NVIDIA/nccl-tests/issues/206 https://github.com/openucx/ucx/issues/7930",
)

bad_address = explains(
    "JOB-MR-BAD-ADDRESS",
    Sort(("ibv_reg_mr_failed",), codes=(EFAULT,)),
    severity="fail",
    title="GPU memory could not be registered for RDMA (bad address)",
    why="The adapter's driver does not know these pages: no peer memory module took them, or they are VMM allocations (cuMem) that "
    "were not made for GPUDirect (gpuDirectRDMACapable), or grow (PyTorch's expandable segments); DMA-BUF can register the latter.",
    fix="Load nvidia-peermem when no job runs, or use the open NVIDIA kernel modules so that NCCL registers through DMA-BUF; take "
    "expandable_segments out of PYTORCH_CUDA_ALLOC_CONF.",
    confirm=("GDR-NONE", "GDR-PROPRIETARY-MODULE", "PEERMEM-LOADED-GDR-OFF", "PY-EXPANDABLE-SEGMENTS"),
    nothing="ibv_reg_mr that failed with bad address (errno 14)",
    reference="https://github.com/microsoft/mscclpp/issues/657 https://github.com/uccl-project/uccl/issues/839",
)

dmabuf = explains(
    "JOB-MR-DMABUF",
    Sort(("dmabuf_registration_failed",)),
    severity="fail",
    title="The RDMA stack refuses DMA-BUF memory",
    why="NCCL found DMA-BUF at its probe and takes this way, but the installed OFED or adapter cannot register such memory.",
    fix="Drain the node and upgrade OFED (DOCA) on the host; until then load nvidia-peermem and set NCCL_DMABUF_ENABLE=0.",
    confirm=("DMABUF-OFED-UNSUPPORTED", "GDR-NONE", "OFED-USERSPACE-OLD"),
    nothing="failed DMA-BUF registration",
    reference="https://github.com/NVIDIA/nccl/issues/778",
)

mr_failed = explains(
    "JOB-MR-FAILED",
    Sort(("ibv_reg_mr_failed",), apart_from=(ENOMEM, EFAULT)),
    severity="fail",
    title="Memory could not be registered for RDMA",
    why="The adapter refused a memory region, so NCCL cannot use the buffer.",
    fix="Go by the errno: 22 is a size or flag that driver and library do not agree on, 1 and 13 are missing rights in the container.",
    confirm=("OFED-USERSPACE-OLD", "CTR-NO-INFINIBAND", "CTR-NO-IPCLOCK", "IB-VF-GUID-ZERO"),
    nothing="ibv_reg_mr that failed for another reason",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)

verbs_call = explains(
    "JOB-VERBS-CALL",
    Sort(("ibv_call_failed",), apart_from=(ENOMEM,)),
    severity="fail",
    title="A verbs call failed",
    why="The adapter, its driver or its user library refused what NCCL asked for.",
    fix="Go by the call and errno: opening a device fails on rights, creating queues on limits, mlx5dv calls on old user libraries.",
    confirm=("CTR-NO-INFINIBAND", "OFED-USERSPACE-OLD", "RDMA-PROVIDER-MISSING", "GIN-QP-EXHAUST"),
    nothing="failed verbs call",
    reference="https://github.com/deepseek-ai/DeepEP/issues/628 https://github.com/deepseek-ai/DeepEP/issues/649",
)

async_event = explains(
    "JOB-IB-EVENT",
    Sort(("ib_async_event",)),
    severity="warn",
    title="An adapter reported events while the job ran",
    why="Ports that go down, queues in fatal state and changed addresses break the connections over them; retry errors follow.",
    fix="Port errors: cable, optics, switch port. Fatal events: kernel log of the adapter's driver. Changed GIDs: what reconfigured "
    "the interface while the job ran.",
    confirm=("NIC-PORT-NOT-ACTIVE", "NIC-MODULE-HOT"),
    commands=("sudo dmesg --ctime | grep -iE 'mlx5|bnxt|infiniband|link' | tail -50",),
    nothing="asynchronous event of an adapter",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)
