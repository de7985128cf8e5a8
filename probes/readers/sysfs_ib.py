"""Reads the attributes of /sys/class/infiniband, from text of one `path:value` per line (as `grep -r .` prints them)
with `path -> target` for symbolic links, or from a mapping of paths that somebody read: `devices_of`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping  # noqa: TC003 - resolved at run time
from typing import Any

from msgspec import Struct, field

from epctl.probes.reading import Problem, Reading, clean
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


class Facts(Struct, frozen=True):
    devices: list[Device] = field(default_factory=list)


_PCI = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?![0-9a-fA-F])")
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) Gb/sec(?: \(([0-9]{1,3})X ?([A-Za-z0-9]{0,12})\))?")
_PATH = re.compile(
    r"(?:\./)?([\w.-]{1,64}/(?:ports/|device\b|board_id|fw_ver|hca_type|hw_rev|node_|sys_image_guid|hw_counters/|power/|uevent|dev\b))",
    re.ASCII,
)
_DEVICE_FILES = {
    "board_id": "board_id",
    "fw_ver": "firmware",
    "hca_type": "hca_type",
    "hw_rev": "hw_rev",
    "node_guid": "node_guid",
    "sys_image_guid": "sys_image_guid",
    "node_desc": "node_desc",
}
_TEXTS = frozenset({"state", "phys_state", "rate", "link_layer"})
"""Attributes that every kernel has for every port."""
_UNSET = "0000:0000:0000:0000:0000:0000:0000:0000"
_NO_SUCH_TREE = re.compile(r"/sys/class/infiniband/?'?: (?:No such file|Datei oder)")
_ROOT = "/infiniband/"


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
    rate = _RATE.fullmatch(files.get("rate", ""))
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
    for target in (links.get("device", ""), links.get("", "").partition(_ROOT)[0]):
        if found := _PCI.findall(target[-4096:]):
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
        netdevs=list(netdevs),
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


class _Tree:
    """Collects the lines of a text as files and links."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.names: dict[str, None] = {}
        self.events: dict[str, list[str]] = {}
        self.problems: list[Problem] = []

    def take(self, line: str) -> None:
        if complaint := ib.complaint(line):
            self._take_complaint(*complaint, line)
            return
        left, arrow, target = line.partition(" -> ")
        entry = _relative(left.split()[-1] if arrow and left.strip() else line)
        if entry is None:
            if line.strip() and not ib.is_shell(line) and self.names:
                self.problems.append(Problem("unparsable", next(reversed(self.names)), line.strip()[:200]))
        elif arrow and ":" not in entry:
            self._name(entry)
            self.links[entry] = target.strip()
        else:
            self._take_file(entry, line)

    def _name(self, path: str) -> None:
        self.names.setdefault(path.partition("/")[0])

    def _take_file(self, entry: str, line: str) -> None:
        path, colon, value = entry.partition(":")
        if not colon:
            self.problems.append(Problem("unparsable", path[-200:], line.strip()[:200]))
            return
        self._name(path)
        if path.endswith("/uevent"):
            self.events.setdefault(path, []).append(value)
        else:
            self.files[path] = value.strip()

    def _take_complaint(self, kind: str, path: str, line: str) -> None:
        inner = (_relative(path) or "").partition("/")[2]
        is_optional = inner.startswith("device/") and inner not in {"device/numa_node", "device/uevent"}
        # The kernel answers "Invalid argument" for unused rows of a GID table and for counters that a device lacks.
        is_absent = kind == "unsupported" and ("gid_attrs/" in inner or "counters/" in inner)
        if kind != "harmless" and not is_optional and not is_absent:
            self.problems.append(Problem(kind, path[-200:], line.strip()[:200]))

    def take_tail(self, line: str) -> None:
        """The last line where no line end closes it: taken when its value is surely whole, else it is the cut."""
        entry = _relative(line)
        _, _, value = (entry or "").partition(":")
        whole = _RATE.fullmatch(value) or value in ib.LINK_LAYERS or ib.is_full_gid(value)
        if not line.strip() or whole or ib.complaint(line) or ib.is_shell(line) or _PCI.fullmatch(line[-12:]):
            self.take(line)
        elif entry is None and not self.names:
            return
        else:
            self.problems.append(Problem("truncated", (entry or line).partition(":")[0][-200:], line.strip()[:200]))

    def find_gaps(self, devices: tuple[Device, ...]) -> None:
        """Reports values that cannot be read, and ports without the attributes that every port has."""
        unreadable = {problem.where for problem in self.problems}
        for device, port in _ports(devices):
            folder = f"{device.name}/ports/{port.port}/"
            self._find_unparsable(folder, {"rate": port.rate_gbps, "lid": port.lid, "sm_lid": port.sm_lid})
            lacking = sorted(name for name in _TEXTS if folder + name not in self.files)
            if lacking and not any(folder in where for where in unreadable):
                kind = "truncated" if device is devices[-1] else "incomplete"
                self.problems.append(Problem(kind, folder + lacking[0]))

    def _find_unparsable(self, folder: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is None and self.files.get(folder + name):
                self.problems.append(Problem("unparsable", folder + name, self.files[folder + name][:200]))


def _ports(devices: tuple[Device, ...]) -> Iterator[tuple[Device, Port]]:
    return ((device, port) for device in devices for port in device.ports)


def _relative(line: str) -> str | None:
    """What stands behind /sys/class/infiniband/ in `line`, None where there is no path in it."""
    if (at := line.find(_ROOT, 0, 4096)) >= 0 and line.startswith(("/", ".")):
        entry = line[at + len(_ROOT) :].lstrip("/")
        return entry.replace("//", "/") if "//" in entry else entry
    return line.removeprefix("./") if _PATH.match(line[:256]) else None


def read(raw: bytes) -> Reading[Facts]:
    """The devices and ports that the lines of text describe; of a path that comes twice the last value counts."""
    text = clean(raw)
    lines, tail = ib.lines_and_tail(text)
    tree = _Tree()
    for line in lines:
        tree.take(line)
    tree.take_tail(tail)
    files = tree.files | {path: "\n".join(values) for path, values in tree.events.items()}
    devices = devices_of(files, tree.links)
    tree.find_gaps(devices)
    ordered = {device.name: device for device in devices}
    facts = Facts([ordered[name] for name in tree.names])
    return ib.conclude(raw, text, facts, found=bool(devices), problems=tree.problems, error_in=_error_in)


def _error_in(text: str) -> dict[str, Any] | None:
    return ib.named_error(text, (("no_devices", _NO_SUCH_TREE),))
