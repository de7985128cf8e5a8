"""Slowdown by max-min fair sharing, for as many seeds as a second allows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from epctl.fabric import detail, ecmp, fairshare
from epctl.fabric.flows import Flows
from epctl.fabric.report import Slowdown
from epctl.fabric.streams import Group
from epctl.fabric.topology import Fabric
from epctl.model.spread import quantile

MAX_LOOKS = 30_000
"""Flows times seeds that are looked at for each group."""
MAX_FLOWS = 300_000
"""Flows of one seed that are still worth it."""


class Sharing:
    """Slowdowns of every group of streams, over flows and seeds."""

    def __init__(self, fabric: Fabric, groups: Sequence[Group]) -> None:
        self.fabric = fabric
        self.groups = groups
        self._found: list[list[float]] = [[] for _ in groups]
        self._seeds = [0] * len(groups)
        self._too_many: set[int] = set()

    def add(self, flows: Sequence[Flows], seeds: Sequence[int]) -> None:
        """Seeds of one draw, until there are enough."""
        for seed in seeds:
            open_groups = [i for i, group in enumerate(self.groups) if self._wanted(i, group, flows)]
            if not open_groups:
                return
            tables = ecmp.Tables(seed)
            needed = {member for i in open_groups for member in self.groups[i].members}
            paths = {member: self._one_way(flows[member], tables) for member in needed}
            for i in open_groups:
                mine = [path for member in self.groups[i].members for path in paths[member]]
                self._seeds[i] += 1
                if mine:
                    nics = [(path[0], path[-1]) for path in mine]
                    self._found[i] += fairshare.slowdowns(mine, nics, 2 * detail.num_links(self.fabric))

    def _one_way(self, flows: Flows, tables: ecmp.Tables) -> list[tuple[int, ...]]:
        """By flow, its links, the two directions of which are two links."""
        back = detail.num_links(self.fabric)
        return [
            tuple(link if i < len(path) // 2 else link + back for i, link in enumerate(path))
            for path in detail.paths(self.fabric, flows, tables)
        ]

    def _wanted(self, i: int, group: Group, flows: Sequence[Flows]) -> bool:
        count = sum(len(flows[member]) for member in group.members)
        if count > MAX_FLOWS:
            self._too_many.add(i)
        return 0 < count <= MAX_FLOWS and (self._seeds[i] == 0 or len(self._found[i]) + count <= MAX_LOOKS)

    def too_many(self, i: int) -> bool:
        """Whether a group was left out because it has too many flows."""
        return i in self._too_many

    def of(self, i: int) -> Slowdown | UnsetType:
        """Of a group; UNSET where nothing was looked at."""
        values = sorted(self._found[i])
        if not values:
            return UNSET
        return Slowdown(quantile(values, 0.5), quantile(values, 0.99), values[-1], self._seeds[i])
