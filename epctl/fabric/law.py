"""Loads drawn from the law of ideal hashing instead of from the hash: where two leaves exchange thousands of flows.

Every flow takes one of its leaf's uplinks, and one of the spine's lanes down, with equal chances and independently: that is what the
hash of `ecmp` does for one flow, seen over all seeds. Flows of the same weight between two leaves are then alike, and only their numbers
on each spine and lane are drawn: binomial splits of what is left, exact, whose time grows with the links and not with the flows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from epctl.fabric.flows import Flows
from epctl.fabric.topology import Fabric

Bits = Callable[[int], int]


def binomial(number: int, ones: int, total: int, bits: Bits) -> int:
    """How many of `number` independent events of chance ones / total happen. `bits(n)` gives n random bits.

    Exact: every event compares a uniform binary fraction with the chance, a digit at a time, until they differ.
    """
    happened, undecided, rest = 0, number, ones
    while undecided and rest:
        rest *= 2
        high = bits(undecided).bit_count()
        if rest >= total:
            rest -= total
            happened += undecided - high
            undecided = high
        else:
            undecided -= high
    return happened


def split(number: int, parts: int, bits: Bits) -> list[int]:
    """`number` things thrown into `parts` boxes."""
    if parts == 1 or not number:
        return [number] + [0] * (parts - 1)
    left = parts // 2
    first = bits(number).bit_count() if 2 * left == parts else binomial(number, left, parts, bits)
    return split(first, left, bits) + split(number - first, parts - left, bits)


class LawRedraw:
    """Flows of one traffic, counted by leaves and weight."""

    def __init__(self, fabric: Fabric, flows: Flows) -> None:
        self.spines, self.lanes = fabric.lanes_of_each
        self.first_uplink = fabric.first_uplink
        self.counts = Counter((leaf, other, units) for leaf, other, _, units in flows.crossing())

    @property
    def splits(self) -> int:
        """Binomials that one seed takes, about."""
        leaves = len({(leaf, units) for leaf, _, units in self.counts})
        leaves += len({(leaf, units) for _, leaf, units in self.counts})
        return len(self.counts) * (self.spines - 1) + leaves * self.spines * (self.lanes - 1)

    def loads(self, seed: int) -> tuple[list[int], list[int]]:
        """Units on every uplink, up and down."""
        bits = random.Random((seed << 2) | 3).getrandbits  # noqa: S311
        up: dict[tuple[int, int], list[int]] = {}
        down: dict[tuple[int, int], list[int]] = {}
        for (leaf, other, units), number in self.counts.items():
            by_spine = split(number, self.spines, bits)
            for table, key in ((up, (leaf, units)), (down, (other, units))):
                known = table.get(key)
                table[key] = [a + b for a, b in zip(known, by_spine, strict=True)] if known else by_spine
        return self._lanes(up, bits), self._lanes(down, bits)

    def _lanes(self, by_spine: dict[tuple[int, int], list[int]], bits: Bits) -> list[int]:
        loads = [0] * self.first_uplink[-1]
        for (leaf, units), numbers in by_spine.items():
            place = self.first_uplink[leaf]
            for number in numbers:
                for count in split(number, self.lanes, bits):
                    loads[place] += units * count
                    place += 1
        return loads
