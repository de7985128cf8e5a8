"""Interprets the attributes of /sys/class/infiniband: from files and links by path to devices, ports and GIDs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from epctl.probes.readers import _infiniband as ib


class Gid(Struct, frozen=True):
    """One GID that is set; `type` is IB/RoCE v1, RoCE v2, or None where the kernel does not say."""

    index: int
    gid: str
    type: str | None = None
    netdev: str | None = None


class Port(Struct, frozen=True):
    """One port. The counters of data count units of four bytes; all of them count from the last reset on."""

    port: int
    state: str | None = None
    phys_state: str | None = None
    rate_gbps: float | None = None
    width: int | None = None
    """Number of lanes."""
    speed_label: str | None = None
    """Name of the speed of one lane: SDR, …, NDR, XDR; None where an old kernel does not print SDR."""
    link_layer: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    cap_mask: str | None = None
    gids: list[Gid] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    hw_counters: dict[str, int] = field(default_factory=dict)


class Device(Struct, frozen=True):
    """One device. `physfn` is the PCI address of the physical function where the device is a virtual one, `netdevs` are
    the interfaces on the same PCI function."""

    name: str
    pci: str | None = None
    numa_node: int | None = None
    board_id: str | None = None
    firmware: str | None = None
    hca_type: str | None = None
    hw_rev: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    node_type: str | None = None
    node_desc: str | None = None
    phys_port_cnt: int | None = None
    driver: str | None = None
    physfn: str | None = None
    netdevs: list[str] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    hw_counters: dict[str, int] = field(default_factory=dict)


PCI = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?![0-9a-fA-F])")
RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) Gb/sec(?: \(([0-9]{1,3})X ?([A-Za-z0-9]{0,12})\))?")
_DEVICE_FILES = {
    "board_id": "board_id",
    "fw_ver": "firmware",
    "hca_type": "hca_type",
    "hw_rev": "hw_rev",
    "node_guid": "node_guid",
    "sys_image_guid": "sys_image_guid",
    "node_desc": "node_desc",
}
_UNSET = "0000:0000:0000:0000:0000:0000:0000:0000"
ROOT = "/infiniband/"


def _behind_code(value: str | None) -> str | None:
    """`4: ACTIVE` as ACTIVE."""
    code, colon, words = (value or "").partition(":")
    return (words if colon and code.strip().isdigit() else value or "").strip() or None


def _numbers(files: Mapping[str, str], folder: str) -> dict[str, int]:
    """The files of `folder` that hold a number; some say N/A instead."""
    named = ((path.removeprefix(folder), ib.integer(value)) for path, value in files.items() if path.startswith(folder))
    return {name: number for name, number in named if number is not None and "/" not in name}


def gids_of(files: Mapping[str, str]) -> list[Gid]:
    """The GIDs among the files of one port, paths relative to ports/N; unset entries of the table are left out."""
    gids: list[Gid] = []
    for path, value in files.items():
        folder, _, number = path.rpartition("/")
        index = ib.integer(number) if folder == "gids" else None
        if index is not None and value and value != _UNSET:
            kind = files.get(f"gid_attrs/types/{number}") or None
            gids.append(Gid(index, value, kind, files.get(f"gid_attrs/ndevs/{number}") or None))
    return gids


def port_of(number: int, files: Mapping[str, str]) -> Port:
    """The port whose files are `files`, paths relative to ports/N."""
    rate = RATE.fullmatch(files.get("rate", ""))
    return Port(
        port=number,
        state=_behind_code(files.get("state")),
        phys_state=_behind_code(files.get("phys_state")),
        rate_gbps=float(rate.group(1)) if rate else None,
        width=int(rate.group(2)) if rate and rate.group(2) else None,
        speed_label=(rate.group(3) or None) if rate else None,
        link_layer=files.get("link_layer") or None,
        lid=ib.integer(files.get("lid")),
        sm_lid=ib.integer(files.get("sm_lid")),
        cap_mask=files.get("cap_mask") or None,
        gids=gids_of(files),
        counters=_numbers(files, "counters/"),
        hw_counters=_numbers(files, "hw_counters/"),
    )


def _events(text: str) -> dict[str, str]:
    """The NAME=value lines of a uevent file."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _pci(links: Mapping[str, str], events: Mapping[str, str]) -> str | None:
    """PCI address out of the device's links; a subfunction's is the one that it is a part of."""
    for target in (links.get("device", ""), links.get("", "").partition(ROOT)[0]):
        if found := PCI.findall(target[-4096:]):
            return str(found[-1]).lower()
    return events.get("PCI_SLOT_NAME") or None


def _base(target: str | None) -> str | None:
    return (target or "").rstrip("/").rpartition("/")[2] or None


def device_of(name: str, files: Mapping[str, str], links: Mapping[str, str]) -> Device:
    """The device whose files and links these are, paths relative to its folder ("" is the link to the folder)."""
    ports: dict[int, dict[str, str]] = {}
    for path, value in files.items():
        folder, _, rest = path.partition("/")
        number, _, inner = rest.partition("/")
        if folder == "ports" and (index := ib.integer(number)) is not None:
            ports.setdefault(index, {})[inner] = value
    events = _events(files.get("device/uevent", ""))
    node = ib.integer(files.get("device/numa_node"))
    netdevs = dict.fromkeys(path.split("/")[2] for path in [*files, *links] if path.startswith("device/net/"))
    return Device(
        name=name,
        pci=_pci(links, events),
        numa_node=node if node is not None and node >= 0 else None,
        node_type=_behind_code(files.get("node_type")),
        phys_port_cnt=ib.integer(files.get("phys_port_cnt")) or len(ports) or None,
        driver=_base(links.get("device/driver")) or events.get("DRIVER"),
        physfn=_base(links.get("device/physfn")),
        netdevs=[netdev for netdev in netdevs if netdev],
        ports=[port_of(number, inner) for number, inner in ports.items()],
        hw_counters=_numbers(files, "hw_counters/"),
        **{key: files.get(path) or None for path, key in _DEVICE_FILES.items()},
    )


def _by_device(paths: Mapping[str, str]) -> dict[str, dict[str, str]]:
    grouped: dict[str, dict[str, str]] = {}
    for path, value in paths.items():
        name, _, inner = path.partition("/")
        grouped.setdefault(name, {})[inner] = value.strip()
    return grouped


def devices_of(files: Mapping[str, str], links: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices of a tree, in the order of the mappings: content of each file and target of each link by its path
    relative to /sys/class/infiniband, such as mlx5_0/ports/1/state."""
    own_files, own_links = _by_device(files), _by_device(links)
    names = dict.fromkeys(path.partition("/")[0] for paths in (links, files) for path in paths)
    return tuple(device_of(name, own_files.get(name, {}), own_links.get(name, {})) for name in names)
