"""RDMA devices from /sys/class/infiniband: the attributes are read here and interpreted by the reader of that tree."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.rdma import Gid, Port, RdmaDevice
from epctl.probes import sysfs
from epctl.probes.documents import is_int
from epctl.probes.readers import sysfs_ib
from epctl.probes.source import Source, text
from epctl.probes.together import together

T = TypeVar("T")

ROOT = "/sys/class/infiniband"
_DEVICE_FILES = ("node_guid", "sys_image_guid", "fw_ver", "board_id", "hca_type", "node_type", "device/uevent")
_PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
_LINKS = ("device", "device/driver", "device/physfn")
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
_GID = re.compile(r"(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}")
_BRIDGE_CHIP = "MT4129"
"""Card type of the bridge to the NVSwitches of HGX B200 and B300, and of ordinary ConnectX-7 cards."""
BRIDGE_MARK = b"SW_MNG"
"""In the vital product data of that bridge (Fabric Manager User Guide, field SMDL)."""
_GAP = 32
"""The kernel fills the lowest free rows of a GID table (mlx5 has 256 of them): so many empty ones in a row end it."""
MAX_DEVICES = 1024
MAX_PORTS = 256
STATES = frozenset({"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"})
LINK_LAYERS = frozenset({"InfiniBand", "Ethernet", "Unspecified"})
RDMA_DRIVERS = {
    "bnxt_en": "bnxt_re",
    "hns3": "hns_roce",
    "i40e": "irdma",
    "ice": "irdma",
    "idpf": "irdma",
    "mana": "mana_ib",
    "qede": "qedr",
}
"""PCI driver → RDMA driver that sits on it, where the link below the RDMA device shows the former."""


class _Tree:
    """Files and links of one device, by path relative to /sys/class/infiniband; `lost`: what could not be read, and why."""

    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name = source, name
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.lost: dict[str, Absent] = {}

    def read(self, path: str) -> str:
        """Content of a file of the device, '' when it could not be read."""
        found = text(self.source, f"{ROOT}/{self.name}/{path}")
        if isinstance(found, Absent):
            self.lost[path] = found
            return ""
        self.files[f"{self.name}/{path}"] = found
        return found

    def follow(self, path: str) -> None:
        found = sysfs.target(self.source, f"{ROOT}/{self.name}/{path}")
        if isinstance(found, Absent):
            self.lost[path] = found
        else:
            self.links[f"{self.name}/{path}"] = found

    def names(self, path: str) -> tuple[str, ...]:
        found = sysfs.names(self.source, f"{ROOT}/{self.name}/{path}")
        if isinstance(found, Absent):
            self.lost[path] = found
            return ()
        return found

    def why(self, path: str) -> Absent:
        return self.lost.get(path) or Absent("not_found", f"{ROOT}/{self.name}/{path} says nothing")

    def read_all(self) -> None:
        for path in _LINKS:
            self.follow(path)
        for path in _DEVICE_FILES:
            self.read(path)
        for number in self.names("ports")[:MAX_PORTS]:
            if number.isascii() and number.isdigit() and len(number) < 6:
                self._read_port(f"ports/{number}")

    def _read_port(self, folder: str) -> None:
        for name in _PORT_FILES:
            self.read(f"{folder}/{name}")
        empty = 0
        for row in sorted(filter(_is_row, self.names(f"{folder}/gids")), key=int):
            gid = self.read(f"{folder}/gids/{row}")
            empty = 0 if gid not in ("", _ZERO) else empty + 1
            if empty >= _GAP:
                break
            if not empty:
                self.read(f"{folder}/gid_attrs/types/{row}")
                self.read(f"{folder}/gid_attrs/ndevs/{row}")
        for kind in ("counters", "hw_counters"):
            for name in self.names(f"{folder}/{kind}"):
                if name != "lifespan":
                    self.read(f"{folder}/{kind}/{name}")


def _is_row(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 6


def devices(source: Source) -> Fact[tuple[RdmaDevice, ...]]:
    """The devices that sysfs shows; none when /sys/class is there without the folder `infiniband`."""
    found = sysfs.names_or_none(source, ROOT, "/sys/class")
    if isinstance(found, Absent):
        return found
    done = together({name: lambda name=name: _device(source, name) for name in found[:MAX_DEVICES]})  # type: ignore[misc]
    return tuple(entry if isinstance(entry, RdmaDevice) else RdmaDevice(name) for name, entry in done.items())


def _device(source: Source, name: str) -> RdmaDevice:
    tree = _Tree(source, name)
    tree.read_all()
    read = next((entry for entry in sysfs_ib.devices_of(tree.files, tree.links) if entry.name == name), None)
    if read is None:
        return RdmaDevice(name, ports=tree.why("ports"))
    ca_type = sysfs.first((_or(read.hca_type, tree.why("hca_type")), _ca_type(source, name)))
    return RdmaDevice(
        name=name,
        driver=_or(_driver(read.driver), tree.why("device/driver")),
        pci=_or(sysfs.pci_of(read.pci or ""), tree.why("device")),
        numa_node=sysfs.numa_node(source, f"{ROOT}/{name}/device/numa_node"),
        ca_type=ca_type,
        board_id=_or(read.board_id, tree.why("board_id")),
        firmware=_or(read.firmware, tree.why("fw_ver")),
        node_guid=_or(read.node_guid, tree.why("node_guid")),
        sys_image_guid=_or(read.sys_image_guid, tree.why("sys_image_guid")),
        physfn=_or(sysfs.pci_of(tree.links.get(f"{name}/device/physfn", "")), tree.why("device/physfn")),
        global_tclass=_tclass(source, name),
        netdevs=sysfs.names_or_none(source, f"{ROOT}/{name}/device/net", f"{ROOT}/{name}/device"),
        ports=tree.why("ports") if "ports" in tree.lost else tuple(_port(tree, port) for port in read.ports),
        manages_nvswitch=_manages_nvswitch(tree, ca_type, read),
    )


def _manages_nvswitch(tree: _Tree, ca_type: Fact[str], read: sysfs_ib.Device) -> Fact[bool]:
    """The bridge is a physical ConnectX-7 function with InfiniBand ports; of others the slow vital product data are not read."""
    is_ib = any(port.link_layer == "InfiniBand" for port in read.ports)
    if ca_type != _BRIDGE_CHIP or not is_ib or f"{tree.name}/device/physfn" in tree.links:
        return False
    found = tree.source.read(f"{ROOT}/{tree.name}/device/vpd")
    return found if isinstance(found, Absent) else BRIDGE_MARK in found


def _or(value: T | None, why: Absent) -> Fact[T]:
    return why if value is None or value == "" else value


def _driver(name: str | None) -> str | None:
    """`mlx5_core.sf` (a subfunction's) is mlx5_core; a NIC's PCI driver is told by the RDMA driver on top of it."""
    plain = (name or "").partition(".")[0]
    return RDMA_DRIVERS.get(plain, plain) or None


def _ca_type(source: Source, name: str) -> Fact[str]:
    """The mlx drivers form `hca_type` as MT and the PCI device id in decimal."""
    vendor = sysfs.integer(source, f"{ROOT}/{name}/device/vendor")
    device = sysfs.integer(source, f"{ROOT}/{name}/device/device")
    if isinstance(device, int) and vendor == 0x15B3 and 0 < device < 0x10000:
        return f"MT{device}"
    return Absent("not_found", f"{ROOT}/{name}/hca_type does not exist")


def _tclass(source: Source, name: str) -> Fact[int]:
    """`Global tclass=106`; drivers without this file (inbox ones) have no such setting, which is the same as none set."""
    path = f"{ROOT}/{name}/tc/1/traffic_class"
    found = text(source, path)
    if isinstance(found, Absent):
        return 0 if found.absent == "not_found" else found
    if match := re.search(r"Global tclass\s{0,8}=\s{0,8}([0-9]{1,3})\b", found[:4096]):
        return int(match.group(1))
    return 0 if not found or "tclass" in found else Absent("unparsable", f"{path} names no traffic class", found[:80])


def _port(tree: _Tree, read: sysfs_ib.Port) -> Port:
    folder = f"ports/{read.port}"

    def value(name: str, found: T | None, allowed: frozenset[str] | None = None) -> Fact[T]:
        if found is None or (isinstance(found, int) and not is_int(found)):
            line = tree.files.get(f"{tree.name}/{folder}/{name}", "")
            return (
                Absent("unparsable", f"{name} of {tree.name}/{read.port}", line[:80])
                if line
                else tree.why(f"{folder}/{name}")
            )
        if allowed is not None and found not in allowed:
            return Absent("unparsable", f"{name} of {tree.name}/{read.port} is no known word", str(found)[:80])
        return found

    return Port(
        port=read.port,
        state=value("state", read.state, STATES),
        phys_state=value("phys_state", read.phys_state),
        rate_gbps=value("rate", read.rate_gbps),
        width_lanes=value("rate", read.width),
        link_layer=value("link_layer", read.link_layer, LINK_LAYERS),
        lid=value("lid", read.lid),
        sm_lid=value("sm_lid", read.sm_lid),
        gids=tree.lost.get(f"{folder}/gids")
        or tuple(_gid(tree, folder, gid) for gid in read.gids if _GID.fullmatch(gid.gid)),
        counters=tree.lost.get(f"{folder}/counters") or _counters(read.counters),
        hw_counters=tree.lost.get(f"{folder}/hw_counters") or _counters(read.hw_counters),
    )


def _gid(tree: _Tree, folder: str, read: sysfs_ib.Gid) -> Gid:
    return Gid(
        read.index,
        read.gid.lower(),
        _or(read.type, tree.why(f"{folder}/gid_attrs/types/{read.index}")),
        _or(read.netdev, _no_owner(tree.why(f"{folder}/gid_attrs/ndevs/{read.index}"))),
    )


def _no_owner(why: Absent) -> Absent:
    """The kernel answers EINVAL for a GID that belongs to no interface, as those of InfiniBand ports."""
    return Absent("not_found", "no interface owns this GID") if why.detail.endswith("Invalid argument") else why


def _counters(read: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((name, value) for name, value in read.items() if is_int(value))
