"""The NVIDIA driver of a made-up machine: module, libraries, services, kernel log, topology text, IMEX."""

from __future__ import annotations

from msgspec import Struct

from epctl.probes.driver_services import NODES_FILE, PROCESSES, RUNNING, SHOW, WITNESS
from epctl.probes.source import Output
from tests.samples.parts import Argv, Part

PROC = "/proc/driver/nvidia"
_PARAMS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: {stream_memops}
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: {imex_channel}
GrdmaPciTopoCheckOverride: 0
CoherentGPUMemoryMode: ""
RegistryDwords: "{registry}"
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
"""
_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


class Driver(Struct, frozen=True):
    """The driver and its services. `active`: those of `services` that run, the others are installed and do not."""

    version: str
    library_folder: str
    built: str
    machine: str = "x86_64"
    services: tuple[str, ...] = ("nvidia-fabricmanager", "nvidia-persistenced")
    active: tuple[str, ...] = ("nvidia-fabricmanager", "nvidia-persistenced")
    fabric_manager: str = ""
    stream_memops: int = 1
    registry: str = "PeerMappingOverride=1;"
    imex_channel: int = 0
    log: tuple[str, ...] = ()
    """Lines of the kernel log, behind the driver's own."""
    log_head: str = ""


def driver(told: Driver, num_gpus: int, more_devices: tuple[str, ...] = ()) -> Part:
    """Module, libraries, services, log and device files."""
    libraries = {
        name: f"{told.library_folder}/{name.removesuffix('.1')}.{told.version}"
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    }
    commands: dict[Argv, str | Output] = {SHOW: _services(told), RUNNING: _running(told), ("dmesg",): _log(told)}
    if told.fabric_manager:
        commands["nv-fabricmanager", "--version"] = f"Fabric Manager version is : {told.fabric_manager}\n"
    return Part(
        files={
            f"{PROC}/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for {told.machine}  {told.version}  "
            f"Release Build  (dvs-builder@U22-I3-AF03-09-1)  {told.built}\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
            f"{PROC}/params": _PARAMS.format(
                stream_memops=told.stream_memops, registry=told.registry, imex_channel=told.imex_channel
            ),
            "/sys/module/nvidia/version": told.version + "\n",
        },
        folders={"/dev/char": ("1:3", "195:255", *(f"195:{i}" for i in range(num_gpus)))},
        commands=commands,
        documents={
            "driver_libraries": {
                "library_path": "",
                "programs": {
                    "nvidia-smi": "/usr/bin/nvidia-smi",
                    "nvlsm": "",
                    "nv-fabricmanager": "/usr/bin/nv-fabricmanager" if told.fabric_manager else "",
                },
                "libraries": libraries,
            }
        },
        devices=(
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia-modeset",
            "/dev/nvidia-caps/nvidia-cap1",
            "/dev/nvidia-caps/nvidia-cap2",
            *(f"/dev/nvidia{i}" for i in range(num_gpus)),
            *more_devices,
        ),
    )


def _services(told: Driver) -> Output:
    blocks = []
    for name in ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced", "nvlsm"):
        load = "loaded" if name in told.services else "not-found"
        state = "active" if name in told.active else "inactive"
        blocks.append(f"Id={name}.service\nLoadState={load}\nActiveState={state}\n")
    return Output("\n".join(blocks).encode())


def _running(told: Driver) -> Output:
    names = (WITNESS, *(PROCESSES[name] for name in told.active))
    return Output(
        "".join(f"{pid} {name}\n" for pid, name in zip((2, *range(2101, 2200)), names, strict=False)).encode()
    )


def _log(told: Driver) -> Output:
    lines = (
        told.log_head,
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        f"NVRM: loading NVIDIA UNIX Open Kernel Module for {told.machine}  {told.version}  Release Build",
        *told.log,
    )
    stamped = (f"[{0.0 if i == 0 else 7.2 + 0.611 * i:12.6f}] {line}\n" for i, line in enumerate(lines))
    return Output("".join(stamped).encode())


def topology(paths: tuple[tuple[str, ...], ...], nics: tuple[str, ...], cpus: tuple[tuple[str, str, str], ...]) -> Part:
    """`nvidia-smi topo -m`. `paths`: the square matrix of GPUs and then NICs, `nics`: RDMA devices in the legend's order,
    `cpus`: CPU affinity, NUMA affinity and NUMA id of each GPU."""
    num_gpus = len(cpus)
    labels = [f"GPU{i}" for i in range(num_gpus)] + [f"NIC{i}" for i in range(len(nics))]
    lines = ["\t\x1b[4m" + "\t".join((*labels, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID")) + "\x1b[0m"]
    for i, (label, row) in enumerate(zip(labels, paths, strict=True)):
        cells = "\t".join(f" {cell} " if cell == "X" else cell for cell in row)
        near = "\t".join(cpus[i][:2]) + f"\t\t{cpus[i][2]}" if i < num_gpus else "\t\t"
        lines.append(f"{label}\t{cells}\t{near}")
    text = "\n".join(lines) + "\n" + _LEGEND
    if nics:
        text += "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: {name}\n" for i, name in enumerate(nics))
    return Part(commands={("nvidia-smi", "topo", "-m"): text})


def imex(version: str, domain: tuple[tuple[str, str], ...]) -> Part:
    """`nvidia-imex-ctl -H -N` of a domain whose nodes (address, host name) are all connected."""
    width = len(domain)
    nodes = "".join(
        f"Node #{i:<3} - {address:<15} - READY                - Version: {version:<10} - Hostname: {host}\n"
        for i, (address, host) in enumerate(domain)
    )
    head = " Nodes From\\To " + "".join(f"{i:>4}" for i in range(width))
    rows = "".join(f"{i:>8}       " + "   C" * width + "\n" for i in range(width))
    text = f"""Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
N - Never Connected
R - Recovering - Connection was lost, but clean up has not yet been triggered.
D - Disconnected - Connection was lost, and clean up has been triggreed.
A - Authenticating - If GSSAPI enabled, client has initiated mutual authentication.
!V! - Version mismatch, communication disabled.
!M! - Node map mismatch, communication disabled.
C - Connected - Ready for operation

11/30/2026 11:59:58.114
Nodes:
{nodes}
{head}
{rows}Domain State: UP
"""
    return Part(targets={NODES_FILE: NODES_FILE}, commands={("nvidia-imex-ctl", "-H", "-N"): text})
