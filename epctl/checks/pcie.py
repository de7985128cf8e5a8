"""PCIe: access control, IOMMU, links, server firmware."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from epctl.core.capability import slot_gbps
from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.snapshot.host import PciFunction
from epctl.core.views import nics, pcie
from epctl.core.views.bridges import Bridge, bridges
from epctl.core.views.needs import BARE_METAL, GPU, RDMA, gpu_functions, is_virtual
from epctl.core.wording import counted

BUSY_PERCENT = 50
"""From this utilization on a GPU has left its idle link state; below it Gen1 is normal (it saves power)."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KILLED = re.compile(r"Killed process \d{1,10} \(([^)]{1,64})\)|\btask=([^,\s]{1,64})")
_RDMA_AGENT = re.compile(r"rdma|pingmesh|rping|opensm|ibdiag|perftest|\bufm|mlx|^ibv?_|^ib[-_]", re.I)


def _clear_acs(bridge: Bridge) -> tuple[str, ...]:
    return (f"sudo setpci -s {shlex.quote(bridge.pci)} ECAP_ACS+0x6.w=0000",) if _ADDRESS.fullmatch(bridge.pci) else ()


@check(
    "PCI-ACS-ON",
    area="pcie",
    severity="fail",
    title="PCIe Access Control Services redirect peer-to-peer traffic",
    why="Bridges with ACS send requests between a GPU and its NIC up to the root complex: GPUDirect gets slow, hangs, or ends "
    "with a local protection error (status 4, vendor error 81).",
    fix="Clear ACS on these bridges when no job runs and at each boot (a systemd unit with setpci), or switch it off in the BIOS. Not in "
    "virtual machines, where ATS is the way, and not on hosts of virtual machines with passed-through devices: ACS isolates them.",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://github.com/NVIDIA/nccl/issues/928 https://github.com/NVIDIA/nccl/issues/1353",
    needs=(GPU, BARE_METAL),
)
def pci_acs_on(context: Context) -> Iterator[Seen]:
    known(context.node.pcie.functions, "PCI functions")
    for gpu in pcie.gpus(context.node):
        if pcie.function(context.node, gpu.pci) is None:
            yield unread(f"bridges above GPU {gpu.index}", Absent("not_found", "it is not in the PCI tree"))
    clear, refused = 0, []
    guests = any(pcie.given_away(entry) for entry in known(context.node.pcie.functions))
    fix = (
        "This host hands devices to virtual machines (vfio), which ACS isolates: use ATS, or a host without guests."
        if guests
        else ""
    )
    for bridge in bridges(context):
        state = bridge.redirects
        if isinstance(state, Absent):
            refused.append((bridge, state))
        elif not state:
            clear += 1
        elif bridge.place == "switch":
            text = f"{bridge.pci}, between {bridge.between}: {bridge.bits} (ACSCtl)"
            yield bad(text, fix=fix, commands=() if guests else _clear_acs(bridge))
        elif context.node.host.architecture == "aarch64":
            # The kernel switches ACS on at all root ports of SMMU systems; their peer traffic passes there in any case.
            yield good(f"{bridge.pci}: {bridge.bits}, usual for a root port on Arm")
        else:
            text = f"{bridge.pci}, at the root above {bridge.between}: {bridge.bits} (ACSCtl)"
            yield bad(text, severity="warn", fix=fix, commands=() if guests else _clear_acs(bridge))
    if refused:
        yield unread(
            f"ACSCtl of {counted(len(refused), 'bridge')} ({refused[0][0].pci}, …); run as root", refused[0][1]
        )
    if clear:
        yield good(f"{counted(clear, 'bridge')} between GPUs and their peers, no redirection (ACSCtl)")


def _endpoints(context: Context) -> tuple[PciFunction, ...]:
    """GPUs and adapters of the fabric."""
    node = context.node
    wanted = set(gpu_functions(node))
    if value_or(node.rdma.devices, ()):
        wanted |= {nic.device.pci for nic in nics.fabric(context) if isinstance(nic.device.pci, str)}
    return tuple(entry for entry in known(node.pcie.functions) if entry.pci in wanted)


@check(
    "PCI-IOMMU-TRANSLATE",
    area="pcie",
    severity="warn",
    title="The IOMMU translates DMA of GPUs or NICs",
    why="On bare metal, peer-to-peer copies through a translating IOMMU hang or crawl at a few GB/s.",
    fix="Drain the node, then boot with iommu=pt, or switch VT-d / AMD IOMMU off in the BIOS.",
    reference="https://github.com/NVIDIA/nccl-tests/issues/115 https://github.com/NVIDIA/nccl/issues/257 "
    "https://github.com/deepseek-ai/DeepEP/issues/74 https://github.com/NVIDIA/nodewright-packages/pull/122",
    needs=(GPU, BARE_METAL),
)
def pci_iommu_translate(context: Context) -> Iterator[Seen]:
    area = context.node.pcie
    if area.iommu_groups == 0:
        yield good("IOMMU is off: /sys/kernel/iommu_groups is empty")
        return
    translated: dict[str, list[str]] = {}
    for entry in _endpoints(context):
        kind = entry.iommu_type
        if isinstance(kind, Absent):
            told = _passed_through(context.node)
            yield (
                good(f"{entry.pci}: {told} (kernel command line)") if told else unread(f"{entry.pci} IOMMU type", kind)
            )
        elif kind.startswith("DMA"):
            translated.setdefault(kind, []).append(entry.pci)
        else:
            yield good(f"{entry.pci}: IOMMU group of type {kind}")
    if translated and context.node.host.architecture == "aarch64":
        # Grace reaches memory through SVA, and before Linux 6.11 its SMMU driver cannot bind that to an identity domain:
        # with iommu.passthrough=1 no CUDA context could be made (NVIDIA/NV-Kernels#22).
        for kind, addresses in translated.items():
            yield good(f"IOMMU groups of type {kind}, as CUDA on Arm may need them: {', '.join(addresses)}")
        return
    turned = any(bridge.redirects is True and bridge.place == "switch" for bridge in bridges(context))
    severity: Severity = "fail" if turned else "warn"
    for kind, addresses in translated.items():
        also = ", and ACS redirects peer traffic to it" if turned else ""
        text = f"IOMMU groups of type {kind}, not identity: {', '.join(addresses)}{also}"
        yield bad(text, severity=severity)


def _passed_through(node: Snapshot) -> str:
    """The word of the kernel command line that keeps the IOMMU from translating."""
    words = value_or(node.host.cmdline, "").split()
    off = ("iommu=pt", "iommu.passthrough=1", "iommu=off", "intel_iommu=off", "amd_iommu=off")
    return next((word for word in words if word in off), "")


@check(
    "PCI-FW-VENDOR249",
    area="pcie",
    severity="warn",
    title="An RDMA agent of this node was killed for lack of memory",
    why="Sporadic completions with status 5 and vendor error 249 were traced to an RDMA monitor that died while it held "
    "resources of the adapter; where none did, old firmware of the server platform is the next suspect.",
    fix="Give the agent more memory or stop it. If vendor error 249 goes on with ACS off, drain the node and update BIOS, BMC and "
    "PCIe switch firmware of the server.",
    reference="https://github.com/NVIDIA/nccl/issues/1405 https://github.com/NVIDIA/nccl/issues/1353",
    needs=(RDMA,),
)
def pci_fw_vendor249(context: Context) -> Iterator[Seen]:
    host = context.node.host
    killed: list[str] = []
    others: list[str] = []
    for entry in known(context.node.gpu.driver.kernel_log, "kernel log"):
        found = _KILLED.search(entry.line) if entry.topic == "oom" else None
        name = (found.group(1) or found.group(2)) if found else ""
        others += [name] if name else []
        if name and _RDMA_AGENT.search(name.rpartition("/")[2]):
            killed.append(name)
    server = f"server {value_or(host.vendor, 'of unknown make')}, BIOS of {value_or(host.bios_date, 'unknown date')}"
    if killed:
        names = ", ".join(dict.fromkeys(killed))
        yield bad(f"out of memory: {names} was killed in this boot (kernel log); {server}")
    else:
        told = (
            f"killed was {', '.join(dict.fromkeys(others))}, which is no RDMA agent" if others else "nothing was killed"
        )
        yield good(
            f"out of memory in this boot: {told} (kernel log); whether adapters report vendor error 249 and what "
            f"the firmware does was not looked at, it shows in the log of a job (--nccl-log)"
        )


@check(
    "PCI-LINK-DOWNGRADED",
    area="pcie",
    severity="fail",
    title="A PCIe link runs below what both its ends can do",
    why="Copies to the host and GPUDirect traffic of that card run at a fraction of the normal rate.",
    fix="Drain the node and reseat the card, check riser and retimer and the BIOS settings of the slot; replace the card if it stays.",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://github.com/open-mpi/hwloc/issues/653",
    needs=(GPU,),
)
def pci_link_downgraded(context: Context) -> Iterator[Seen]:
    yield from _gpu_links(context.node)
    # A guest sees the link of an emulated bridge in the configuration space of its adapters, not the real one.
    if value_or(context.node.rdma.devices, ()) and not is_virtual(context.node):
        yield from _nic_links(context)


def _gpu_links(node: Snapshot) -> Iterator[Seen]:
    for gpu in pcie.gpus(node):
        width, most = gpu.pcie_width, gpu.pcie_width_max
        if isinstance(width, Absent) or isinstance(most, Absent):
            yield unread(f"GPU {gpu.index} PCIe width", width if isinstance(width, Absent) else most)  # type: ignore[arg-type]
            continue
        slot = _slot_width(node, gpu)
        text = f"GPU {gpu.index}: x{width} of x{most} (NVML)"
        text += f" in a slot of {slot} lanes (sysfs)" if slot is not None and slot < most else ""
        yield bad(text) if width < min(most, slot or most) else good(text)
        now, best = gpu.pcie_generation, gpu.pcie_generation_max
        busy = value_or(gpu.utilization_percent, 0)
        if busy >= BUSY_PERCENT and isinstance(now, int) and isinstance(best, int) and now < best:
            yield bad(f"GPU {gpu.index}: Gen{now} of Gen{best} while {busy} % busy (NVML)", severity="warn")


def _slot_width(node: Snapshot, gpu: Gpu) -> int | None:
    """Lanes of the bridge above a GPU; None in a guest, whose bridges are emulated, and where they are not known."""
    entry = pcie.function(node, gpu.pci)
    above = pcie.function(node, entry.upstream[-1]) if entry is not None and entry.upstream else None
    if above is None or value_or(node.host.virtualization, "none") != "none":
        return None
    return value_or(above.width_max, 0) or None


def _nic_links(context: Context) -> Iterator[Seen]:
    seen: set[str] = set()
    for nic in nics.fabric(context):
        if nic.device.name in seen or isinstance(nic.device.physfn, str):  # a virtual function has no link of its own
            continue
        seen.add(nic.device.name)
        entry = pcie.function(context.node, nic.device.pci)
        if entry is None:
            yield unread(f"{nic.device.name} PCIe link", Absent("not_found", "its function is not in the PCI tree"))
        else:
            yield from _nic_link(context.node, nic, entry)


def _nic_link(node: Snapshot, nic: nics.Nic, entry: PciFunction) -> Iterator[Seen]:
    slot = pcie.function(node, entry.upstream[-1]) if entry.upstream else None
    for fact in (entry.speed_gts, entry.speed_max_gts, entry.width, entry.width_max):
        if isinstance(fact, Absent):
            if fact.absent != "unsupported":  # unsupported: part of the root complex, there is no link
                yield unread(f"{nic.device.name} PCIe link", fact)
            return
    speed, width = known(entry.speed_gts), known(entry.width)
    most_speed, most_width = known(entry.speed_max_gts), known(entry.width_max)
    by_slot = (value_or(slot.speed_max_gts, most_speed), value_or(slot.width_max, most_width)) if slot else None
    able = (min(most_speed, by_slot[0]), min(most_width, by_slot[1])) if by_slot else (most_speed, most_width)
    text = f"{nic.device.name} ({entry.pci}): {speed:g} GT/s x{width}"
    if speed < able[0] or width < able[1]:
        yield bad(f"{text}, adapter and slot can do {able[0]:g} GT/s x{able[1]} (sysfs)")
        return
    carries, rate = slot_gbps(node, nic), value_or(nics.nominal_gbps(nic, node), 0.0)
    if carries is not None and nic.active and carries < rate:
        yield bad(
            f"{text} carries {carries:.0f} Gb/s, the port runs at {rate:g} Gb/s (sysfs)",
            severity="warn",
            fix="At the next maintenance, on a drained node, move the adapter to a slot of its own generation and width.",
        )
    else:
        yield good(f"{text} (sysfs)")
