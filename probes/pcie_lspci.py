"""PCI functions from the text of `lspci -vv`, for recordings without sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.fact import NOT_READ, Absent, Fact
from epctl.core.snapshot.host import PciFunction
from epctl.probes.pci_config import Acs, both
from epctl.probes.readers import lspci
from epctl.probes.reading import clean

_CLASSES = {
    "3d controller": "030200",
    "vga compatible controller": "030000",
    "infiniband controller": "020700",
    "ethernet controller": "020000",
    "network controller": "028000",
    "pci bridge": "060400",
    "bridge": "068000",
}
"""Names of lspci (pci.ids) → class code."""
_VENDORS = {"nvidia": "10de", "mellanox": "15b3", "amazon": "1d0f", "broadcom": "14e4", "intel": "8086"}
_LSI = re.compile(r"broadcom / lsi|lsi logic", re.I)
_PLX = re.compile(r"plx technology", re.I)
_WANTED = ("0207", "0300", "0302", "0604", "0680")
_RDMA_DRIVERS = ("mlx5_core", "mlx4_core", "efa", "bnxt_en", "ice", "irdma", "erdma")
_HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", re.ASCII)
_BUSES = re.compile(r"\s{1,16}Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.ASCII)
_MAX_DEPTH = 32

_Bridges = dict[tuple[str, str], str]
"""(domain, secondary bus) → address of the bridge to that bus."""


def functions(facts: lspci.Facts, raw: bytes) -> tuple[PciFunction, ...]:
    """GPUs, NVSwitches, NICs, and the bridges above them. Ids of devices are unknown to this text, except for the vendor."""
    bridges = dict(_bridges(clean(raw)))
    listed = {_address(device.bdf): device for device in facts.devices}
    wanted = [pci for pci, device in listed.items() if _is_wanted(device)]
    ends = [pci for pci in wanted if not _class(listed[pci]).startswith("0604")]
    above = {pci for end in ends for pci in _upstream(end, bridges)}
    kept = [pci for pci in wanted if pci in ends or pci in above or not bridges]
    return tuple(_function(pci, listed[pci], bridges) for pci in kept)


def _address(bdf: str) -> str:
    return bdf if bdf.count(":") == 2 else f"0000:{bdf}"


def _class(device: lspci.Device) -> str:
    return _CLASSES.get(device.class_.lower(), "")


def _vendor(device: lspci.Device) -> str:
    name = device.name.lower()
    if _LSI.search(name):
        return "1000"
    return (
        "10b5"
        if _PLX.search(name)
        else next((vendor for word, vendor in _VENDORS.items() if name.startswith(word)), "")
    )


def _is_wanted(device: lspci.Device) -> bool:
    pci_class = _class(device)
    if pci_class.startswith(("0200", "0280")):
        return device.driver in _RDMA_DRIVERS
    if pci_class.startswith(("0300", "0302", "0680")):
        return _vendor(device) == "10de"
    return pci_class.startswith(_WANTED)


def _bridges(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Bridges by the bus behind them, from the line `Bus: primary=…` of their paragraphs."""
    current = ""
    for line in text.split("\n"):
        if found := _HEADER.match(line[:64].lower()):
            current = _address(found.group(1))
        elif current and (buses := _BUSES.match(line[:120])):
            yield (current.partition(":")[0], buses.group(2)), current


def _upstream(pci: str, bridges: _Bridges) -> tuple[str, ...]:
    """Bridges above a function, root port first."""
    found: list[str] = []
    domain, bus = pci.split(":")[:2]
    while len(found) < _MAX_DEPTH and (above := bridges.get((domain, bus))) and above not in found:
        found.append(above)
        bus = above.split(":")[1]
    return tuple(reversed(found))


def _function(pci: str, device: lspci.Device, bridges: _Bridges) -> PciFunction:
    upstream = _upstream(pci, bridges)
    top = (upstream or (pci,))[0].split(":")
    is_bridge = _class(device).startswith("0604")
    acs = _acs(device) if is_bridge else both(Absent("unsupported", "not a bridge"))
    link, hidden = device.link, _hidden(device)
    return PciFunction(
        pci=pci,
        vendor=_vendor(device),
        device="",
        pci_class=_class(device),
        upstream=upstream,
        # Without a bridge above it the text may lack its paragraph: then nothing is known of the host bridge.
        root=f"pci{top[0]}:{top[1]}" if upstream else "",
        numa_node=device.numa_node
        if device.numa_node is not None
        else Absent("not_found", "lspci prints no NUMA node"),
        speed_gts=_speed(link.sta_gt_s if link else None, hidden),
        speed_max_gts=_speed(link.cap_gt_s if link else None, hidden),
        width=_width(link.sta_width if link else None, hidden),
        width_max=_width(link.cap_width if link else None, hidden),
        iommu_group=device.iommu_group
        if device.iommu_group is not None
        else Absent("not_found", "lspci prints no group"),
        iommu_type=NOT_READ,
        acs_source_validation=acs.source_validation,
        acs_request_redirect=acs.request_redirect,
        driver=device.driver if device.driver else Absent("not_found", "lspci prints no driver in use"),
    )


def _speed(value: float | None, why: Absent) -> Fact[float]:
    return why if value is None else value


def _width(value: int | None, why: Absent) -> Fact[int]:
    return why if value is None else value


def _hidden(device: lspci.Device) -> Absent:
    if device.fell_off_bus:
        return Absent("failed", "the function does not answer (configuration space reads as ones)")
    if device.access_denied:
        return Absent("permission", "lspci shows capabilities to root only")
    return Absent("not_found", "lspci prints no link")


def _acs(device: lspci.Device) -> Acs:
    if device.acs_ctl is None:
        return both(
            _hidden(device)
            if device.access_denied or device.fell_off_bus
            else Absent("unsupported", "no ACS capability")
        )
    missing = Absent("unparsable", "the line ACSCtl is cut")
    return Acs(device.acs_ctl.get("SrcValid", missing), device.acs_ctl.get("ReqRedir", missing))
