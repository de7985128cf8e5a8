"""Priority flow control of RoCE interfaces: `dcb` of iproute2, else `mlnx_qos` of the vendor's driver package."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.rdma import NetDev, RdmaDevice
from epctl.probes.source import Output, Source
from epctl.probes.together import together

NUM_PRIORITIES = 8
TIMEOUT_S = 3.0
_ENABLED = re.compile(
    r"PFC configuration:\s{0,80}\n[^\n]{0,20}priority[^\n]{0,200}\n\s{0,20}enabled((?:[ \t]+[01]){8})\b", re.ASCII
)
_NONE = re.compile(r"not supported|attribute not found|no such device", re.I)
_NOT_ROCE = Absent("unsupported", "carries no RoCE port")


def with_pfc(
    source: Source, interfaces: Fact[tuple[NetDev, ...]], devices: Fact[tuple[RdmaDevice, ...]]
) -> Fact[tuple[NetDev, ...]]:
    """`interfaces` with the priorities that are lossless, asked of those below Ethernet ports of RDMA devices alone."""
    if isinstance(interfaces, Absent) or isinstance(devices, Absent):
        return interfaces
    roce = {
        name for device in devices if _is_roce(device) and isinstance(device.netdevs, tuple) for name in device.netdevs
    }
    wanted = [entry.name for entry in interfaces if entry.name in roce and entry.kind == "physical"]
    found = together({name: _question(source, name) for name in wanted}, num_threads=4)
    return tuple(structs.replace(entry, pfc_priorities=found.get(entry.name, _NOT_ROCE)) for entry in interfaces)


def _is_roce(device: RdmaDevice) -> bool:
    return isinstance(device.ports, tuple) and any(port.link_layer == "Ethernet" for port in device.ports)


def _question(source: Source, name: str) -> Callable[[], Fact[tuple[int, ...]]]:
    return lambda: priorities(source, name)


def priorities(source: Source, name: str) -> Fact[tuple[int, ...]]:
    """Lossless priorities of one interface."""
    said = source.run("dcb", "-j", "pfc", "show", "dev", name, timeout_s=TIMEOUT_S)
    found = said if isinstance(said, Absent) else _from_dcb(said)
    if not isinstance(found, Absent):
        return found
    other = source.run("mlnx_qos", "-i", name, timeout_s=TIMEOUT_S)
    if isinstance(other, Absent):
        return found
    match = _ENABLED.search(other.stdout[:65536].decode("utf-8", "replace").replace("\r", ""))
    if match is None:
        return Absent("unparsable", "mlnx_qos prints no PFC configuration", _line(other))
    return tuple(i for i, bit in enumerate(match.group(1).split()) if bit == "1")


def _from_dcb(said: Output) -> Fact[tuple[int, ...]]:
    """`{"pfc_cap": 8, …, "prio_pfc": [false, …]}`."""
    try:
        document: Any = msgspec.json.decode(said.stdout)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        message = _line(said)
        return Absent("unsupported" if _NONE.search(message) else "failed", "dcb printed no JSON", message)
    entry = document[0] if isinstance(document, list) and document else document
    flags = entry.get("prio_pfc", entry.get("prio-pfc")) if isinstance(entry, dict) else None
    if not isinstance(flags, list) or len(flags) != NUM_PRIORITIES or not all(isinstance(flag, bool) for flag in flags):
        return Absent("unparsable", "dcb names no priorities", _line(said))
    return tuple(i for i, flag in enumerate(flags) if flag)


def _line(said: Output) -> str:
    text = (said.stderr if said.stderr.strip() else said.stdout)[:400].decode("utf-8", "replace")
    return text.strip().split("\n")[0][:200]
