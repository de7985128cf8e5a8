"""GPU-initiated networking (GIN): who wants it, and the gates that NCCL makes a node pass before it offers it."""

from __future__ import annotations

import re
from collections.abc import Callable

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, known
from epctl.core.profile import Profile
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import fabric, gdr, gin_efa, libraries, needs, nics, pcie, plugins, versions
from epctl.core.views.gates import Gate
from epctl.core.views.settings import is_off, is_on, number, setting, told
from epctl.core.wording import counted

FEATURES = ("gin", "gin_gdaki", "gin_efa_gda")
AUTO, PROXY, GDAKI, GPI, EFA_GDA = -1, 2, 3, 4, 5
"""Values of NCCL_GIN_TYPE (NCCL's nccl_device/core.h)."""
FIRST_NCCL = "2.28.7"
"""First NCCL release with GIN."""
NVL72_GPUS = 72
"""Largest NVLink domain that is built (GB200/GB300 NVL72)."""


def wanted(context: Context) -> bool:
    """A profile in force asks for GIN of any kind."""
    return any(context.wants(feature) for feature in FEATURES)


def is_installed(context: Context, profile: Profile) -> bool:
    """The library of a profile is on this node. False: the profile is in force for a plan, or because nothing else is.
    Profiles without a distribution (drivers, settings) are here by nature."""
    names = {re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0].lower() for text in profile.detect.distributions}
    if not names or isinstance(context.node.software.distributions, Absent):
        return True
    return bool(names & set(context.distributions))


def is_meant(context: Context, profile: Profile) -> bool:
    """The library of a profile is here, or the user asked to judge for it."""
    return context.asked or is_installed(context, profile)


def needed(context: Context) -> bool:
    """A library that is installed, or that was asked for, wants GIN, and was not told to go without."""
    asking = [profile for feature in FEATURES for profile in context.wants(feature)]
    return any(is_meant(context, profile) for profile in asking) and not is_on(context, "EP_DISABLE_GIN")


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
    return fabric.is_mnnvl(context.node) and context.num_nodes * len(gpus) <= NVL72_GPUS


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
    found = libraries.nccl(context)
    if not found:
        return Gate("NCCL", "closed", "no NCCL is installed", f"Install an nvidia-nccl wheel, {FIRST_NCCL} or newer.")
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
    return Gate(name, "open", f"{counted(len(ports), 'active port')} with driver {', '.join(drivers)}")


def _gdr(context: Context) -> Gate:
    name = "GPUDirect path"
    module, said = gdr.peermem(context)
    if module is True:
        return Gate(name, "open", said)
    other = gdr.dma_buf(context)
    if other.state == "open":
        return Gate(name, "open", other.text)
    known(module, said)
    fix = "Load nvidia-peermem when no job runs, or use the open kernel modules with DMA-BUF on Linux 5.12 or newer."
    return Gate(name, other.state, f"{said}, and {other.text}", fix)


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
    return Gate(name, "open", f"{counted(len(devices), 'GPU')} with it (CUDA attribute)")


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
    "GIN over EFA": gin_efa.gate,
}
