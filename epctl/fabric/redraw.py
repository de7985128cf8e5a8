"""The same flows under one seed after another, as fast as Python goes: whole columns of bytes at once.

Gives exactly what `flows.link_loads` gives, for fabrics in which all leaves have the same uplinks and their hash is one choice. A table
look-up of all flows is one `bytes.translate`, a sum of table entries one addition of integers as long as the column. The time of a seed
grows linearly with the flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from epctl.fabric import ecmp
from epctl.fabric.counting import Matrix, arranged
from epctl.fabric.flows import Flows
from epctl.fabric.topology import Fabric

Columns = tuple[bytes, ...]
"""The low three bytes of a number for every flow."""
_MAX_FOUR = 64
"""Four table entries below it add up within a byte."""


def can_redraw(fabric: Fabric) -> bool:
    """Whether columns of bytes can stand for the fabric's choices."""
    regular = fabric.regular
    return regular is not None and regular[0] * regular[1] <= ecmp.MAX_CHOICES


class Redraw:
    """Flows of one traffic, arranged once by the leaf that they leave and once by the leaf that they reach."""

    def __init__(self, fabric: Fabric, flows: Flows) -> None:
        self.spines, self.lanes = fabric.lanes_of_each
        self.num_uplinks = fabric.num_uplinks
        crossing = list(flows.crossing())
        salted = [ecmp.salted(crc, leaf) for leaf, _, crc, _ in crossing]
        crcs = [crc for _, _, crc, _ in crossing]
        up = ((leaf, units, i) for i, (leaf, _, _, units) in enumerate(crossing))
        self.up, order = arranged(up, fabric.first_uplink)
        self.keys_up = _columns(salted, order)
        self.down: list[tuple[int, list[Matrix], Columns, Columns]] = []
        per_plane = len(fabric.uplinks) // fabric.num_planes
        for plane in range(fabric.num_planes):
            mine = ((leaf, units, i) for i, (_, leaf, _, units) in enumerate(crossing) if leaf // per_plane == plane)
            matrices, order = arranged(mine, fabric.first_uplink)
            lane_keys = _columns(crcs, order) if self.lanes > 1 else ()
            self.down.append((plane * self.spines, matrices, _columns(salted, order), lane_keys))

    def loads(self, tables: ecmp.Tables) -> tuple[list[int], list[int]]:
        """Units on every uplink, up and down."""
        up, down = [0] * self.num_uplinks, [0] * self.num_uplinks
        positions = self.spines * self.lanes
        chosen = _choices(tables, positions, self.keys_up)
        for matrix in self.up:
            matrix.add(chosen, positions, up)
        for first_spine, matrices, keys, lane_keys in self.down:
            chosen = self._positions_down(tables, first_spine, keys, lane_keys)
            for matrix in matrices:
                matrix.add(chosen, positions, down)
        return up, down

    def _positions_down(self, tables: ecmp.Tables, first_spine: int, keys: Columns, lane_keys: Columns) -> bytes:
        """Position of the cable down: that of the spine, which the first leaf chose, plus the lane, which the spine chooses."""
        positions, lanes = self.spines * self.lanes, self.lanes
        if lanes == 1:
            return _choices(tables, positions, keys)
        size = len(keys[0])
        uplinks = _total(tables, ecmp.LEAF, positions, keys).to_bytes(size, "little")
        fourth = tables.of(ecmp.SPINE, lanes)[3]
        by_spine = bytes(fourth[first_spine + value % positions // lanes & 255] for value in range(256))
        total = _total(tables, ecmp.SPINE, lanes, lane_keys)
        if lanes > _MAX_FOUR:
            total = int.from_bytes(total.to_bytes(size, "little").translate(_modulo(lanes, 1, 1)), "little")
        total += int.from_bytes(uplinks.translate(by_spine), "little")
        chosen = total.to_bytes(size, "little").translate(_modulo(lanes, 1, 1))
        first = uplinks.translate(_modulo(positions, lanes, lanes))
        return (int.from_bytes(first, "little") + int.from_bytes(chosen, "little")).to_bytes(size, "little")


def _columns(numbers: Sequence[int], order: Sequence[int]) -> Columns:
    """Columns in `order`; zero where it names no flow."""
    ordered = [numbers[i] if i >= 0 else 0 for i in order]
    return tuple(bytes([number >> shift & 255 for number in ordered]) for shift in (0, 8, 16))


@lru_cache(maxsize=256)
def _modulo(choices: int, divisor: int, factor: int) -> bytes:
    """Table of (value % choices) // divisor * factor."""
    return bytes(value % choices // divisor * factor for value in range(256))


def _total(tables: ecmp.Tables, decision: int, choices: int, keys: Columns) -> int:
    """Sums of three table entries, a byte a flow."""
    rows = tables.of(decision, choices)[:3]
    return sum(int.from_bytes(column.translate(bytes(row)), "little") for column, row in zip(keys, rows, strict=True))


def _choices(tables: ecmp.Tables, choices: int, keys: Columns) -> bytes:
    """What `Tables.choice` of every flow's first leaf is, once taken modulo the choices."""
    size = len(keys[0])
    if choices == 1:
        return bytes(size)
    return _total(tables, ecmp.LEAF, choices, keys).to_bytes(size, "little")
