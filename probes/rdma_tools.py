"""RDMA devices from the texts of tools: ibv_devinfo, ibstat, rdma link, show_gids. They add what sysfs does not say, and
stand in for it in a recording that holds nothing but texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct, structs

from epctl.core.fact import NOT_READ, Absent, Fact
from epctl.core.snapshot.rdma import Gid, Port, RdmaDevice
from epctl.probes import rdma_words
from epctl.probes.readers import ibstat, ibv_devinfo, rdma_link, show_gids
from epctl.probes.reading import Reading
from epctl.probes.source import Output

_DRIVERS = {
    0x02C9: "mlx5_core",
    0x15B3: "mlx5_core",
    0x1D0F: "efa",
    0x14E4: "bnxt_re",
    0x8086: "irdma",
    0x1DED: "erdma",
}
"""Vendor id that the verbs layer tells (0x02c9 is Mellanox's IEEE id, the others are PCI vendors) → driver."""
_FIRST_MLX5 = 4113
"""MT4113 is Connect-IB, the first adapter of mlx5; lower ids belong to mlx4 and mthca (PCI ids of the kernel)."""


class Texts(Struct, frozen=True):
    """What each tool says; an Absent where it gave no text."""

    verbs: Reading[ibv_devinfo.Facts] | Absent
    stat: Reading[ibstat.Facts] | Absent
    links: Reading[rdma_link.Facts] | Absent = NOT_READ
    gids: Reading[show_gids.Facts] | Absent = NOT_READ
    query: Fact[tuple[RdmaDevice, ...]] = NOT_READ
    """What the verbs library told itself, where ibv_devinfo left something out."""


def reading(tool: Any, found: Output | Absent) -> Any:  # noqa: ANN401 - a reader's module
    """The reading of what a tool printed."""
    return found if isinstance(found, Absent) else tool.read(found.raw)


def status(read: Reading[Any] | Absent) -> Fact[Literal["ok", "partial", "error", "empty"]]:
    """Whether a tool's text could be read."""
    return read if isinstance(read, Absent) else read.status


def trouble(read: Reading[Any] | Absent, tool: str) -> Absent:
    """Why `tool` says nothing about something."""
    if isinstance(read, Absent):
        return read
    message = str((read.error or {}).get("message", ""))[:200]
    if read.status == "error":
        return Absent(
            "permission" if (read.error or {}).get("kind") == "permission" else "failed",
            f"{tool} ended with an error",
            message,
        )
    if read.problems:
        first = read.problems[0]
        return Absent(
            "unparsable", f"{tool} could be read in part ({first.kind} at {first.where or 'its start'})", first.line
        )
    return Absent("not_found", f"{tool} does not say it")


def device_names(read: Reading[Any] | Absent, tool: str) -> Fact[tuple[str, ...]]:
    """Devices that `tool` lists; none when it says that there are none."""
    if isinstance(read, Absent):
        return read
    if read.status == "error" and (read.error or {}).get("kind") != "no_devices":
        return trouble(read, tool)
    return tuple(device.name for device in read.facts.devices)


def mentioned(texts: Texts) -> tuple[str, ...]:
    """Every device that some tool names, in the order of the texts."""
    return tuple(dict.fromkeys(name for name in _names(texts)))


def _names(texts: Texts) -> Iterator[str]:
    if not isinstance(texts.query, Absent):
        yield from (device.name for device in texts.query)
    for listing in (texts.verbs, texts.stat):
        if not isinstance(listing, Absent):
            yield from (device.name for device in listing.facts.devices)
    if not isinstance(texts.links, Absent):
        yield from (link.device for link in texts.links.facts.links)
    if not isinstance(texts.gids, Absent):
        yield from (entry.device for entry in texts.gids.facts.entries)


def sources(name: str, texts: Texts) -> tuple[RdmaDevice, ...]:
    """The device as each tool tells it, the one that says most first."""
    found: list[RdmaDevice] = []
    if not isinstance(texts.verbs, Absent):
        found += [_from_verbs(device) for device in texts.verbs.facts.devices if device.name == name]
    if not isinstance(texts.query, Absent):
        found += [device for device in texts.query if device.name == name]
    if not isinstance(texts.stat, Absent):
        found += [_from_stat(device) for device in texts.stat.facts.devices if device.name == name]
    if not isinstance(texts.links, Absent):
        found += _from_links(name, texts.links.facts)
    if not isinstance(texts.gids, Absent):
        found += _from_gids(name, texts.gids.facts)
    return tuple(found)


def fill(device: RdmaDevice, others: tuple[RdmaDevice, ...]) -> RdmaDevice:
    """`device` with what it does not know taken from the first of `others` that does, ports by their number."""
    for other in others:
        device = _filled(device, other, skip=("name", "ports"))
        if isinstance(other.ports, tuple):
            own = device.ports if isinstance(device.ports, tuple) else ()
            device = structs.replace(device, ports=_merged_ports(own, other.ports))
    return device


def _merged_ports(own: tuple[Port, ...], other: tuple[Port, ...]) -> tuple[Port, ...]:
    further = {port.port: port for port in other}
    merged = [_filled(port, further.pop(port.port, port), skip=("port",)) for port in own]
    return tuple(merged + list(further.values()))


def _filled(one: Any, other: Any, skip: tuple[str, ...]) -> Any:  # noqa: ANN401 - a struct of facts
    wanted = (name for name in one.__struct_fields__ if name not in skip and isinstance(getattr(one, name), Absent))
    changes = {name: getattr(other, name) for name in wanted if not isinstance(getattr(other, name), Absent)}
    return structs.replace(one, **changes) if changes else one


def differences(device: RdmaDevice, others: tuple[RdmaDevice, ...]) -> Iterator[str]:
    """A line for each value that a tool tells otherwise than `device`."""
    for other in others:
        for name in ("firmware", "node_guid", "ca_type"):
            yield from _difference(device.name, name, getattr(device, name), getattr(other, name))
        ports = {port.port: port for port in other.ports} if isinstance(other.ports, tuple) else {}
        for port in device.ports if isinstance(device.ports, tuple) else ():
            for name in ("state", "link_layer", "lid"):
                if port.port in ports:
                    place = f"{device.name}/{port.port}"
                    yield from _difference(place, name, getattr(port, name), getattr(ports[port.port], name))


def _difference(place: str, name: str, one: Fact[Any], other: Fact[Any]) -> Iterator[str]:
    if not isinstance(one, Absent) and not isinstance(other, Absent) and one != other:
        yield f"{place}: {name} is {one} in sysfs, {other} in a tool's text; sysfs is taken"


def _from_verbs(read: ibv_devinfo.Device) -> RdmaDevice:
    vendor, part = rdma_words.hexadecimal(read.vendor_id), read.vendor_part_id
    is_mlx = vendor in (0x02C9, 0x15B3) and part is not None and 0 < part < 0x10000
    driver = _DRIVERS.get(vendor) if vendor is not None else None
    if driver == "mlx5_core" and not (is_mlx and part is not None and part >= _FIRST_MLX5):
        driver = None
    return RdmaDevice(
        read.name,
        driver=rdma_words.stated(driver),
        ca_type=f"MT{part}" if is_mlx else NOT_READ,
        board_id=rdma_words.stated(read.board_id),
        firmware=rdma_words.stated(read.firmware),
        node_guid=rdma_words.guid(read.node_guid),
        sys_image_guid=rdma_words.guid(read.sys_image_guid),
        atomic_cap=rdma_words.atomic_cap(read.atomic_cap),
        max_qp=rdma_words.number(read.max_qp),
        max_qp_rd_atom=rdma_words.number(read.max_qp_rd_atom),
        ports=tuple(_verbs_port(port) for port in read.ports) if read.ports else NOT_READ,
    )


def _verbs_port(read: ibv_devinfo.Port) -> Port:
    return Port(
        read.port,
        state=rdma_words.state((read.state or "").removeprefix("PORT_")),
        phys_state=rdma_words.phys_state(read.phys_state),
        rate_gbps=rdma_words.stated(read.rate_gbps),
        width_lanes=rdma_words.number(read.active_width),
        link_layer=rdma_words.link_layer(read.link_layer),
        lid=rdma_words.number(read.port_lid),
        sm_lid=rdma_words.number(read.sm_lid),
        active_mtu=rdma_words.number(read.active_mtu),
        max_mtu=rdma_words.number(read.max_mtu),
        gids=tuple(
            Gid(gid.index, rdma_words.full_gid(gid.gid), rdma_words.stated(gid.type))
            for gid in read.gids
            if rdma_words.full_gid(gid.gid)
        )
        if read.gids
        else NOT_READ,
    )


def _from_stat(read: ibstat.Device) -> RdmaDevice:
    number = re.fullmatch(r"MT([0-9]{1,6})", read.ca_type or "")
    return RdmaDevice(
        read.name,
        driver="mlx5_core" if number and int(number.group(1)) >= _FIRST_MLX5 else NOT_READ,
        ca_type=rdma_words.stated(read.ca_type),
        firmware=rdma_words.stated(read.firmware),
        node_guid=rdma_words.guid(read.node_guid),
        sys_image_guid=rdma_words.guid(read.system_image_guid),
        ports=tuple(_stat_port(port) for port in read.ports) if read.ports else NOT_READ,
    )


def _stat_port(read: ibstat.Port) -> Port:
    return Port(
        read.port,
        state=rdma_words.state(read.state or ""),
        phys_state=rdma_words.phys_state(read.phys_state),
        rate_gbps=rdma_words.stated(read.rate_gbps),
        link_layer=rdma_words.link_layer(read.link_layer),
        lid=rdma_words.number(read.base_lid),
        sm_lid=rdma_words.number(read.sm_lid),
    )


def _from_links(name: str, facts: rdma_link.Facts) -> list[RdmaDevice]:
    links = [link for link in facts.links if link.device == name]
    if not links:
        return []
    ports = tuple(
        Port(
            link.port,
            state=rdma_words.state(link.state or ""),
            phys_state=rdma_words.phys_state(link.phys_state),
            lid=rdma_words.number(link.lid),
            sm_lid=rdma_words.number(link.sm_lid),
        )
        for link in links
    )
    netdevs = tuple(dict.fromkeys(link.netdev for link in links if link.netdev))
    return [RdmaDevice(name, netdevs=netdevs or NOT_READ, ports=ports)]


def _from_gids(name: str, facts: show_gids.Facts) -> list[RdmaDevice]:
    ports: dict[int, list[Gid]] = {}
    for entry in facts.entries:
        if entry.device == name and (gid := rdma_words.full_gid(entry.gid)):
            kind = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}.get(entry.version or "")
            ports.setdefault(entry.port, []).append(
                Gid(entry.index, gid, rdma_words.stated(kind), rdma_words.stated(entry.netdev))
            )
    return (
        [RdmaDevice(name, ports=tuple(Port(port, gids=tuple(gids)) for port, gids in ports.items()))] if ports else []
    )
