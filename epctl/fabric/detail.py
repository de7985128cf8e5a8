"""The fabric link by link, and every flow's path, for one seed."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.fabric import ecmp
from epctl.fabric.flows import Flows, Pairing
from epctl.fabric.report import FlowRow, Link, LinkLoad
from epctl.fabric.routing import Sends
from epctl.fabric.topology import Fabric

MAX_LINKS = 20_000
MAX_FLOWS = 4_000
"""Rows of a report; past them a file is for no reader."""


def gpu_name(fabric: Fabric, gpu: int) -> str:
    """node0.gpu3."""
    return f"node{gpu // fabric.gpus_per_node}.gpu{gpu % fabric.gpus_per_node}"


def links(fabric: Fabric) -> Iterator[Link]:
    """All physical links, in the order of their numbers: NVLinks by GPU, NIC ports by plane and GPU, uplinks by leaf."""
    number = 0
    for gpu in range(fabric.num_gpus):
        yield Link(number, "nvlink", gpu_name(fabric, gpu), f"node{gpu // fabric.gpus_per_node}.nvswitch")
        number += 1
    for plane, leaf_of in enumerate(fabric.leaf_of):
        for gpu, leaf in enumerate(leaf_of):
            upper = fabric.leaf_names[leaf] if leaf >= 0 else "lost"
            yield Link(number, "nic", f"{gpu_name(fabric, gpu)}.nic", upper, 0, plane)
            number += 1
    for leaf, group in enumerate(fabric.uplinks):
        for spine, lane in group:
            yield Link(number, "uplink", fabric.leaf_names[leaf], fabric.spine_names[spine], lane)
            number += 1


def num_links(fabric: Fabric) -> int:
    """How many `links` gives."""
    return fabric.num_gpus * (1 + fabric.num_planes) + fabric.num_uplinks


def first_nic(fabric: Fabric) -> int:
    """Number of the first NIC link."""
    return fabric.num_gpus


def first_uplink(fabric: Fabric) -> int:
    """Number of the first uplink."""
    return fabric.num_gpus * (1 + fabric.num_planes)


def loads(fabric: Fabric, sends: Sends, flows: Flows, uplinks: tuple[list[int], list[int]]) -> tuple[LinkLoad, ...]:
    """Bytes of every link that carries some; `uplinks` are units up and down, empty without any."""
    up, down = [0] * num_links(fabric), [0] * num_links(fabric)
    for (source, target), units in sends.nvlink.items():
        up[source] += units
        down[target] += units
    for source, target, units, plane in zip(flows.source, flows.target, flows.units, flows.plane, strict=True):
        ports = first_nic(fabric) + plane * fabric.num_gpus
        up[ports + source] += units
        down[ports + target] += units
    begin = first_uplink(fabric)
    if uplinks[0]:
        up[begin:], down[begin:] = uplinks
    return tuple(
        LinkLoad(link, a * sends.unit_bytes, b * sends.unit_bytes)
        for link, (a, b) in enumerate(zip(up, down, strict=True))
        if a or b
    )


def paths(fabric: Fabric, flows: Flows, tables: ecmp.Tables) -> Iterator[tuple[int, ...]]:
    """By flow, the numbers of its links; the first half goes up."""
    begin = first_uplink(fabric)
    columns = (flows.source, flows.target, flows.crc, flows.plane, flows.leaf_from, flows.leaf_to)
    for source, target, crc, plane, leaf, other in zip(*columns, strict=True):
        ports = first_nic(fabric) + plane * fabric.num_gpus
        if leaf == other:
            yield ports + source, ports + target
        else:
            up, down = ecmp.path(fabric, tables, crc, leaf, other)
            yield ports + source, begin + up, begin + down, ports + target


def flow_rows(fabric: Fabric, sends: Sends, flows: Flows, tables: ecmp.Tables, pairing: Pairing) -> tuple[FlowRow, ...]:
    """Every flow, RDMA first, then NVLink."""
    rows = []
    turn: dict[tuple[int, int], int] = {}
    for i, path in enumerate(paths(fabric, flows, tables)):
        source, target = flows.source[i], flows.target[i]
        qp = turn.get((source, target), 0)
        turn[source, target] = qp + 1
        port = ecmp.source_port(source, target, qp, pairing.qps, pairing.ports)
        rows.append(FlowRow(source, target, flows.units[i] * sends.unit_bytes, path, port))
    for (source, target), units in sorted(sends.nvlink.items()):
        rows.append(FlowRow(source, target, units * sends.unit_bytes, (source, target)))
    return tuple(rows)
