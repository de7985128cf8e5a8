"""The capability ladder: which ways of moving expert traffic this node has, and for each missing one the gate that closed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct, structs

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, known, value_or
from epctl.core.views import device_api, devx, gin, gin_efa, libraries, needs, nics, pcie, versions
from epctl.core.views.gates import Gate
from epctl.core.views.settings import is_off, is_on, told

State = Literal["yes", "no", "unknown"]


class Rung(Struct, frozen=True):
    """One rung. `gate`: what closed it (state no) or what could not be read (unknown); '' when it is there."""

    rung: str
    state: State
    gate: str = ""
    fix: str = ""
    applies: bool = True
    """False where this machine is not made for it: EFA GDA without EFA, CFT before Blackwell, GDAKI on EFA alone, or the proxy
    beside a working GDAKI."""


Look = Callable[[Context], Gate]
"""Looks at one gate; raises Unreadable when it cannot tell."""


def gate(test: Callable[[Context], str], fix: str) -> Look:
    """A gate that is closed when `test` says why."""

    def look(context: Context) -> Gate:
        closed = test(context)
        return Gate("", "closed" if closed else "open", closed, fix)

    return look


def ladder(context: Context) -> tuple[Rung, ...]:
    """All rungs, from the one that every EP library needs to the newest; never raises."""
    rungs = {name: _climb(name, gates, context) for name, gates in RUNGS.items()}
    return tuple(structs.replace(rung, applies=_applies(name, rungs, context)) for name, rung in rungs.items())


def first_missing(rungs: Iterable[Rung]) -> Rung | None:
    """The lowest rung that this machine could have and has not."""
    return next((rung for rung in rungs if rung.state != "yes" and rung.applies), None)


def _applies(name: str, rungs: dict[str, Rung], context: Context) -> bool:
    if name == PROXY:
        return rungs[GDAKI].state != "yes"
    if name == EFA_GDA:
        return needs.has_efa(context.node)
    if name == GDAKI:
        drivers = {device.driver for device in value_or(context.node.rdma.devices, ())}
        return drivers != {"efa"}
    if name == GET:
        return needs.has_efa(context.node) is False or rungs[EFA_GDA].state == "yes" or rungs[GDAKI].state == "yes"
    if name == CFT:
        return not any(
            versions.below(value_or(gpu.compute_capability, ""), "10.0") for gpu in value_or(context.node.gpu.gpus, ())
        )
    return True


def _climb(name: str, looks: tuple[Look, ...], context: Context) -> Rung:
    """A closed gate decides, wherever it stands; else one that could not be read does."""
    unclear: Rung | None = None
    for look in looks:
        try:
            found = look(context)
        except Unreadable as error:
            found = Gate("", "unknown", str(error))
        if found.state == "closed":
            return Rung(name, "no", found.text, found.fix)
        if found.state == "unknown" and unclear is None:
            unclear = Rung(name, "unknown", found.text, found.fix)
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
        found = libraries.nccl(context)
        if not found:
            return f"no NCCL is installed, {what} needs {floor}"
        return f"NCCL {found} in use, {what} needs {floor}" if versions.below(found, floor) else ""

    return test


def not_off(name: str) -> Callable[[Context], str]:
    """Gate: the switch `name`, on by default, was not turned off."""
    return lambda context: f"{told(context, name)} is set" if is_off(context, name) else ""


def not_on(name: str) -> Callable[[Context], str]:
    """Gate: the switch `name`, off by default, was not turned on."""
    return lambda context: f"{told(context, name)} is set" if is_on(context, name) else ""


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


def _mlx5(context: Context) -> str:
    kinds = {str(nic.device.driver) for nic in nics.fabric(context) if nic.active}
    return (
        ""
        if "mlx5_core" in kinds
        else f"GDAKI is written for mlx5 adapters; active ports here are driven by {', '.join(sorted(kinds))}"
    )


def _atomics(context: Context) -> str:
    for nic in nics.fabric(context):
        if nic.is_efa or not nic.active:  # EFA ports carry no GDAKI
            continue
        if known(nic.device.atomic_cap, f"atomic capability of {nic.device.name}") == "ATOMIC_NONE":
            return f"{nic.device.name} reports no RDMA atomics"
    return ""


def _gin_type(wanted: int) -> Callable[[Context], str]:
    def test(context: Context) -> str:
        found = gin.gin_type(context)
        return "" if found in (gin.AUTO, wanted) else f"{told(context, 'NCCL_GIN_TYPE')} asks for another backend"

    return test


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

_CUMEM = gate(not_off("NCCL_CUMEM_ENABLE"), "Unset NCCL_CUMEM_ENABLE: symmetric memory needs cuMem allocations.")
_GIN: tuple[Look, ...] = (
    gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
    gate(_active_nic, "Add an RDMA NIC, or bring its port up (`epctl doctor --only rdma`)."),
    *gin.GATES.values(),
)
_GET_FLOOR = "2.32.3"
"""What DeepEP 2.5, whose Engram stands on Get, asks for (its README)."""

RUNGS: dict[str, tuple[Look, ...]] = {
    LSA: (
        gate(_two_gpus, "Use a machine with several GPUs for EP."),
        gate(_mig, "Disable MIG on the GPUs that EP uses."),
        gate(
            _nvlink_pairs,
            "Check the NVLinks (`epctl doctor --only gpu`); PCIe cards have NVLink in bridged pairs only.",
        ),
        gate(nccl_from("2.28.0", "the device API"), "Install nvidia-nccl-cu13 2.32.3 or newer."),
        _CUMEM,
        gate(not_on("NCCL_P2P_DISABLE"), "Unset NCCL_P2P_DISABLE."),
        gate(not_off("NCCL_WIN_ENABLE"), "Unset NCCL_WIN_ENABLE."),
    ),
    MULTIMEM: (
        gate(_two_gpus, "Use a machine with several GPUs for EP."),
        gate(_fabric_done, "NVSwitch systems: start the fabric manager; see the findings of area gpu."),
        gate(not_off("NCCL_NVLS_ENABLE"), "Unset NCCL_NVLS_ENABLE once multicast works."),
        gate(_multicast, "Multicast needs NVSwitch (third generation or newer) and a driver that offers it."),
    ),
    PROXY: (*_GIN, gate(_gin_type(gin.PROXY), "Unset NCCL_GIN_TYPE, or set it to 2.")),
    GDAKI: (
        *_GIN,
        gate(_mlx5, "Use GIN proxy (NCCL_GIN_TYPE=2) or the vendor's GIN plugin."),
        gate(_atomics, "Enable atomics in the adapter's firmware, or use another function of it."),
        gate(
            lambda context: devx.refused(context.node),
            "Give the container all RDMA devices and the capability IPC_LOCK.",
        ),
        gate(_gin_type(gin.GDAKI), "Unset NCCL_GIN_TYPE, or set it to 3."),
    ),
    EFA_GDA: (
        gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
        gate(gin_efa.instance, "EFA GDA exists on AWS P5en, P6-B200 and P6-B300 only."),
        gate(nccl_from("2.31.2", "EFA GDA"), "Install nvidia-nccl-cu13 2.31.2 or newer."),
        gate(gin_efa.gda_plugin, "Install EFA installer 1.50 or newer with aws-ofi-nccl 1.22."),
        gate(gin_efa.gda_driver, "Upgrade the efa module (EFA installer 1.50 or newer)."),
        gate(gin_efa.gdrcopy, "Upgrade GDRCopy to 2.5: gdrdrv on the host, libgdrapi in the image."),
        gate(
            gin_efa.peer_mapping, 'Set NVreg_RegistryDwords="PeerMappingOverride=1" for the nvidia module and reboot.'
        ),
        gate(_gin_type(gin.EFA_GDA), "Set NCCL_GIN_TYPE=5."),
    ),
    GET: (
        gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
        gate(nccl_from(_GET_FLOOR, "Engram of DeepEP 2.5"), f"Install an nvidia-nccl wheel, {_GET_FLOOR} or newer."),
        gate(device_api.get, "Put the headers of this NCCL beside it: include/nccl_device."),
        gate(device_api.warp_get, "Install deepinfer-ep 2.5.0 or newer, whose Engram does without that flag."),
        gate(_gpu_initiated, "See the rungs GIN GDAKI and EFA GDA."),
    ),
    CFT: (
        gate(_one_gpu, "Use a machine with NVIDIA GPUs."),
        gate(_sm(device_api.CFT_CAPABILITY), "CFT needs Blackwell (SM100) or newer."),
        gate(_toolkit(device_api.CFT_CUDA), "Install CUDA toolkit 13.3 or newer."),
        gate(device_api.cft_driver, "Upgrade the NVIDIA driver to one of CUDA 13.3 or newer."),
        gate(nccl_from(device_api.CFT_NCCL, "CFT"), "Install an nvidia-nccl wheel, 2.31.2 or newer."),
        _CUMEM,
        gate(device_api.cft_off, "Unset NCCL_CFT_ENABLE."),
    ),
}
