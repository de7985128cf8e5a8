"""The PCI tree in sysfs."""

from __future__ import annotations

import struct

from msgspec import Struct

from epctl.core.fact import Absent
from tests.samples.parts import Part

ROOT = "/sys/bus/pci/devices"
GROUPS = "/sys/kernel/iommu_groups"
ACS_OFFSET = 0x148
KEPT_BYTES = 0x150
"""The kernel gives root 4096 bytes of configuration space. What is behind ACS is cut, to keep the samples small."""
GEN3, GEN4, GEN5 = 8.0, 16.0, 32.0
"""Speeds of PCIe generations, GT/s."""
Content = str | bytes | Absent


class Function(Struct, frozen=True):
    """One function. `above`: bridges on the way to it, root port first; `link`: GT/s and lanes, as trained and at most."""

    pci: str
    vendor: str
    device: str
    pci_class: str
    host: str
    above: tuple[str, ...] = ()
    numa: int = 0
    cpus: str = ""
    link: tuple[float, int, float, int] | None = (GEN5, 16, GEN5, 16)
    driver: str = ""
    group: int = -1
    group_type: str = ""
    acs: int | None = 0
    """ACS Control of a bridge; None: it has no ACS."""
    infiniband: str = ""
    """RDMA device that sits on it."""

    @property
    def place(self) -> str:
        """Real path of its folder."""
        return "/".join((f"/sys/devices/pci{self.host}", *self.above, self.pci))


def tree(functions: tuple[Function, ...]) -> Part:
    """The functions as sysfs shows them to root."""
    files: dict[str, Content] = {}
    targets: dict[str, str | Absent] = {}
    folders: dict[str, tuple[str, ...]] = {}
    for entry in functions:
        folder = f"{ROOT}/{entry.pci}"
        targets[folder] = entry.place
        files |= {f"{folder}/{name}": content for name, content in _files(entry).items()}
        if entry.driver:
            targets[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{entry.driver}"
        if entry.group >= 0:
            targets[f"{folder}/iommu_group"] = f"{GROUPS}/{entry.group}"
            files[f"{GROUPS}/{entry.group}/type"] = entry.group_type + "\n"
        if entry.infiniband:
            folders[f"{folder}/infiniband"] = (entry.infiniband,)
    if not any(entry.group >= 0 for entry in functions):
        folders[GROUPS] = ()
    return Part(files, targets, folders)


def _files(entry: Function) -> dict[str, Content]:
    found: dict[str, Content] = {
        "vendor": f"0x{entry.vendor}\n",
        "device": f"0x{entry.device}\n",
        "class": f"0x{entry.pci_class}\n",
        "numa_node": f"{entry.numa}\n",
        "local_cpulist": entry.cpus + "\n",
    }
    if entry.link is not None:
        speed, width, most_speed, most_width = entry.link
        found |= {
            "current_link_speed": f"{speed:.1f} GT/s PCIe\n",
            "max_link_speed": f"{most_speed:.1f} GT/s PCIe\n",
            "current_link_width": f"{width}\n",
            "max_link_width": f"{most_width}\n",
        }
    if entry.pci_class == "060400":
        found["config"] = _config(entry)
    return found


def _config(entry: Function) -> bytes:
    """Type 1 header with ids and class, an AER capability at 0x100 as on any bridge, and ACS behind it."""
    raw = bytearray(KEPT_BYTES)
    struct.pack_into("<HHHHI", raw, 0, int(entry.vendor, 16), int(entry.device, 16), 0x0547, 0x0010, 0x06040000)
    raw[0x0E] = 1
    struct.pack_into("<I", raw, 0x100, 0x0001 | 2 << 16 | (ACS_OFFSET << 20 if entry.acs is not None else 0))
    if entry.acs is not None:
        struct.pack_into("<IHH", raw, ACS_OFFSET, 0x000D | 1 << 16, 0x005F, entry.acs)
    return bytes(raw)
