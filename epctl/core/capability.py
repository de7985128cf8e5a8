"""What the hardware of a node offers to EP: NVLink and RDMA bandwidth per GPU, RDMA atomics."""

from __future__ import annotations

from msgspec import Struct

from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, Unreadable, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.views import adapters, nics, pcie

PCIE_ENCODING = ((5.0, 8 / 10), (32.0, 128 / 130))
"""(up to GT/s, share of the raw bit rate that carries data): 8b/10b of PCIe 1 and 2, 128b/130b of PCIe 3 to 5."""
PCIE_FLIT = 236 / 256
"""The same of PCIe 6, whose 64 GT/s carry bits without encoding (1b/1b) in flits of 256 bytes, 236 of them for packets, the rest
for link layer, CRC and error correction. Source of all three: PCI Express Base Specification 6.1, table 1-1 and flit mode;
Linux drivers/pci/pci.h, PCIE_SPEED2MBS_ENC, has the encodings alone."""


class GpuLinks(Struct, frozen=True):
    """Bandwidth of one GPU, one direction."""

    gpu: int
    numa_node: Fact[int]
    nvlinks_active: Fact[int]
    nvlinks: Fact[int]
    nvlink_gbs: Fact[float]
    """Active links × the speed the driver prints for each, GB/s."""
    nvlink_states: str
    """One character a link in the order of their numbers: `|` active, `.` down, `?` unknown; '' when the links are unknown."""
    nics: tuple[str, ...]
    """RDMA ports paired with this GPU: the nearest ones, or its share of them when several GPUs have the same."""
    nic_path: str
    """PIX, PXB, PHB, NODE, SYS; '' when unknown."""
    rdma_nominal_gbps: Fact[float]
    """Line rate of its share of ports, Gb/s; bonds count all their members."""
    rdma_usable_gbps: Fact[float]
    """The same for ports that are active, limited by the PCIe slot of the adapter."""


class Capabilities(Struct, frozen=True):
    """Per GPU links, and RDMA atomics of the fabric ports' adapters: fast (ConnectX-8 or newer), plain, none."""

    gpus: tuple[GpuLinks, ...]
    atomics: Fact[str]
    """The weakest among the adapters in use; absent without any."""
    pci_atomic_mode: str = ""
    """PCI_ATOMIC_MODE of these adapters, `PCI_ATOMIC_MODE 4`, or which have what; '' where none tells it. DeepEP asks for 4:
    it makes atomics on GPU memory faster, whatever the adapter's generation."""


def capabilities(context: Context) -> Capabilities:
    """Pure arithmetic over the snapshot; never raises."""
    node = context.node
    try:
        fabric = nics.fabric(context)
    except Unreadable as error:
        fabric, missing = (), error.absent
    else:
        missing = Absent("not_found", "no RDMA device")
    gpus = value_or(node.gpu.gpus, ())
    pairs = {
        gpu.index: pcie.nearest(node, gpu, tuple(dict.fromkeys(nic.device.name for nic in fabric))) for gpu in gpus
    }
    return Capabilities(
        tuple(_links(node, gpu, fabric, pairs, missing) for gpu in gpus),
        _atomics(fabric, missing),
        _atomic_modes(fabric),
    )


def nvlink_gbs(gpu: Gpu) -> Fact[float]:
    """Sum over the active links of one GPU, GB/s in one direction."""
    if isinstance(gpu.links, Absent):
        return gpu.links
    total = 0.0
    for link in gpu.links:
        if isinstance(link.active, Absent):
            return link.active
        if link.active:
            if isinstance(link.speed_gbs, Absent):
                return link.speed_gbs
            total += link.speed_gbs
    return round(total, 3)


def slot_gbps(node: Snapshot, nic: nics.Nic) -> float | None:
    """Gb/s that the adapter's PCIe link carries in one direction as it is trained now; None when unknown, as in a virtual
    machine, whose PCI tree is the hypervisor's invention."""
    slot = pcie.function(node, nic.device.pci)
    if slot is None or isinstance(slot.speed_gts, Absent) or isinstance(slot.width, Absent):
        return None
    if value_or(node.host.virtualization, "none") != "none":
        return None
    share = next((share for limit, share in PCIE_ENCODING if slot.speed_gts <= limit), PCIE_FLIT)
    return slot.speed_gts * slot.width * share


def _links(
    node: Snapshot, gpu: Gpu, fabric: tuple[nics.Nic, ...], pairs: dict[int, Fact[pcie.Nearest]], missing: Absent
) -> GpuLinks:
    links = gpu.links
    active: Fact[int] = links if isinstance(links, Absent) else sum(link.active is True for link in links)
    number: Fact[int] = links if isinstance(links, Absent) else len(links)
    states = "".join(
        "?" if isinstance(link.active, Absent) else "|" if link.active else "." for link in value_or(links, ())
    )
    pair = pairs[gpu.index]
    if isinstance(pair, Absent) or not fabric:
        why = pair if isinstance(pair, Absent) and fabric else missing
        return GpuLinks(gpu.index, gpu.numa_node, active, number, nvlink_gbs(gpu), states, (), "", why, why)
    ports = tuple(nic for nic in fabric if nic.device.name in pair.devices)
    sharers = sum(isinstance(other, pcie.Nearest) and other.devices == pair.devices for other in pairs.values())
    nominal = sum(value_or(nics.nominal_gbps(nic, node), 0.0) for nic in ports) / sharers
    usable = _usable(node, tuple(nic for nic in ports if nic.active)) / sharers
    return GpuLinks(
        gpu.index,
        gpu.numa_node,
        active,
        number,
        nvlink_gbs(gpu),
        states,
        tuple(nic.label for nic in ports),
        pair.path,
        round(nominal, 3),
        round(usable, 3),
    )


def _usable(node: Snapshot, ports: tuple[nics.Nic, ...]) -> float:
    """Ports of one card share its slot, also where each port is a PCI function and an RDMA device of its own."""
    total = 0.0
    for card in dict.fromkeys(adapters.card(nic) for nic in ports):
        mine = [nic for nic in ports if adapters.card(nic) == card]
        rate = sum(value_or(nics.nominal_gbps(nic, node), 0.0) for nic in mine)
        slots = [slot for nic in mine if (slot := slot_gbps(node, nic)) is not None]
        total += min([rate, *slots[:1]])
    return total


def _atomics(fabric: tuple[nics.Nic, ...], missing: Absent) -> Fact[str]:
    kinds: list[str] = []
    for nic in fabric:
        if nic.active:
            kind = nics.atomics(nic.device)
            if isinstance(kind, Absent):
                return kind
            kinds.append(kind)
    if not kinds:
        return missing
    return next(kind for kind in ("none", "plain", "fast") if kind in kinds)


def _atomic_modes(fabric: tuple[nics.Nic, ...]) -> str:
    modes: dict[int, list[str]] = {}
    for device in dict.fromkeys(nic.device for nic in fabric if nic.active):
        if isinstance(device.pci_atomic_mode, int):
            modes.setdefault(device.pci_atomic_mode, []).append(device.name)
    if len(modes) == 1:
        return f"PCI_ATOMIC_MODE {next(iter(modes))}"
    told = ", ".join(f"{mode} ({' '.join(names)})" for mode, names in sorted(modes.items()))
    return f"PCI_ATOMIC_MODE {told}" if told else ""
