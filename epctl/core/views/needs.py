"""Preconditions that checks share. Each says '' when it holds, else why the check does not apply to this node."""

from __future__ import annotations

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.views import fabric, nics

NVIDIA = "10de"
GPU_CLASSES = ("0300", "0302")
"""PCI classes VGA and 3D controller."""
NVSWITCH_CLASS = "0680"


def gpu_functions(node: Snapshot) -> tuple[str, ...]:
    """PCI addresses of NVIDIA GPUs; raises Unreadable when the PCI tree could not be read."""
    functions = known(node.pcie.functions, "PCI functions")
    return tuple(entry.pci for entry in functions if entry.vendor == NVIDIA and entry.pci_class[:4] in GPU_CLASSES)


def has_gpu(node: Snapshot) -> bool:
    """An NVIDIA GPU is in this machine, whether or not the driver works: NVML lists one, PCI shows one, or the driver is loaded.
    Raises Unreadable when nothing could be looked at."""
    if value_or(node.gpu.gpus, ()) or isinstance(node.gpu.driver.kernel_version, str):
        return True
    if isinstance(node.gpu.driver.nvml_code, int) and node.gpu.driver.nvml_code not in (9, 12):
        return True
    if isinstance(node.pcie.functions, Absent) and isinstance(node.gpu.gpus, tuple):
        return bool(node.gpu.gpus)
    if (
        isinstance(node.pcie.functions, Absent)
        and node.pcie.functions.absent == "not_read"
        and node.origin.kind == "recorded"
    ):
        return True  # raw outputs without a PCI tree: nobody sends those of a machine without GPUs
    return bool(gpu_functions(node))


def _gpu(context: Context) -> str:
    return "" if has_gpu(context.node) else "no NVIDIA GPU in this machine"


def _nvml(context: Context) -> str:
    return _gpu(context) or ("" if known(context.node.gpu.gpus, "GPUs (NVML)") else "NVML lists no GPU")


def _several_gpus(context: Context) -> str:
    return _nvml(context) or ("" if len(known(context.node.gpu.gpus)) > 1 else "one GPU only")


def has_nvswitch(node: Snapshot) -> bool:
    """NVSwitches are in this machine or its NVLinks end at one. GPUs with a fabric state other than not_supported have one, too."""
    for gpu in value_or(node.gpu.gpus, ()):
        if any(link.remote_type == "nvswitch" for link in value_or(gpu.links, ())):
            return True
        if isinstance(gpu.fabric_state, str) and gpu.fabric_state != "not_supported":
            return True
    if any(
        entry.vendor == NVIDIA and entry.pci_class[:4] == NVSWITCH_CLASS for entry in value_or(node.pcie.functions, ())
    ):
        return True
    return any("nvidia-nvswitch" in entry.path for entry in value_or(node.host.nvidia_nodes, ()))


def _nvswitch(context: Context) -> str:
    return _gpu(context) or ("" if has_nvswitch(context.node) else "no NVSwitch in this machine")


def _mnnvl(context: Context) -> str:
    missing = _nvml(context)
    if missing:
        return missing
    if fabric.rack_scale(context.node):
        for gpu in known(context.node.gpu.gpus):
            if not isinstance(gpu.fabric_cluster_uuid, Absent) or gpu.fabric_cluster_uuid.absent != "unsupported":
                known(gpu.fabric_cluster_uuid, f"GPU {gpu.index} cluster UUID")
    return "" if fabric.is_mnnvl(context.node) else "NVLink of this machine does not reach other nodes"


def _rdma(context: Context) -> str:
    return _gpu(context) or ("" if nics.devices(context.node) else "no RDMA device in this machine")


def _layer(context: Context, layer: str) -> str:
    missing = _rdma(context)
    if missing:
        return missing
    ports = tuple(nic for nic in nics.ports(context.node) if not nic.is_efa)
    if any(nic.port.link_layer == layer for nic in ports):
        return ""
    for nic in ports:
        known(nic.port.link_layer, f"{nic.label} link layer")
    return f"no {layer} port among the RDMA devices"


def _roce(context: Context) -> str:
    return _layer(context, "Ethernet")


def _ib(context: Context) -> str:
    return _layer(context, "InfiniBand")


def _verbs(context: Context) -> str:
    missing = _rdma(context)
    if missing:
        return missing
    others = any(device.driver != "efa" for device in nics.devices(context.node))
    return "" if others else "EFA devices only, which NCCL's IB transport does not drive"


def _mlx5(context: Context) -> str:
    missing = _rdma(context)
    if missing:
        return missing
    devices = nics.devices(context.node)
    if any(device.driver == "mlx5_core" for device in devices):
        return ""
    for device in devices:
        known(device.driver, f"{device.name} kernel driver")
    return "no mlx5 adapter in this machine"


def has_efa(node: Snapshot) -> bool:
    """An RDMA device with driver efa."""
    return any(device.driver == "efa" for device in value_or(node.rdma.devices, ()))


def _efa(context: Context) -> str:
    return _rdma(context) or ("" if has_efa(context.node) else "no EFA device in this machine")


def is_virtual(node: Snapshot) -> bool:
    """This is a virtual machine; raises Unreadable."""
    return known(node.host.virtualization, "virtualization") != "none"


def _bare_metal(context: Context) -> str:
    return "this is a virtual machine" if is_virtual(context.node) else ""


def in_container(node: Snapshot) -> bool:
    """The process runs in a container; raises Unreadable."""
    return known(node.host.container, "container") != "none"


def _container(context: Context) -> str:
    return _gpu(context) or ("" if in_container(context.node) else "not in a container")


def _job_log(context: Context) -> str:
    return "no log was given (--nccl-log FILE)" if isinstance(context.node.job.log, Absent) else ""


def wants(feature: str) -> Need:
    """A profile in force asks for `feature`."""

    def test(context: Context) -> str:
        return "" if context.wants(feature) else f"no library in use here asks for {feature.replace('_', ' ')}"

    return Need(f"a library that asks for {feature.replace('_', ' ')}", test)


GPU = Need("an NVIDIA GPU", _gpu)
NVML = Need("a GPU that NVML lists", _nvml)
SEVERAL_GPUS = Need("several GPUs", _several_gpus)
NVSWITCH = Need("NVSwitch", _nvswitch)
MNNVL = Need("mnnvl", _mnnvl)
RDMA = Need("an RDMA device", _rdma)
ROCE = Need("a RoCE port", _roce)
IB = Need("an InfiniBand port", _ib)
EFA = Need("an EFA device", _efa)
VERBS = Need("verbs", _verbs)
MLX5 = Need("mlx5", _mlx5)
BARE_METAL = Need("bare metal", _bare_metal)
CONTAINER = Need("a container", _container)
JOB_LOG = Need("job_log", _job_log)
"""Needs no GPU: a log is often read on another machine than the one that failed."""
