"""Reads the attributes of /sys/class/infiniband from text of one `path:value` per line (as `grep -r .` prints them)
with `path -> target` for symbolic links. What read the tree itself calls `devices_of`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from epctl.probes.readers import _infiniband as ib
from epctl.probes.readers._sysfs_devices import PCI, RATE, ROOT, Device, Gid, Port, devices_of
from epctl.probes.reading import Reading, clean

__all__ = ["Device", "Facts", "Gid", "Port", "devices_of", "read"]


class Facts(Struct, frozen=True):
    devices: list[Device] = field(default_factory=list)


_PATH = re.compile(
    r"(?:\./)?([\w.-]{1,64}/(?:ports/|device\b|board_id|fw_ver|hca_type|hw_rev|node_|sys_image_guid|hw_counters/|power/|uevent|dev\b))",
    re.ASCII,
)
_EVERY_PORT = frozenset({"state", "phys_state", "rate", "link_layer"})
"""Attributes that every kernel has for every port."""
_STATE = re.compile(
    r"[0-9]: (?:NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER|Sleep|Polling|Disabled|PortConfigurationTraining|LinkUp"
    r"|LinkErrorRecovery|Phy Test|CA|<unknown>)"
)
"""Values that are whole though no line end follows them."""
_SIGNED = re.compile(r"-?[0-9]+")
_NO_SUCH_TREE = re.compile(r"/sys/class/infiniband/?'?: (?:No such file|Datei oder)")


class _Tree:
    """Collects the lines of a text as files and links."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.names: dict[str, None] = {}
        self.events: dict[str, list[str]] = {}
        self.problems = ib.Problems()

    def take(self, line: str) -> None:
        if complaint := ib.complaint(line):
            self._take_complaint(*complaint, line)
            return
        left, arrow, target = line.partition(" -> ")
        entry = _relative(left.split()[-1] if arrow and left.strip() else line)
        if entry is None:
            is_strange = self.names and not line.startswith("/sys/") and self.problems.looks_at_strange_line()
            if line and is_strange and not ib.is_shell(line):
                self.problems.add("unparsable", next(reversed(self.names)), line)
        elif arrow and ":" not in entry:
            self._name(entry)
            self.links[entry] = target.strip()
        else:
            self._take_file(entry, line)

    def _name(self, path: str) -> None:
        self.names.setdefault(path.partition("/")[0])

    def _take_file(self, entry: str, line: str) -> None:
        path, colon, value = entry.partition(":")
        if not colon or "/" not in path:
            self.problems.add("unparsable", path, line)
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
            self.problems.add(kind, path, line)

    def take_tail(self, line: str) -> None:
        """The last line where no line end closes it: taken when its value is surely whole, else it is the cut."""
        entry = _relative(line)
        _, _, value = (entry or "").partition(":")
        whole = any(
            test(value) for test in (RATE.fullmatch, _STATE.fullmatch, ib.LINK_LAYERS.__contains__, ib.is_full_gid)
        )
        if not line.strip() or whole or ib.complaint(line) or ib.is_shell(line) or PCI.fullmatch(line[-12:]):
            self.take(line)
        elif entry is None and not self.names:
            return
        else:
            self.problems.add("truncated", (entry or line).partition(":")[0][-200:], line)

    def find_gaps(self, devices: list[Device]) -> None:
        """Reports values that cannot be read, and ports without the attributes that the ports of this text have."""
        known = {(_relative(where) or where).partition("/")[0] for where in self.problems.places()}
        lists_all = any(device.node_guid for device in devices)
        present = {path.rpartition("/")[2] for path in self.files if path.count("/") == 3}
        required = sorted(_EVERY_PORT if lists_all else _EVERY_PORT & present)
        for device, port in _ports(devices):
            folder = f"{device.name}/ports/{port.port}/"
            self._find_unparsable(folder, {"rate": port.rate_gbps, "lid": port.lid, "sm_lid": port.sm_lid})
            lacking = next((name for name in required if folder + name not in self.files), None)
            if lacking and device.name not in known:
                self._add_gap(device, devices, folder + lacking)
        self._find_strange_numbers()
        for device in devices:
            if lists_all and not device.ports and device.name not in known:
                self._add_gap(device, devices, f"{device.name}/ports")

    def _add_gap(self, device: Device, devices: list[Device], where: str) -> None:
        if not self.problems.is_cut():
            self.problems.add("truncated" if device is devices[-1] else "incomplete", where)

    def _find_strange_numbers(self) -> None:
        """Reports numbers that no kernel prints, in paths and counters; `N/A` in place of a counter is none."""
        for path, value in self.files.items():
            parts = path.split("/")[1:]
            numbers = [parts[at + 1] for at in (0, 2) if len(parts) > at + 1 and parts[at] in {"ports", "gids"}]
            if "counters" in path and _SIGNED.fullmatch(value[:5000]):
                numbers.append(value)
            if any(ib.integer(number) is None for number in numbers):
                self.problems.add("unparsable", path, value[:200])

    def _find_unparsable(self, folder: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is None and self.files.get(folder + name):
                self.problems.add("unparsable", folder + name, self.files[folder + name][:200])


def _ports(devices: list[Device]) -> Iterator[tuple[Device, Port]]:
    return ((device, port) for device in devices for port in device.ports)


def _relative(line: str) -> str | None:
    """What stands behind /sys/class/infiniband/ in `line`, None where there is no path in it."""
    if (at := line.find(ROOT, 0, 4096)) >= 0 and line.startswith(("/", ".")):
        entry = line[at + len(ROOT) :].lstrip("/")
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
    by_name = {device.name: device for device in devices_of(files, tree.links)}
    devices = [by_name[name] for name in tree.names]
    tree.find_gaps(devices)
    return ib.conclude(raw, text, Facts(devices), found=bool(devices), problems=tree.problems, error_in=_error_in)


def _error_in(text: str) -> dict[str, Any] | None:
    return ib.named_error(text, (("no_devices", _NO_SUCH_TREE),))
