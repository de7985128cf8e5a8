"""Flows: what one queue pair carries, the ports it uses, and what is the same for every seed of the hash."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from epctl.fabric import ecmp
from epctl.fabric.routing import Sends
from epctl.fabric.topology import Fabric
from epctl.model.refusal import RefusalError


class Pairing(Struct, frozen=True):
    """How many queue pairs join two GPUs, and over how many UDP source ports all of them spread."""

    qps: int = 1
    ports: int = ecmp.NUM_PORTS

    def checked(self) -> Pairing:
        """Itself. Raises RefusalError value_invalid."""
        for name, value, top in (("--qps", self.qps, 1024), ("--ports", self.ports, ecmp.NUM_PORTS)):
            if not 1 <= value <= top:
                raise RefusalError("value_invalid", f"{name} is {value}", f"1 to {top} are taken", f"give {name} 1")
        return self


class Flows(Struct, frozen=True, eq=False):
    """Columns, one entry a flow. NIC ports are numbered plane x GPUs + GPU."""

    source: array[int]
    target: array[int]
    units: array[int]
    """Of `Sends.unit_bytes`."""
    crc: array[int]
    plane: array[int]
    leaf_from: array[int]
    leaf_to: array[int]

    def __len__(self) -> int:
        return len(self.source)

    def crossing(self) -> Iterator[tuple[int, int, int, int]]:
        """(leaf, leaf, CRC, units) of flows that cross a spine."""
        for leaf, other, crc, units in zip(self.leaf_from, self.leaf_to, self.crc, self.units, strict=True):
            if leaf != other:
                yield leaf, other, crc, units


def flows_of(fabric: Fabric, sends: Sends, pairing: Pairing) -> Flows:
    """Flows of all pairs; a pair's units are dealt to its QPs in turn. Raises RefusalError cut_off where no path is left."""
    # Small sets of pairs meet again in every draw; large ones would only push each other out.
    crc_of = _crc if len(sends.rdma) * pairing.qps <= _KEPT_CRCS else _crc.__wrapped__
    pairs, units = (list(sends.rdma), list(sends.rdma.values())) if pairing.qps == 1 else _dealt(sends, pairing.qps)
    qps = [0] * len(pairs) if pairing.qps == 1 else _turns(pairs)
    crcs = [crc_of(source, target, qp, pairing) for (source, target), qp in zip(pairs, qps, strict=True)]
    planes = [0] * len(pairs)
    if fabric.regular is None or fabric.num_planes > 1:
        planes = [_plane(fabric, *pair, crc) for pair, crc in zip(pairs, crcs, strict=True)]
    leaf_of = fabric.leaf_of
    return Flows(
        source=array("i", [source for source, _ in pairs]),
        target=array("i", [target for _, target in pairs]),
        units=array("q", units),
        crc=array("I", crcs),
        plane=array("i", planes),
        leaf_from=array("i", [leaf_of[plane][source] for plane, (source, _) in zip(planes, pairs, strict=True)]),
        leaf_to=array("i", [leaf_of[plane][target] for plane, (_, target) in zip(planes, pairs, strict=True)]),
    )


def _dealt(sends: Sends, qps: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Pair and units of every QP that has some."""
    pairs, units = [], []
    for pair, total in sends.rdma.items():
        for qp in range(min(qps, total)):
            pairs.append(pair)
            units.append(total // qps + (qp < total % qps))
    return pairs, units


def _turns(pairs: list[tuple[int, int]]) -> list[int]:
    """By flow, which of its pair's it is; a pair's flows follow each other."""
    turns: list[int] = []
    for i, pair in enumerate(pairs):
        turns.append(turns[-1] + 1 if i and pairs[i - 1] == pair else 0)
    return turns


_KEPT_CRCS = 1 << 16


@lru_cache(maxsize=_KEPT_CRCS)
def _crc(source: int, target: int, qp: int, pairing: Pairing) -> int:
    """The same pairs meet again in every routing."""
    port = ecmp.source_port(source, target, qp, pairing.qps, pairing.ports)
    return ecmp.flow_crc(source, target, port)


def _plane(fabric: Fabric, source: int, target: int, crc: int) -> int:
    """The plane that the NIC takes."""
    planes = fabric.planes_of(source, target)
    if planes:
        return planes[(crc >> 24) % len(planes)]
    what = f"GPU {source} no longer reaches GPU {target}"
    why = f"lost: {', '.join(fabric.lost)}" if fabric.lost else "no leaf or spine joins them in any plane"
    raise RefusalError("cut_off", what, why, "give --planes 2 for a second way, or leave out these nodes")


class Fixed(Struct, frozen=True):
    """What the hash does not change, in units."""

    rdma: int
    spine: int
    nvlink: int
    hops: int
    """Largest number of scale-out switches on a path; 0 without RDMA."""
    nic_out: tuple[int, ...]
    nic_in: tuple[int, ...]
    largest_nic: int


def fixed(fabric: Fabric, sends: Sends, flows: Flows) -> Fixed:
    """Totals, and the load of every NIC port."""
    num_gpus = fabric.num_gpus
    out, into = [0] * (num_gpus * fabric.num_planes), [0] * (num_gpus * fabric.num_planes)
    spine = 0
    columns = (flows.source, flows.target, flows.units, flows.plane, flows.leaf_from, flows.leaf_to)
    for source, target, units, plane, leaf, other in zip(*columns, strict=True):
        out[plane * num_gpus + source] += units
        into[plane * num_gpus + target] += units
        if leaf != other:
            spine += units
    total = sum(flows.units)
    hops = 3 if spine else 1 if total else 0
    return Fixed(total, spine, sum(sends.nvlink.values()), hops, tuple(out), tuple(into), max(*out, *into))


def link_loads(fabric: Fabric, flows: Flows, tables: ecmp.Tables) -> tuple[list[int], list[int]]:
    """Units on every uplink, up and down, for one seed: the reference, one flow after another."""
    up, down = [0] * fabric.num_uplinks, [0] * fabric.num_uplinks
    for leaf, other, crc, units in flows.crossing():
        first, last = ecmp.path(fabric, tables, crc, leaf, other)
        up[first] += units
        down[last] += units
    return up, down
