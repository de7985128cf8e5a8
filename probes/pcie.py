"""The PCIe tree as far as GPUs, NVSwitches and RDMA NICs hang on it."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, structs

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.host import PcieArea, PciFunction
from epctl.probes import pcie_lspci, sysfs
from epctl.probes.pci_config import Acs, acs_of, both
from epctl.probes.readers import lspci
from epctl.probes.source import Source
from epctl.probes.together import together

ROOT = "/sys/bus/pci/devices"
GROUPS = "/sys/kernel/iommu_groups"
TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
"""NCCL reads this file where NCCL_TOPO_FILE is not set (NCCL user guide, NCCL_TOPO_FILE)."""
NVIDIA = "10de"
_NVIDIA_CLASSES = ("0300", "0302", "0680")
"""VGA and 3D controllers, and NVSwitches (other bridge)."""
_INFINIBAND_CLASS = "0207"
_NETWORK_CLASS = "02"
_BRIDGE_CLASS = "0604"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_HEX = re.compile(r"0x([0-9a-f]{1,8})", re.I)
_GTS = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s")
_MAX_WIDTH = 32
MAX_FUNCTIONS = 20_000


class _Place(Struct, frozen=True):
    """Where a function hangs: addresses of the bridges above it, root port first, and the host bridge."""

    upstream: tuple[str, ...] = ()
    root: str = ""


def pcie(source: Source) -> PcieArea:
    """GPUs, NVSwitches, RDMA NICs and the bridges above them. Never raises."""
    return structs.replace(_tree(source), default_topology_file=_exists(source, TOPOLOGY))


def _exists(source: Source, path: str) -> Fact[bool]:
    found = source.target(path)
    if isinstance(found, Absent):
        return False if found.absent == "not_found" else found
    return True


def _tree(source: Source) -> PcieArea:
    groups = sysfs.names_or_none(source, GROUPS, "/sys/kernel")
    num_groups: Fact[int] = groups if isinstance(groups, Absent) else sum(name.isdigit() for name in groups)
    listed = sysfs.names_or_none(source, ROOT, "/sys/bus")
    if isinstance(listed, Absent):
        return _from_lspci(source, listed, num_groups)
    addresses = [name for name in listed[:MAX_FUNCTIONS] if _ADDRESS.fullmatch(name)]
    rdma = _rdma_addresses(source)
    wanted = [name for name in addresses if name in rdma or _is_wanted(source, name)]
    places = {name: _place(source, name) for name in wanted}
    bridges = dict.fromkeys(above for place in places.values() for above in place.upstream)
    tasks: dict[str, Any] = {}
    for name in sorted({*wanted, *bridges}):
        tasks[name] = lambda name=name: _function(source, name, places.get(name))
    done = together(tasks)
    functions = tuple(entry for entry in done.values() if isinstance(entry, PciFunction))
    notes = tuple(f"{name}: {entry}" for name, entry in done.items() if isinstance(entry, Absent))
    return PcieArea(functions, num_groups, notes[:20])


def _from_lspci(source: Source, why: Absent, num_groups: Fact[int]) -> PcieArea:
    found = source.run("lspci", "-vv")
    if isinstance(found, Absent):
        return PcieArea(why, num_groups)
    read = lspci.read(found.raw)
    if read.status in ("error", "empty"):
        message = str((read.error or {}).get("message", ""))[:200]
        return PcieArea(why, num_groups, (f"lspci -vv could not be read: {message or read.status}",))
    functions = pcie_lspci.functions(read.facts, found.raw)
    damage = tuple(f"lspci -vv: {problem.kind} {problem.where}".strip() for problem in read.problems[:10])
    return PcieArea(functions, num_groups, ("the PCI tree is that of lspci -vv, sysfs could not be read", *damage))


def _rdma_addresses(source: Source) -> frozenset[str]:
    """Functions that RDMA devices sit on; a subfunction's device leads to the function it is a part of."""
    devices = sysfs.names(source, "/sys/class/infiniband")
    if isinstance(devices, Absent):
        return frozenset()
    targets = (source.target(f"/sys/class/infiniband/{name}/device") for name in devices[:1024])
    found = (sysfs.pci_of(target) for target in targets if isinstance(target, str))
    return frozenset(address for address in found if address)


def _is_wanted(source: Source, name: str) -> bool:
    pci_class = _digits(source, name, "class", 6)
    if not pci_class:
        return False
    if pci_class.startswith(_INFINIBAND_CLASS):
        return True
    if pci_class.startswith(_NETWORK_CLASS):
        return bool(sysfs.first((sysfs.names(source, f"{ROOT}/{name}/infiniband"), ())))
    return pci_class.startswith(_NVIDIA_CLASSES) and _digits(source, name, "vendor", 4) == NVIDIA


def _digits(source: Source, name: str, file: str, width: int) -> str:
    """Hexadecimal digits of a file such as `0x030200`, '' when there are none."""
    found = sysfs.word(source, f"{ROOT}/{name}/{file}")
    match = _HEX.fullmatch(found) if isinstance(found, str) else None
    return match.group(1).lower().rjust(width, "0")[-width:] if match else ""


def _place(source: Source, name: str) -> _Place:
    """From the real path …/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0; with several host bridges (VMD) the last counts."""
    found = source.target(f"{ROOT}/{name}")
    if isinstance(found, Absent):
        return _Place()
    parts = found.lower().split("/")[-64:]
    hosts = [i for i, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)]
    if not hosts:
        return _Place()
    above = (part for part in parts[hosts[-1] + 1 :] if _ADDRESS.fullmatch(part) and part != name)
    return _Place(tuple(above), parts[hosts[-1]])


def _function(source: Source, name: str, place: _Place | None) -> PciFunction:
    folder = f"{ROOT}/{name}"
    place = place or _place(source, name)
    pci_class = _digits(source, name, "class", 6)
    group, kind = _iommu(source, folder)
    acs = _acs(source, folder, pci_class)
    return PciFunction(
        pci=name,
        vendor=_digits(source, name, "vendor", 4),
        device=_digits(source, name, "device", 4),
        pci_class=pci_class,
        upstream=place.upstream,
        root=place.root,
        numa_node=sysfs.numa_node(source, f"{folder}/numa_node"),
        speed_gts=_speed(source, f"{folder}/current_link_speed"),
        speed_max_gts=_speed(source, f"{folder}/max_link_speed"),
        width=_width(source, f"{folder}/current_link_width"),
        width_max=_width(source, f"{folder}/max_link_width"),
        iommu_group=group,
        iommu_type=kind,
        acs_source_validation=acs.source_validation,
        acs_request_redirect=acs.request_redirect,
        driver=sysfs.base(source, f"{folder}/driver"),
    )


def _speed(source: Source, path: str) -> Fact[float]:
    """`32.0 GT/s PCIe`; `Unknown` for functions without a link of their own (virtual functions, parts of the root complex)."""
    found = sysfs.word(source, path)
    if isinstance(found, Absent):
        return found
    match = _GTS.match(found)
    if match:
        return float(match.group(1))
    if found.lower().startswith("unknown"):
        return Absent("unsupported", "the link has no speed")
    return Absent("unparsable", f"{path} holds no speed", found[:80])


def _width(source: Source, path: str) -> Fact[int]:
    """Lanes; the kernel says 0 or 255 for functions without a link of their own."""
    found = sysfs.integer(source, path)
    if isinstance(found, Absent) or 0 < found <= _MAX_WIDTH:
        return found
    return Absent("unsupported", "the link has no width")


def _iommu(source: Source, folder: str) -> tuple[Fact[int], Fact[str]]:
    found = sysfs.base(source, f"{folder}/iommu_group")
    if isinstance(found, Absent):
        return found, found
    number = sysfs.integer_of(found, f"{folder}/iommu_group")
    return number, number if isinstance(number, Absent) else sysfs.word(source, f"{GROUPS}/{number}/type")


def _acs(source: Source, folder: str, pci_class: str) -> Acs:
    """Of bridges alone: they decide on the way of requests, and reading the whole configuration space of a device is no
    small thing to it."""
    if not pci_class.startswith(_BRIDGE_CLASS):
        return both(Absent("unsupported", "not a bridge"))
    raw = source.read(f"{folder}/config")
    return both(raw) if isinstance(raw, Absent) else acs_of(raw)
