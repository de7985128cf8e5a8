"""GPU-initiated networking (GIN): who wants it, and the gates that NCCL makes a node pass before it offers it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, known, value_or
from epctl.core.profile import Profile
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import needs, nics, pcie, plugins, versions
from epctl.core.views.settings import is_off, is_on, number, setting, told

FEATURES = ("gin", "gin_gdaki", "gin_efa_gda")
AUTO, PROXY, GDAKI, GPI, EFA_GDA = -1, 2, 3, 4, 5
"""Values of NCCL_GIN_TYPE (NCCL's nccl_device/core.h)."""
FIRST_NCCL = "2.28.7"
"""First NCCL release with GIN."""
NVL72_GPUS = 72
"""Largest NVLink domain that is built (GB200/GB300 NVL72)."""
_SUPPORTED, _REFUSED = 9, (93, 95)
"""What NCCL's probe of ibv_reg_dmabuf_mr takes for a yes (EBADF: only its descriptor was wrong), and for a no
(EPROTONOSUPPORT, EOPNOTSUPP)."""
_DMABUF_KERNEL = "5.12"
"""First Linux with DMA-BUF memory regions in its RDMA layer."""

State = Literal["open", "closed", "unknown"]


class Gate(Struct, frozen=True):
    """One condition for GIN on this node. `text`: the evidence; `fix`: what opens it."""

    name: str
    state: State
    text: str
    fix: str = ""


def wanted(context: Context) -> bool:
    """A profile in force asks for GIN of any kind."""
    return any(context.wants(feature) for feature in FEATURES)


def is_installed(context: Context, profile: Profile) -> bool:
    """The library of a profile is on this node. False: the profile is in force for a plan, or because nothing else is.
    Profiles without a distribution (drivers, settings) are here by nature."""
    names = {re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0].lower() for text in profile.detect.distributions}
    installed = context.node.software.distributions
    if not names or isinstance(installed, Absent):
        return True
    return any(entry.name in names for entry in installed)


def needed(context: Context) -> bool:
    """A library that is installed asks for GIN, and was not told to go without."""
    asking = [profile for feature in FEATURES for profile in context.wants(feature)]
    return any(is_installed(context, profile) for profile in asking) and not is_on(context, "EP_DISABLE_GIN")


def _wanted(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if wanted(context) else "no library in use here asks for GIN"


def _several_nodes(context: Context) -> str:
    return "" if context.num_nodes > 1 else "the planned job has one node"


WANTED = Need("gin", _wanted)
SEVERAL_NODES = Need("several_nodes", _several_nodes)


def gin_type(context: Context) -> int:
    """NCCL_GIN_TYPE, AUTO when it is not set."""
    found = number(context, "NCCL_GIN_TYPE")
    return AUTO if found is None else found


def one_nvlink_domain(context: Context) -> bool:
    """All GPUs of the planned job share one NVLink domain: one node, or nodes of one NVL72 rack. Raises Unreadable."""
    if context.num_nodes == 1:
        return True
    gpus = pcie.gpus(context.node)
    in_rack = any(value_or(gpu.fabric_cluster_uuid, "").strip("0-") for gpu in gpus)
    return in_rack and context.num_nodes * len(gpus) <= NVL72_GPUS


def active_ports(context: Context) -> tuple[nics.Nic, ...]:
    """Active RDMA ports that NCCL may use; raises Unreadable, also when none is active and the state of one is not known."""
    chosen = nics.selected(context)
    active = tuple(nic for nic in chosen if nic.active)
    for nic in () if active else chosen:
        known(nic.port.state, f"state of {nic.label}")
    return active


def driver(device: RdmaDevice) -> str:
    """Kernel driver of an RDMA device; `none` for one without (rxe, siw: made in software). Raises Unreadable."""
    if isinstance(device.driver, Absent) and device.driver.absent == "not_found":
        return "none"
    return known(device.driver, f"driver of {device.name}")


def dma_buf(node: Snapshot, switched_off: str = "", *, by_kernel: bool = False) -> Gate:
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
    if versions.below(kernel, _DMABUF_KERNEL) and (by_kernel or not (has_ofed or _SUPPORTED in answers)):
        return f"kernel {kernel} has no DMA-BUF for RDMA (Linux {_DMABUF_KERNEL} has)"
    devices = value_or(node.active.devices, ())
    without = [device.ordinal for device in devices if device.dma_buf is False]
    if without:
        return f"CUDA device {without[0]} has no DMA-BUF (CUDA attribute)"
    if not devices and node.gpu.driver.kernel_flavour == "proprietary":
        return "the proprietary NVIDIA kernel module offers no DMA-BUF"
    if answers and all(answer in _REFUSED for answer in answers):
        return f"ibv_reg_dmabuf_mr is refused by every adapter (errno {answers[0]})"
    return ""


def gates(context: Context) -> tuple[Gate, ...]:
    """All gates, with the state of each; never raises."""
    return tuple(_tell(name, look, context) for name, look in GATES.items())


Look = Callable[[Context], Gate]


def _tell(name: str, look: Look, context: Context) -> Gate:
    try:
        return look(context)
    except Unreadable as error:
        return Gate(name, "unknown", str(error))


def _nccl(context: Context) -> Gate:
    found = known(context.node.software.nccl_effective, "version of the NCCL in use")
    if versions.below(found, FIRST_NCCL):
        return Gate(
            "NCCL", "closed", f"NCCL {found} has no GIN, {FIRST_NCCL} has", "Install a newer nvidia-nccl wheel."
        )
    return Gate("NCCL", "open", f"NCCL {found}")


def _gin_enabled(context: Context) -> Gate:
    if is_off(context, "NCCL_GIN_ENABLE"):
        return Gate("GIN enabled", "closed", told(context, "NCCL_GIN_ENABLE"), "Unset NCCL_GIN_ENABLE.")
    if gin_type(context) == 0:
        return Gate("GIN enabled", "closed", told(context, "NCCL_GIN_TYPE"), "Unset NCCL_GIN_TYPE.")
    return Gate("GIN enabled", "open", "NCCL_GIN_ENABLE is not 0")


def _ib_enabled(context: Context) -> Gate:
    if is_on(context, "NCCL_IB_DISABLE") and not all(nic.is_efa for nic in nics.ports(context.node)):
        return Gate("IB enabled", "closed", told(context, "NCCL_IB_DISABLE"), "Unset NCCL_IB_DISABLE.")
    return Gate("IB enabled", "open", "NCCL_IB_DISABLE switches no adapter off")


def _cumem(context: Context) -> Gate:
    if is_off(context, "NCCL_CUMEM_ENABLE"):
        return Gate("cuMem", "closed", told(context, "NCCL_CUMEM_ENABLE"), "Unset NCCL_CUMEM_ENABLE.")
    return Gate("cuMem", "open", "NCCL_CUMEM_ENABLE is not 0")


def _adapter(context: Context) -> Gate:
    name = "network adapter"
    ports = active_ports(context)
    if not ports:
        chosen = setting(context, "NCCL_IB_HCA")
        limit = f" that NCCL_IB_HCA={chosen} lets through" if chosen else ""
        fix = "Bring an RDMA port up; for EP inside one NVLink domain set EP_DISABLE_GIN=1."
        return Gate(name, "closed", f"there is no active RDMA port{limit}", fix)
    drivers = sorted({driver(nic.device) for nic in ports})
    wanted_driver = {GDAKI: "mlx5_core", EFA_GDA: "efa"}.get(gin_type(context))
    if wanted_driver and wanted_driver not in drivers:
        text = f"{told(context, 'NCCL_GIN_TYPE')} works with {wanted_driver}, active ports have {', '.join(drivers)}"
        return Gate(name, "closed", text, "Unset NCCL_GIN_TYPE, or ask for what the adapters can do.")
    if drivers == ["efa"] and not any(plugins.is_ofi(plugin) for plugin in plugins.found(context.node)):
        text = "all active ports are EFA, and aws-ofi-nccl is not on the loader path"
        return Gate(name, "closed", text, "Install the EFA installer's aws-ofi-nccl plugin.")
    return Gate(name, "open", f"{len(ports)} active ports with driver {', '.join(drivers)}")


def _gdr(context: Context) -> Gate:
    name = "GPUDirect path"
    modules = {module.name for module in value_or(context.node.host.modules, ())}
    if context.node.gdr.peermem_loaded is True:
        return Gate(name, "open", "nvidia_peermem is loaded")
    if needs.has_efa(context.node) and "efa_nv_peermem" in modules:
        return Gate(name, "open", "efa_nv_peermem is loaded")
    off = told(context, "NCCL_DMABUF_ENABLE") if is_off(context, "NCCL_DMABUF_ENABLE") else ""
    other = dma_buf(context.node, off)
    if other.state == "open":
        return Gate(name, "open", other.text)
    known(context.node.gdr.peermem_loaded, "nvidia_peermem (/proc/modules)")
    fix = "Load nvidia-peermem, or use the open kernel modules with DMA-BUF on Linux 5.12 or newer."
    return Gate(name, other.state, f"nvidia_peermem is not loaded, and {other.text}", fix)


def _attribute(context: Context) -> Gate:
    name = "GPUDirect for cuMem memory"
    devices = known(context.node.active.devices, "CUDA device attributes (active probe)")
    without = [device.ordinal for device in devices if device.gdr_with_vmm is False]
    if without:
        text = f"CUDA device {without[0]} lacks GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"
        return Gate(
            name, "closed", text, "Use bare metal or a passthrough profile with GPUDirect, and a current driver."
        )
    for device in devices:
        known(device.gdr_with_vmm, f"GPUDirect attribute of CUDA device {device.ordinal}")
    return Gate(name, "open", f"{len(devices)} GPUs report it (CUDA attribute)")


def _capability(context: Context) -> Gate:
    name = "compute capability"
    for gpu in pcie.gpus(context.node):
        found = known(gpu.compute_capability, f"compute capability of GPU {gpu.index}")
        if versions.below(found, "7.0"):
            return Gate(name, "closed", f"GPU {gpu.index} has {found}, GIN needs 7.0", "Use newer GPUs.")
    return Gate(name, "open", "7.0 or more")


GATES: dict[str, Look] = {
    "NCCL": _nccl,
    "GIN enabled": _gin_enabled,
    "IB enabled": _ib_enabled,
    "cuMem": _cumem,
    "network adapter": _adapter,
    "GPUDirect path": _gdr,
    "GPUDirect for cuMem memory": _attribute,
    "compute capability": _capability,
}
