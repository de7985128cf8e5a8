"""Reads the text of `ibv_devinfo` and `ibv_devinfo -v`: a block per device (`hca_id: mlx5_0`) with a block per port."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from epctl.probes.readers import _infiniband as ib
from epctl.probes.reading import Reading, clean


class Gid(Struct, frozen=True):
    """One entry of a port's GID table; `type` is what stands behind the comma, such as RoCE v2."""

    index: int
    gid: str
    type: str | None = None


class Port(Struct, frozen=True):
    """One port. From `active_width` on the text says something with -v only."""

    port: int
    state: str | None = None
    max_mtu: int | None = None
    """Bytes, as is `active_mtu`."""
    active_mtu: int | None = None
    sm_lid: int | None = None
    port_lid: int | None = None
    port_lmc: str | None = None
    link_layer: str | None = None
    active_width: int | None = None
    """Number of lanes."""
    active_speed_gbps_per_lane: float | None = None
    rate_gbps: float | None = None
    """Width times the speed of a lane."""
    effective_gbps: float | None = None
    """What the device says that it delivers over all lanes; newer versions only."""
    phys_state: str | None = None
    gids: list[Gid] = field(default_factory=list)


class Device(Struct, frozen=True):
    """One device; GUIDs, `vendor_id` and `hw_ver` stay as printed."""

    name: str
    transport: str | None = None
    firmware: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    vendor_id: str | None = None
    vendor_part_id: int | None = None
    hw_ver: str | None = None
    board_id: str | None = None
    phys_port_cnt: int | None = None
    atomic_cap: str | None = None
    ports: list[Port] = field(default_factory=list)
    max_qp: int | None = None
    max_qp_rd_atom: int | None = None
    """Outstanding RDMA reads and atomics of a queue pair as responder; like `max_qp` with -v only."""


class Facts(Struct, frozen=True):
    devices: list[Device] = field(default_factory=list)


class _PortBlock:
    def __init__(self, number: int) -> None:
        self.number = number
        self.fields: dict[str, str] = {}
        self.gids: dict[int, Gid] = {}


class _DeviceBlock:
    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, str] = {}
        self.ports: list[_PortBlock] = []
        self.is_verbose = False

    def size(self) -> int:
        return len(self.fields) + sum(len(port.fields) + len(port.gids) for port in self.ports)


_SAME_NAME = (
    "transport node_guid sys_image_guid vendor_id vendor_part_id hw_ver board_id phys_port_cnt atomic_cap max_qp"
    " max_qp_rd_atom"
)
_DEVICE_KEYS = {"fw_ver": "firmware"} | {name: name for name in _SAME_NAME.split()}
_PORT_KEYS = {
    "state": "state",
    "max_mtu": "max_mtu",
    "active_mtu": "active_mtu",
    "sm_lid": "sm_lid",
    "port_lid": "port_lid",
    "port_lmc": "port_lmc",
    "link_layer": "link_layer",
    "active_width": "active_width",
    "active_speed": "active_speed_gbps_per_lane",
    "effective_speed": "effective_gbps",
    "phys_state": "phys_state",
}
_PLAIN_KEYS = frozenset({"state", "max_mtu", "active_mtu", "sm_lid", "port_lid", "port_lmc"})
_DEVICE_NUMBERS = frozenset({"vendor_part_id", "phys_port_cnt", "max_qp", "max_qp_rd_atom"})
_PORT_NUMBERS = frozenset({"sm_lid", "port_lid"})
_SPEED_OF_CODE = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}
"""Gb/s per lane: the code in brackets says it where an old library calls the speed invalid."""
_LANES_OF_CODE = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_GID_KEY = re.compile(r"GID\[ *([0-9]{1,5})\]")
_LISTED_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
_COMPLAINTS = ("Failed ", "Couldn't ", "No ", "IB device", "libibverbs", "Unable ")
_LIST_HEADING = re.compile(r"([0-9]{1,5}) HCAs? found:")
_ERRORS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("no_such_device", re.compile(r"IB device '(?P<device>[^'\n]{1,128})' wasn't found")),
    ("no_devices", re.compile(r"No IB devices found|^0 HCAs? found", re.MULTILINE)),
    ("permission", re.compile(r"^Failed to [^\n]*(?:Permission denied|not permitted)", re.MULTILINE)),
    ("module_not_loaded", re.compile(r"Failed to get IB devices list|couldn't read uverbs ABI version")),
    (
        "unsupported",
        re.compile(r"kernel ABI version \d{1,9} (?:doesn't match|is too)|No matching (?:driver|port)", re.ASCII),
    ),
    ("device_open_failed", re.compile(r"^Failed to (?:open|query)[^\n]*|^Couldn't get context[^\n]*", re.MULTILINE)),
)


def _error_in(text: str) -> dict[str, Any] | None:
    return ib.named_error(text, _ERRORS)


def _without_code(value: str) -> tuple[str, int | None]:
    """`PORT_ACTIVE (4)` as its words and its code."""
    if value.endswith(")"):
        words, _, code = value[:-1].rpartition("(")
        number = ib.integer(code)
        if words and number is not None:
            return words.strip(), number
    return value, None


class _Listing:
    """Collects the blocks of a text line by line."""

    def __init__(self) -> None:
        self.devices: list[_DeviceBlock] = []
        self.port: _PortBlock | None = None
        self.is_name_list = False
        self.cut_front = False
        self.problems = ib.Problems()

    def where(self) -> str:
        if not self.devices:
            return "start"
        name = self.devices[-1].name
        return f"{name} port {self.port.number}" if self.port else name

    def take(self, line: str) -> None:
        stripped = line.strip()[:400]
        key, colon, value = stripped.partition(":")
        value = value.strip()
        if key == "hca_id" and value:
            self.devices.append(_DeviceBlock(value))
            self.port = None
        elif _LIST_HEADING.fullmatch(stripped):
            self.is_name_list = True
        elif self.is_name_list and _LISTED_NAME.fullmatch(stripped):
            self.devices.append(_DeviceBlock(stripped))
        elif line.startswith(_COMPLAINTS) and (error := _error_in(stripped)):
            self.problems.add(error["kind"], error.get("device") or self.where(), stripped)
        elif colon and value:
            self._take_field(key, value, stripped)

    def _take_field(self, key: str, value: str, line: str) -> None:
        if not self.devices:
            if (key in _PORT_KEYS or key in _DEVICE_KEYS) and not self.cut_front:
                self.cut_front = True
                self.problems.add("truncated", "start", line)
        elif key == "port":
            self._take_port(value, line)
        elif self.port is None:
            self.devices[-1].is_verbose |= key in {"max_mr_size", "max_qp"}
            if name := _DEVICE_KEYS.get(key):
                self.devices[-1].fields.setdefault(name, value)
        elif gid := _GID_KEY.fullmatch(key):
            address, _, kind = value.partition(",")
            index = int(gid.group(1))
            self.port.gids[index] = Gid(index, address.strip(), kind.strip() or None)
        elif name := _PORT_KEYS.get(key):
            self.port.fields.setdefault(name, value)

    def _take_port(self, value: str, line: str) -> None:
        number = ib.integer(value)
        if number is None:  # what follows must not be taken for the port before it
            self.port = None
            self.problems.add("unparsable", f"{self.devices[-1].name} port", line)
        else:
            self.port = _PortBlock(number)
            self.devices[-1].ports.append(self.port)

    def take_tail(self, line: str) -> None:
        """The last line where no line end closes it: taken when it is surely whole, else it is the cut."""
        key, _, value = (part.strip() for part in line.partition(":"))
        gid, _, kind = (part.strip() for part in value.partition(","))
        whole = (
            (key == "link_layer" and value in ib.LINK_LAYERS)
            or (key in _PORT_KEYS and _without_code(value)[1] is not None)
            or (key == "effective_speed" and value.endswith("Gbps"))
            or (
                _GID_KEY.fullmatch(key) is not None
                and (kind[-2:] in {"v1", "v2"} or (not kind and ib.is_full_gid(gid)))
            )
        )
        if whole or not self.devices or self.is_name_list or not line.strip() or line[0] not in " \t":
            self.take(line)
        else:
            self.problems.add("truncated", self.where(), line)

    def find_gaps(self, *, is_closed: bool) -> None:
        """Reports what the blocks lack; what the last one lacks was cut. A blank line closes a whole text."""
        if self.is_name_list or self.problems.is_cut():
            return
        ports = [port for device in self.devices for port in device.ports]
        names = _PLAIN_KEYS | ({"link_layer"} if any("link_layer" in port.fields for port in ports) else set())
        failed = {where.partition(" ")[0] for where in self.problems.places()}
        for device in self.devices:
            gap = None if device.name in failed else self._gap(device, names)
            count = ib.integer(device.fields.get("phys_port_cnt")) or 0
            if not gap and not is_closed and device is self.devices[-1] and len(device.ports) < count:
                # With -i only one port is listed, and behind it comes the blank line.
                gap = device.name
            if gap:
                kind = "truncated" if device is self.devices[-1] else "incomplete"
                self.problems.add(kind, gap)

    @staticmethod
    def _gap(device: _DeviceBlock, names: frozenset[str] | set[str]) -> str | None:
        needed = names | {"active_width", "active_speed_gbps_per_lane"} if device.is_verbose else names
        for port in device.ports:
            if not needed <= port.fields.keys():
                return f"{device.name} port {port.number}"
        return None if device.ports else device.name


def _lanes(value: str) -> int | None:
    words, code = _without_code(value)
    return ib.integer(words.removesuffix("X")) or _LANES_OF_CODE.get(code or 0)


def _speed(value: str) -> float | None:
    words, code = _without_code(value)
    return ib.real(words.removesuffix("Gbps").strip()) or _SPEED_OF_CODE.get(code or 0)


def _port(block: _PortBlock, device: str, problems: ib.Problems) -> Port:
    values: dict[str, Any] = {}
    for name, value in block.fields.items():
        words, _ = _without_code(value)
        if name == "active_width":
            values[name] = _lanes(value)
        elif name in {"active_speed_gbps_per_lane", "effective_gbps"}:
            values[name] = _speed(value)
        elif name in _PORT_NUMBERS or name in {"max_mtu", "active_mtu"}:
            values[name] = ib.integer(words)
        else:
            values[name] = words
        if values[name] is None and not value.startswith("invalid"):
            problems.add("unparsable", f"{device} port {block.number} {name}", value)
    width, speed = values.get("active_width"), values.get("active_speed_gbps_per_lane")
    rate = width * speed if width and speed else None
    return Port(port=block.number, rate_gbps=rate, gids=list(block.gids.values()), **values)


def _device(block: _DeviceBlock, problems: ib.Problems) -> Device:
    values: dict[str, Any] = {}
    for name, value in block.fields.items():
        values[name] = ib.integer(value) if name in _DEVICE_NUMBERS else _without_code(value)[0]
        if values[name] is None:
            problems.add("unparsable", f"{block.name} {name}", value)
    ports = {port.number: _port(port, block.name, problems) for port in block.ports}
    return Device(name=block.name, ports=list(ports.values()), **values)


def read(raw: bytes) -> Reading[Facts]:
    """The devices and ports that the text lists; of repeated listings the later one counts, unless it is shorter."""
    text = clean(raw)
    lines, tail = ib.lines_and_tail(text)
    listing = _Listing()
    for line in lines:
        listing.take(line)
    listing.take_tail(tail)
    listing.find_gaps(is_closed=text.endswith("\n\n"))
    latest: dict[str, _DeviceBlock] = {}
    for block in listing.devices:
        if block.name not in latest or block.size() >= latest[block.name].size():
            latest[block.name] = block
    facts = Facts([_device(block, listing.problems) for block in latest.values()])
    found = bool(facts.devices)
    return ib.conclude(raw, text, facts, found=found, problems=listing.problems, error_in=_error_in)
