"""The two ways from a NIC to GPU memory: the peer memory module, and DMA-BUF."""

from __future__ import annotations

from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.views import nics, versions
from epctl.core.views.gates import Gate
from epctl.core.views.settings import is_off, told

DMABUF_KERNEL = "5.12"
"""First Linux with DMA-BUF memory regions in its RDMA layer."""
_SUPPORTED, _REFUSED = 9, (93, 95)
"""What NCCL's probe of ibv_reg_dmabuf_mr takes for a yes (EBADF: only its descriptor was wrong), and for a no
(EPROTONOSUPPORT, EOPNOTSUPP)."""
_EFA_MODULE = "efa_nv_peermem"


def peermem(context: Context) -> tuple[Fact[bool], str]:
    """Is a peer memory module there? NCCL looks for its version file (transport/net_ib/gdr.cc); a module without is loaded but
    not seen. With the evidence."""
    node = context.node
    if isinstance(node.gdr.peermem_version, str):
        return True, f"nvidia_peermem {node.gdr.peermem_version} is loaded (sysfs)"
    if _efa_only(context) and any(module.name == _EFA_MODULE for module in value_or(node.host.modules, ())):
        return True, f"{_EFA_MODULE} is loaded (/proc/modules)"
    if node.gdr.peermem_version.absent != "not_found":
        return node.gdr.peermem_version, "version of nvidia_peermem"
    if node.gdr.peermem_loaded is True:
        return False, "nvidia_peermem is loaded, but shows no version where NCCL looks (sysfs)"
    return False, "no nvidia_peermem (sysfs)"


def _efa_only(context: Context) -> bool:
    ports = nics.fabric(context)
    return bool(ports) and all(nic.is_efa for nic in ports)


def dma_buf_way(node: Snapshot, switched_off: str = "", *, by_kernel: bool = False) -> Gate:
    """The DMA-BUF way from NICs to GPU memory. `switched_off`: the setting that rules it out, when there is one.
    `by_kernel`: the consumer goes by the kernel's version (aws-ofi-nccl does), whatever an OFED adds to an older one."""
    closed = f"DMA-BUF is switched off by {switched_off}" if switched_off else _dma_buf_closed(node, by_kernel)
    if closed:
        return Gate("DMA-BUF", "closed", closed)
    devices, verbs = node.active.devices, node.active.verbs
    if isinstance(devices, Absent) or isinstance(verbs, Absent):
        missing = devices if isinstance(devices, Absent) else verbs
        return Gate("DMA-BUF", "unknown", f"DMA-BUF probes: {missing}")
    willing = [probe.device for probe in verbs if probe.dmabuf_errno == _SUPPORTED]
    if willing and devices and all(device.dma_buf is True for device in devices):
        return Gate("DMA-BUF", "open", f"all GPUs export DMA-BUF, {willing[0]} takes it (active probes)")
    return Gate("DMA-BUF", "unknown", "DMA-BUF of GPUs and adapters could not be told")


def _dma_buf_closed(node: Snapshot, by_kernel: bool) -> str:
    kernel = value_or(node.host.kernel, "")
    answers = [probe.dmabuf_errno for probe in value_or(node.active.verbs, ()) if isinstance(probe.dmabuf_errno, int)]
    has_ofed = isinstance(node.rdma.ofed_version, str)
    if versions.below(kernel, DMABUF_KERNEL) and (by_kernel or not (has_ofed or _SUPPORTED in answers)):
        return f"kernel {kernel} has no DMA-BUF for RDMA (Linux {DMABUF_KERNEL} has)"
    devices = value_or(node.active.devices, ())
    without = [device.ordinal for device in devices if device.dma_buf is False]
    if without:
        return f"CUDA device {without[0]} has no DMA-BUF (CUDA attribute)"
    if not devices and node.gpu.driver.kernel_flavour == "proprietary":
        return "the proprietary NVIDIA kernel module offers no DMA-BUF"
    if answers and all(answer in _REFUSED for answer in answers):
        return f"ibv_reg_dmabuf_mr is refused by every adapter (errno {answers[0]})"
    return ""


def dma_buf(context: Context) -> Gate:
    """DMA-BUF between the GPUs and the fabric's adapters, by active probes where they ran, else by what rules it out."""
    node = context.node
    off = told(context, "NCCL_DMABUF_ENABLE") if is_off(context, "NCCL_DMABUF_ENABLE") else ""
    gate = dma_buf_way(node, off)
    closed = _ruled_out(node) if gate.state == "unknown" else ""
    return Gate(gate.name, "closed", closed) if closed else gate


def _ruled_out(node: Snapshot) -> str:
    """What the probes do not say: a module or kernel without DMA-BUF, a libibverbs without the call; '' when nothing does."""
    answers = [probe.dmabuf_errno for probe in value_or(node.active.verbs, ())]
    if answers and all(isinstance(answer, Absent) and answer.absent == "unsupported" for answer in answers):
        return "this libibverbs has no ibv_reg_dmabuf_mr (active probe)"
    if isinstance(node.active.devices, Absent) and node.gpu.driver.kernel_flavour == "proprietary":
        return "the proprietary NVIDIA kernel module offers no DMA-BUF"
    kernel = value_or(node.host.kernel, "")
    told_by_probe = any(isinstance(answer, int) for answer in answers)
    if not told_by_probe and versions.below(kernel, DMABUF_KERNEL):
        return f"kernel {kernel} has no DMA-BUF for RDMA (Linux {DMABUF_KERNEL} has)"
    return ""


def need_gpudirect(context: Context) -> bool:
    """A profile in force moves GPU memory over the network."""
    return any(context.wants(feature) for feature in ("rdma", "gin", "gin_gdaki", "gin_efa_gda", "ibgda"))


def compute_names(node: Snapshot) -> str:
    """Names of the GPUs, for conditions that belong to one product. Raises Unreadable."""
    gpus = known(node.gpu.gpus, "GPUs (NVML)")
    return " ".join(dict.fromkeys(known(gpu.name, f"GPU {gpu.index} name") for gpu in gpus))
