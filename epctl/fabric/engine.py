"""Seeds of the hash: the largest link of every group of streams, one seed after another. Jobs can be sent to other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from epctl.fabric import ecmp
from epctl.fabric.flows import Fixed, Flows, link_loads
from epctl.fabric.law import LawRedraw
from epctl.fabric.redraw import Redraw, can_redraw
from epctl.fabric.streams import Group
from epctl.fabric.topology import Fabric

MANY_SEEDS = 4
"""Seeds for which arranging the flows pays."""
FEW_FLOWS = 256
MANY_FLOWS = 20_000
"""Flows from which on loads may be drawn from the law."""
MANY_A_PAIR = 48
"""Of them, for every pair of leaves; fewer are hashed faster."""
_SPLIT_US, _HASH_US, _LINK_US, _PATH_US = 0.35, 0.02, 0.0002, 2.0
"""A binomial split; a flow among many, and what it takes more for every link of its leaf; a flow by itself. Measured."""
Way = Literal["hash", "law"]


class Loaded:
    """One stream under one draw of the gate: what is fixed, and how its loads are had."""

    def __init__(self, fabric: Fabric, unit_bytes: int, total: Fixed, flows: Flows, num_seeds: int) -> None:
        self.unit_bytes = unit_bytes
        self.fixed = total
        self.num_flows = len(flows)
        self._fabric = fabric
        self._flows: Flows | None = None
        self._redraw: Redraw | LawRedraw | None = None
        if self.fixed.spine:
            self._redraw = _redraw(fabric, flows, num_seeds)
            self._flows = flows if self._redraw is None else None

    @property
    def way(self) -> Way:
        """Paths are hashed flow by flow, or loads are drawn from the law of an ideal hash."""
        return "law" if isinstance(self._redraw, LawRedraw) else "hash"

    def hashed(self, flows: Flows, tables: ecmp.Tables) -> tuple[list[int], list[int]]:
        """As `loads`, by the hash whatever the way."""
        return link_loads(self._fabric, flows, tables) if self.way == "law" else self.loads(tables)

    def loads(self, tables: ecmp.Tables) -> tuple[list[int], list[int]]:
        """Units on every uplink, up and down; empty where no flow takes any."""
        if isinstance(self._redraw, LawRedraw):
            return self._redraw.loads(tables.seed)
        if self._redraw is not None:
            return self._redraw.loads(tables)
        return ([], []) if self._flows is None else link_loads(self._fabric, self._flows, tables)


def _redraw(fabric: Fabric, flows: Flows, num_seeds: int) -> Redraw | LawRedraw | None:
    """The cheapest way for that many seeds; None: one flow after another."""
    if fabric.regular is None or num_seeds < MANY_SEEDS or len(flows) < FEW_FLOWS:
        return None
    columns = can_redraw(fabric)
    if len(flows) >= max(MANY_FLOWS, MANY_A_PAIR * len(fabric.uplinks) ** 2):
        spines, lanes = fabric.regular
        law = LawRedraw(fabric, flows)
        hashed_us = len(flows) * (_HASH_US + _LINK_US * spines * lanes if columns else _PATH_US)
        if law.splits * _SPLIT_US < hashed_us / 2:
            return law
    return Redraw(fabric, flows) if columns else None


class Job(Struct, frozen=True):
    """Seeds to go through with the same streams."""

    streams: tuple[Loaded, ...]
    groups: tuple[Group, ...]
    seeds: tuple[int, ...]


def work(job: Job) -> int:
    """Flows that a job looks at, over all its seeds."""
    return sum(stream.num_flows for stream in job.streams) * len(job.seeds)


def run(job: Job) -> list[list[int]]:
    """For each seed, the largest link of each group, in bytes."""
    nics = [_largest_nic(job, group) for group in job.groups]
    found = []
    for seed in job.seeds:
        tables = ecmp.Tables(seed)
        loads = [stream.loads(tables) for stream in job.streams]
        found.append(
            [max(nic, _largest_uplink(job, group, loads)) for nic, group in zip(nics, job.groups, strict=True)]
        )
    return found


def _largest_nic(job: Job, group: Group) -> int:
    best = 0
    for direction in ("nic_out", "nic_in"):
        columns = [(getattr(job.streams[i].fixed, direction), job.streams[i].unit_bytes) for i in group.members]
        best = max(best, _largest(columns))
    return best


def _largest_uplink(job: Job, group: Group, loads: Sequence[tuple[list[int], list[int]]]) -> int:
    best = 0
    for direction in (0, 1):
        columns = [(loads[i][direction], job.streams[i].unit_bytes) for i in group.members if loads[i][direction]]
        best = max(best, _largest(columns))
    return best


def _largest(columns: Sequence[tuple[Sequence[int], int]]) -> int:
    """Largest sum over links of units times bytes."""
    if not columns:
        return 0
    if len(columns) == 1:
        units, unit_bytes = columns[0]
        return max(units, default=0) * unit_bytes
    scaled = [[unit * unit_bytes for unit in units] for units, unit_bytes in columns]
    return max(map(sum, zip(*scaled, strict=True)))
