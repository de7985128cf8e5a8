"""What the verbs library itself tells of its devices: facts that ibv_devinfo prints, without that tool."""

from __future__ import annotations

from typing import Any

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent, Fact
from epctl.core.snapshot.rdma import Port, RdmaDevice
from epctl.probes import documents
from epctl.probes.source import Source
from epctl.probes.stages import Stages

LIMIT_S = 8.0
ATOMIC_CAPS = ("ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB")
"""enum ibv_atomic_cap of verbs.h, in the words of ibv_devinfo."""
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""enum ibv_mtu of verbs.h → bytes."""


def devices(source: Source) -> Fact[tuple[RdmaDevice, ...]]:
    """Devices that the verbs library lists, with their limits and MTUs."""
    return facts(source.document("verbs_query", LIMIT_S))


def facts(document: Any) -> Fact[tuple[RdmaDevice, ...]]:  # noqa: ANN401 - JSON
    """The collector's document as devices. Total over any JSON."""
    told = Stages(document)
    names = documents.texts(told.stage("list"), "devices")
    if isinstance(names, Absent):
        return names if names != NOT_PROBED else Absent("failed", "the collector verbs_query told no list of devices")
    lines = {documents.name_of(line, "device"): line for line in reversed(told.every("query"))}
    why = told.absent if told.absent != NOT_PROBED else NOT_READ
    return tuple(_device(name, lines.get(name, why)) for name in dict.fromkeys(names) if name)


def _device(name: str, line: Any) -> RdmaDevice:  # noqa: ANN401 - JSON
    attributes = documents.member(line, "attributes")
    return RdmaDevice(
        name,
        atomic_cap=_atomic_cap(documents.integer(attributes, "atomic_cap")),
        max_qp=_count(documents.integer(attributes, "max_qp")),
        max_qp_rd_atom=_count(documents.integer(attributes, "max_qp_rd_atom")),
        ports=documents.items(line, "ports", _port),
    )


def _port(entry: Any) -> Port | None:  # noqa: ANN401 - JSON
    number = documents.integer(entry, "port")
    if isinstance(number, Absent) or not 0 < number < 256:
        return None
    return Port(
        number,
        active_mtu=_mtu(documents.integer(entry, "active_mtu")),
        max_mtu=_mtu(documents.integer(entry, "max_mtu")),
    )


def _atomic_cap(code: Fact[int]) -> Fact[str]:
    if isinstance(code, Absent):
        return code
    if 0 <= code < len(ATOMIC_CAPS):
        return ATOMIC_CAPS[code]
    return Absent("unparsable", f"ibv_query_device gives atomic_cap {code}")


def _count(count: Fact[int]) -> Fact[int]:
    return Absent("unparsable", f"ibv_query_device gives {count}") if isinstance(count, int) and count < 0 else count


def _mtu(code: Fact[int]) -> Fact[int]:
    if isinstance(code, Absent):
        return code
    return MTU_BYTES.get(code, Absent("unsupported", f"ibv_query_port gives MTU code {code}"))
