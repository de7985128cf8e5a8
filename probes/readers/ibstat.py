"""Reads the text of `ibstat`: a block per device (`CA 'mlx5_0'`), and inside it a block per port."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from epctl.probes.readers import _infiniband as ib
from epctl.probes.reading import Reading, clean


class Port(Struct, frozen=True):
    """One port. `capability_mask` and `port_guid` stay as printed (0x…)."""

    port: int
    state: str | None = None
    """Logical state: Down, Initializing, Armed, Active, or ??? where ibstat does not know it."""
    phys_state: str | None = None
    rate_gbps: float | None = None
    rate_label: str | None = None
    """What stands in brackets behind the rate, such as FDR10."""
    base_lid: int | None = None
    lmc: int | None = None
    sm_lid: int | None = None
    capability_mask: str | None = None
    port_guid: str | None = None
    link_layer: str | None = None


class Device(Struct, frozen=True):
    """One device; `node_type` is the word in front of its name (CA, Switch, Router, iWARP RNIC, ???)."""

    name: str
    node_type: str
    ca_type: str | None = None
    n_ports: int | None = None
    firmware: str | None = None
    hardware: str | None = None
    node_guid: str | None = None
    system_image_guid: str | None = None
    ports: list[Port] = field(default_factory=list)


class Facts(Struct, frozen=True):
    """`active_ports` are the ports in state Active, as device/port."""

    devices: list[Device] = field(default_factory=list)
    active_ports: list[str] = field(default_factory=list)


class _PortBlock:
    def __init__(self, number: int) -> None:
        self.number = number
        self.fields: dict[str, str] = {}


class _DeviceBlock:
    def __init__(self, name: str, node_type: str) -> None:
        self.name = name
        self.node_type = node_type
        self.fields: dict[str, str] = {}
        self.ports: list[_PortBlock] = []

    def size(self) -> int:
        return len(self.fields) + sum(len(port.fields) for port in self.ports)


_HEADER = re.compile(r"(CA|Switch|Router|iWARP RNIC|usNIC|RNIC|\?\?\?|Unspecified):? '([^']{1,128})'$")
_PORT = re.compile(r"port ([0-9]{1,5}):", re.IGNORECASE)
_DEVICE_KEYS = {
    "number of ports": "n_ports",
    "firmware version": "firmware",
    "hardware version": "hardware",
    "node guid": "node_guid",
    "system image guid": "system_image_guid",
}
_PORT_KEYS = {
    "state": "state",
    "physical state": "phys_state",
    "rate": "rate_gbps",
    "base lid": "base_lid",
    "lmc": "lmc",
    "sm lid": "sm_lid",
    "capability mask": "capability_mask",
    "port guid": "port_guid",
    "link layer": "link_layer",
}
_NUMBERS = frozenset({"base_lid", "lmc", "sm_lid"})
_GUID = re.compile(r"0x[0-9a-fA-F]{16}")
_PANICS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("no_such_device", re.compile(r"'(?P<device>[^'\n]{1,128})' IB device can't be found")),
    ("permission", re.compile(r"^ibpanic:[^\n]{0,400}(?:Permission denied|Operation not permitted)", re.MULTILINE)),
    ("device_open_failed", re.compile(r"stat of IB device '(?P<device>[^'\n]{1,128})' failed")),
    ("no_devices", re.compile(r"can't list IB device names|No IB devices? found", re.IGNORECASE)),
    ("module_not_loaded", re.compile(r"can't init UMAD library")),
    ("tool_failed", re.compile(r"ibpanic:")),
)


def _error_in(text: str) -> dict[str, Any] | None:
    error = ib.missing_module(text) or ib.named_error(text, _PANICS)
    if error and error["kind"] == "module_not_loaded":
        error.setdefault("module", "ib_umad")
    return error


class _Listing:
    """Collects the blocks of a text line by line."""

    def __init__(self) -> None:
        self.devices: list[_DeviceBlock] = []
        self.port: _PortBlock | None = None
        self.problems = ib.Problems()
        self.cut_front = False

    def where(self) -> str:
        if not self.devices:
            return "start"
        name = self.devices[-1].name
        return f"{name} port {self.port.number}" if self.port else name

    def take(self, line: str) -> None:
        stripped = line.strip()
        if stripped.endswith("'") and (header := _HEADER.match(stripped[:200])):
            self.devices.append(_DeviceBlock(header.group(2), header.group(1)))
            self.port = None
        elif stripped.startswith("ibpanic:"):
            if self.problems.looks_at_strange_line():
                self._fail(stripped[:400])
        elif ":" in stripped:
            if not stripped.startswith("ibwarn:") and not ib.is_shell(stripped):
                self._take_field(stripped)
        elif self.devices and self.problems.looks_at_strange_line() and not ib.is_shell(stripped):
            self.problems.add("unparsable", self.where(), line)

    def _fail(self, line: str) -> None:
        error = _error_in(line) or {"kind": "tool_failed"}
        self.problems.add(error["kind"], error.get("device") or self.where(), line)

    def _take_field(self, line: str) -> None:
        key, _, value = line.partition(":")
        if not self.devices:
            self._before_first_device(key, line)
        elif port := _PORT.fullmatch(line[:20]):
            self.port = _PortBlock(int(port.group(1)))
            self.devices[-1].ports.append(self.port)
        elif self.port:
            self._set(self.port.fields, _PORT_KEYS.get(key.lower()), value.strip())
        else:
            name = "ca_type" if key.lower().endswith(" type") else _DEVICE_KEYS.get(key.lower())
            self._set(self.devices[-1].fields, name, value.strip())

    def _before_first_device(self, key: str, line: str) -> None:
        if not self.cut_front and (key.lower() in _PORT_KEYS or key.lower() in _DEVICE_KEYS):
            self.cut_front = True
            self.problems.add("truncated", "start", line)

    @staticmethod
    def _set(fields: dict[str, str], name: str | None, value: str) -> None:
        if name and value:
            fields.setdefault(name, value[:200])

    def take_tail(self, line: str) -> None:
        """The last line where no line end closes it: taken when it is surely whole, else it is the cut."""
        key, _, value = line.strip().partition(":")
        last_of_port = key.lower() == "link layer" and value.strip() in ib.LINK_LAYERS
        last_of_device = key.lower() == "system image guid" and _GUID.fullmatch(value.strip()) is not None
        if last_of_port or last_of_device or ib.is_shell(line) or line.startswith("ib"):
            self.take(line)
        elif line.strip() and self.devices:
            self.problems.add("truncated", self.where(), line)

    def find_gaps(self) -> None:
        """Reports what the blocks lack; what the last one lacks was cut."""
        if self.problems.is_cut():
            return
        ports = [port for device in self.devices for port in device.ports]
        names = {name for port in ports for name in port.fields} | (set(_PORT_KEYS.values()) - {"link_layer"})
        for device in self.devices:
            gap = self._gap(device, names, lists_ports=bool(ports))
            if gap:
                kind = "truncated" if device is self.devices[-1] else "incomplete"
                self.problems.add(kind, gap)

    @staticmethod
    def _gap(device: _DeviceBlock, names: set[str], *, lists_ports: bool) -> str | None:
        port = next((port for port in device.ports if not names <= port.fields.keys()), None)
        if port:
            return f"{device.name} port {port.number}"
        if "system_image_guid" not in device.fields and not device.ports:
            return device.name
        # One port out of several is what `ibstat DEVICE PORT` prints, without the lines about the device.
        count = ib.integer(device.fields.get("n_ports")) or 0
        return device.name if lists_ports and len(device.ports) < count else None


def _port(block: _PortBlock, device: str, problems: ib.Problems) -> Port:
    values: dict[str, Any] = dict(block.fields)
    if rate := block.fields.get("rate_gbps"):
        figure, _, label = rate.partition(" ")
        values["rate_gbps"] = ib.real(figure)
        values["rate_label"] = label.strip(" ()") or None
    for name in _NUMBERS & values.keys():
        values[name] = ib.integer(values[name])
    for name in block.fields:
        if values[name] is not None:
            continue
        problems.add("unparsable", f"{device} port {block.number}", f"{name}: {block.fields[name]}")
    return Port(port=block.number, **values)


def _devices(listing: _Listing) -> list[Device]:
    """Each device once: of repeated listings the later one counts, unless it is the shorter one."""
    latest: dict[str, _DeviceBlock] = {}
    for block in listing.devices:
        if block.name not in latest or block.size() >= latest[block.name].size():
            latest[block.name] = block
    devices: list[Device] = []
    for block in latest.values():
        values: dict[str, Any] = dict(block.fields)
        if "n_ports" in values:
            values["n_ports"] = ib.integer(values["n_ports"])
            if values["n_ports"] is None:
                listing.problems.add("unparsable", block.name, f"Number of ports: {block.fields['n_ports']}")
        ports = list({port.number: _port(port, block.name, listing.problems) for port in block.ports}.values())
        devices.append(Device(name=block.name, node_type=block.node_type, ports=ports, **values))
    return devices


def read(raw: bytes) -> Reading[Facts]:
    """The devices and ports that the text of `ibstat` lists."""
    text = clean(raw)
    lines, tail = ib.lines_and_tail(text)
    listing = _Listing()
    for line in lines:
        listing.take(line)
    listing.take_tail(tail)
    listing.find_gaps()
    devices = _devices(listing)
    active = [f"{d.name}/{p.port}" for d in devices for p in d.ports if p.state == "Active"]
    facts = Facts(devices, active)
    return ib.conclude(raw, text, facts, found=bool(devices), problems=listing.problems, error_in=_error_in)
