"""The capability ladder: which ways of moving expert traffic this node has, and for each missing one the gate that closed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, known, value_or
from epctl.core.views import needs, nics, pcie, versions

State = Literal["yes", "no", "unknown"]


class Rung(Struct, frozen=True):
    """One rung. `gate`: what closed it (state no) or what could not be read (unknown); '' when it is there."""

    rung: str
    state: State
    gate: str = ""
    fix: str = ""


class Gate(Struct, frozen=True):
    """One condition. `test` says '' when the gate is open, else why it is closed; raises Unreadable when it cannot tell."""

    test: Callable[[Context], str]
    fix: str


def ladder(context: Context) -> tuple[Rung, ...]:
    """All rungs, from the one that every EP library needs to the newest; never raises."""
    return tuple(_climb(name, gates, context) for name, gates in RUNGS.items())


def _climb(name: str, gates: tuple[Gate, ...], context: Context) -> Rung:
    unclear: Rung | None = None
    for gate in gates:
        try:
            closed = gate.test(context)
        except Unreadable as error:
            unclear = unclear or Rung(name, "unknown", f"could not read {error}", gate.fix)
            continue
        if closed:
            return Rung(name, "no", closed, gate.fix)
    return unclear or Rung(name, "yes")


def _two_gpus(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    number = len(pcie.gpus(context.node))
    return "" if number > 1 else f"NVML lists {number} GPU; load/store between GPUs needs two"


def _one_gpu(context: Context) -> str:
    return "" if needs.has_gpu(context.node) and pcie.gpus(context.node) else "no NVIDIA GPU in this machine"


def _nvlink_pairs(context: Context) -> str:
    for pair in known(context.node.gpu.p2p, "P2P status (NVML)"):
        status = known(pair.nvlink, f"NVLink status of GPU {pair.a} to {pair.b}")
        if status != "ok":
            return f"GPU {pair.a} and GPU {pair.b} have no NVLink between them ({status})"
    for gpu in pcie.gpus(context.node):
        if not any(link.active is True for link in known(gpu.links, f"NVLinks of GPU {gpu.index}")):
            return f"GPU {gpu.index} has no active NVLink"
    return ""


def _mig(context: Context) -> str:
    on = [gpu.index for gpu in pcie.gpus(context.node) if gpu.mig_enabled is True]
    return f"MIG is enabled on GPU {on[0]}" if on else ""


def nccl_from(floor: str, what: str) -> Callable[[Context], str]:
    """Gate: the NCCL in use is `floor` or newer."""

    def test(context: Context) -> str:
        found = known(context.node.software.nccl_effective, "version of the NCCL in use")
        old = versions.below(found, floor)
        return f"NCCL {found} in use, {what} needs {floor}" if old else ""

    return test


def setting_is_not(name: str, *values: str) -> Callable[[Context], str]:
    """Gate: the environment does not set `name` to one of `values`."""

    def test(context: Context) -> str:
        found = context.env.get(name, "")
        return f"{name}={found} is set" if found in values else ""

    return test


def _multicast(context: Context) -> str:
    for device in known(context.node.active.devices, "CUDA device attributes (active probe)"):
        if not known(device.multicast, f"multicast attribute of GPU {device.ordinal}"):
            return f"GPU {device.ordinal} reports no multicast support"
    return ""


def _fabric_done(context: Context) -> str:
    for gpu in pcie.gpus(context.node):
        state = known(gpu.fabric_state, f"fabric state of GPU {gpu.index}")
        if state == "not_supported":
            return f"GPU {gpu.index} is not on an NVSwitch fabric; multimem needs one"
        if state != "completed":
            return f"fabric registration of GPU {gpu.index} is {state.replace('_', ' ')}"
    return ""


def _active_nic(context: Context) -> str:
    ports = nics.fabric(context)
    if not ports:
        return (
            "no RDMA device in this machine"
            if not nics.devices(context.node)
            else "NCCL_IB_HCA lets no RDMA port through"
        )
    return "" if any(nic.active for nic in ports) else "no fabric RDMA port is active"


def _plugin_for_efa(context: Context) -> str:
    if not any(nic.is_efa for nic in nics.fabric(context)):
        return ""
    plugins = known(context.node.software.net_plugins, "NCCL network plugins")
    return "" if plugins else "EFA without an aws-ofi-nccl plugin: NCCL falls back to sockets"


def _gpudirect(context: Context) -> str:
    gdr, devices = context.node.gdr, context.node.active.devices
    if isinstance(gdr.peermem_version, str) or any(device.dma_buf is True for device in value_or(devices, ())):
        return ""
    if known(gdr.peermem_loaded, "nvidia_peermem (/proc/modules)"):
        return ""
    for device in known(devices, "CUDA attribute DMA_BUF_SUPPORTED (active probe)"):
        known(device.dma_buf, f"CUDA attribute DMA_BUF_SUPPORTED of GPU {device.ordinal}")
    return "neither nvidia_peermem nor DMA-BUF is there, so NICs cannot reach GPU memory"


def _vmm_gdr(context: Context) -> str:
    for device in known(context.node.active.devices, "CUDA device attributes (active probe)"):
        if not known(device.gdr_with_vmm, f"GPUDirect attribute for cuMem memory of GPU {device.ordinal}"):
            return f"GPU {device.ordinal} reports no GPUDirect RDMA for cuMem (VMM) memory"
    return ""


def _mlx5(context: Context) -> str:
    kinds = {str(nic.device.driver) for nic in nics.fabric(context) if nic.active}
    return (
        ""
        if "mlx5_core" in kinds
        else f"GDAKI is written for mlx5 adapters; active ports here are driven by {', '.join(sorted(kinds))}"
    )


def _atomics(context: Context) -> str:
    for nic in nics.fabric(context):
        if nic.active and known(nic.device.atomic_cap, f"atomic capability of {nic.device.name}") == "ATOMIC_NONE":
            return f"{nic.device.name} reports no RDMA atomics"
    return ""


def _gin_type(*allowed: str) -> Callable[[Context], str]:
    def test(context: Context) -> str:
        found = context.env.get("NCCL_GIN_TYPE", "")
        return f"NCCL_GIN_TYPE={found} asks for another backend" if found and found not in allowed else ""

    return test


def _efa(context: Context) -> str:
    return "" if needs.has_efa(context.node) else _no_efa(context)


def _no_efa(context: Context) -> str:
    nics.devices(context.node)
    return "no EFA device in this machine"


def _ofi(context: Context) -> str:
    for plugin in known(context.node.software.net_plugins, "NCCL network plugins"):
        if "ofi" in plugin.name:
            found = known(plugin.version, f"version of {plugin.name}")
            return f"aws-ofi-nccl {found}, EFA GDA needs 1.22" if versions.below(found, "1.22") else ""
    return "aws-ofi-nccl is not installed"


def _gdrdrv(context: Context) -> str:
    found = known(context.node.gdr.gdrdrv_version, "version of the gdrdrv module")
    return f"gdrdrv {found}, EFA GDA needs 2.5" if versions.below(found, "2.5") else ""


def _efa_driver(context: Context) -> str:
    found = known(context.node.rdma.efa_driver_version, "version of the efa module")
    return f"efa module {found}, EFA GDA needs 3.3.0" if versions.below(found, "3.3.0") else ""


def _peer_mapping(context: Context) -> str:
    settings = {
        entry.name: entry.value for entry in known(context.node.gpu.driver.params, "/proc/driver/nvidia/params")
    }
    return (
        ""
        if "PeerMappingOverride=1" in settings.get("RegistryDwords", "")
        else "the driver option PeerMappingOverride=1 is not set"
    )


def _gpu_initiated(context: Context) -> str:
    for rung in (GDAKI, EFA_GDA):
        found = _climb(rung, RUNGS[rung], context)
        if found.state == "yes":
            return ""
        if found.state == "unknown":
            raise Unreadable(f"{rung}: {found.gate}", Absent("not_probed"))
    return "Get needs GPU-initiated networking (GIN GDAKI or EFA GDA), and neither is there"


def _sm(floor: str) -> Callable[[Context], str]:
    def test(context: Context) -> str:
        for gpu in pcie.gpus(context.node):
            found = known(gpu.compute_capability, f"compute capability of GPU {gpu.index}")
            if versions.below(found, floor):
                return f"GPU {gpu.index} has compute capability {found}, this needs {floor}"
        return ""

    return test


def _toolkit(floor: str) -> Callable[[Context], str]:
    def test(context: Context) -> str:
        chain = context.node.software.toolchain
        if isinstance(chain.nvcc_version, Absent) and chain.nvcc_version.absent in ("tool_missing", "not_found"):
            return f"no CUDA toolkit found, this needs {floor}"
        found = known(chain.nvcc_version, "version of nvcc")
        return f"CUDA toolkit {found}, this needs {floor}" if versions.below(found, floor) else ""

    return test


LSA, MULTIMEM, PROXY, GDAKI = "load/store over NVLink", "multimem (NVLink SHARP)", "GIN proxy", "GIN GDAKI"
EFA_GDA, GET, CFT = "EFA GDA", "Get / Engram", "CFT"

_CUMEM = Gate(
    setting_is_not("NCCL_CUMEM_ENABLE", "0"), "Unset NCCL_CUMEM_ENABLE: symmetric memory needs cuMem allocations."
)
_GIN = (
    Gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
    Gate(_active_nic, "Add an RDMA NIC, or bring its port up (`epctl doctor --only rdma`)."),
    Gate(nccl_from("2.28.7", "GIN"), "Install nvidia-nccl-cu13 2.32.3 or newer."),
    Gate(setting_is_not("NCCL_GIN_ENABLE", "0"), "Unset NCCL_GIN_ENABLE."),
    Gate(setting_is_not("NCCL_IB_DISABLE", "1"), "Unset NCCL_IB_DISABLE."),
    _CUMEM,
    Gate(_plugin_for_efa, "Install the EFA installer's aws-ofi-nccl and put it on the loader path."),
    Gate(_gpudirect, "Load nvidia-peermem, or use the open kernel modules with DMA-BUF."),
    Gate(_vmm_gdr, "Use bare metal or a passthrough profile with GPUDirect, and a current driver."),
)
_GET_FLOOR = "2.32.3"
"""ncclGinOptFlagsWarpGet (DeepEP 2.5's Engram asks for it)."""

RUNGS: dict[str, tuple[Gate, ...]] = {
    LSA: (
        Gate(_two_gpus, "Use a machine with several GPUs for EP."),
        Gate(_mig, "Disable MIG on the GPUs that EP uses."),
        Gate(
            _nvlink_pairs,
            "Check the NVLinks (`epctl doctor --only gpu`); PCIe cards have NVLink in bridged pairs only.",
        ),
        Gate(nccl_from("2.28.0", "the device API"), "Install nvidia-nccl-cu13 2.32.3 or newer."),
        _CUMEM,
        Gate(setting_is_not("NCCL_P2P_DISABLE", "1"), "Unset NCCL_P2P_DISABLE."),
        Gate(setting_is_not("NCCL_WIN_ENABLE", "0"), "Unset NCCL_WIN_ENABLE."),
    ),
    MULTIMEM: (
        Gate(_two_gpus, "Use a machine with several GPUs for EP."),
        Gate(_fabric_done, "NVSwitch systems: start the fabric manager; see the findings of area gpu."),
        Gate(setting_is_not("NCCL_NVLS_ENABLE", "0"), "Unset NCCL_NVLS_ENABLE once multicast works."),
        Gate(_multicast, "Multicast needs NVSwitch (third generation or newer) and a driver that offers it."),
    ),
    PROXY: (*_GIN, Gate(_gin_type("2"), "Unset NCCL_GIN_TYPE, or set it to 2.")),
    GDAKI: (
        *_GIN,
        Gate(_mlx5, "Use GIN proxy (NCCL_GIN_TYPE=2) or the vendor's GIN plugin."),
        Gate(_atomics, "Enable atomics in the adapter's firmware, or use another function of it."),
        Gate(_gin_type("3"), "Unset NCCL_GIN_TYPE, or set it to 3."),
    ),
    EFA_GDA: (
        Gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
        Gate(_efa, "EFA GDA exists on AWS P5en and newer only."),
        Gate(nccl_from("2.31.2", "EFA GDA"), "Install nvidia-nccl-cu13 2.31.2 or newer."),
        Gate(_ofi, "Install EFA installer 1.50 or newer with aws-ofi-nccl 1.22."),
        Gate(_efa_driver, "Upgrade the efa module (EFA installer 1.50 or newer)."),
        Gate(_gdrdrv, "Upgrade gdrdrv on the host to 2.5."),
        Gate(_peer_mapping, 'Set NVreg_RegistryDwords="PeerMappingOverride=1" for the nvidia module and reboot.'),
        Gate(_gin_type("5"), "Set NCCL_GIN_TYPE=5."),
    ),
    GET: (
        Gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
        Gate(nccl_from(_GET_FLOOR, "Get (ncclGinOptFlagsWarpGet)"), f"Install nvidia-nccl-cu13 {_GET_FLOOR} or newer."),
        Gate(_gpu_initiated, "See the rungs GIN GDAKI and EFA GDA."),
    ),
    CFT: (
        Gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
        Gate(_sm("10.0"), "CFT needs Blackwell (SM100) or newer."),
        Gate(_toolkit("13.3"), "Install CUDA toolkit 13.3 or newer."),
    ),
}
