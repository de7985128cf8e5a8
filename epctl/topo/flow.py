"""Minimum-cost flow with whole numbers: successive shortest paths. Small and exact; the graphs are a node's PCIe tree.

Costs of an arc may grow with its load (a list of costs, one per unit that passes): as long as they do not fall, each shortest path
takes the cheapest free unit, and the result is the cheapest flow (Ahuja, Magnanti, Orlin: Network Flows, 1993, chapters 9 and 14).
"""

from __future__ import annotations

from collections import deque


class Flow:
    """A network that is being filled. Nodes are any hashable names."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.out: list[list[int]] = []
        self.head: list[int] = []
        self.left: list[int] = []
        self.cost: list[int] = []

    def node(self, name: str) -> int:
        """Number of a node; a new one where it is not there yet."""
        if name not in self.index:
            self.index[name] = len(self.out)
            self.out.append([])
        return self.index[name]

    def arc(self, tail: str, head: str, capacity: int, cost: int) -> int:
        """Adds an arc and returns its number. Costs are not negative."""
        number = len(self.head)
        a, b = self.node(tail), self.node(head)
        self.out[a].append(number)
        self.out[b].append(number + 1)
        self.head += [b, a]
        self.left += [capacity, 0]
        self.cost += [cost, -cost]
        return number

    def used(self, arc: int) -> int:
        """Units on an arc."""
        return self.left[arc + 1]

    def fill(self, source: str, sink: str, units: int) -> tuple[int, int]:
        """Sends up to `units` from `source` to `sink` as cheaply as can be. Returns (units sent, cost)."""
        start, end = self.node(source), self.node(sink)
        sent = total = 0
        while sent < units:
            found = self._shortest(start, end)
            if found is None:
                break
            cost, came_by = found
            at = end
            while at != start:
                arc = came_by[at]
                self.left[arc] -= 1
                self.left[arc ^ 1] += 1
                at = self.head[arc ^ 1]
            sent += 1
            total += cost
        return sent, total

    def _shortest(self, start: int, end: int) -> tuple[int, dict[int, int]] | None:
        """Bellman and Ford with a queue: arcs back have negative costs."""
        best = {start: 0}
        came_by: dict[int, int] = {}
        queue, queued = deque([start]), {start}
        while queue:
            at = queue.popleft()
            queued.discard(at)
            for arc in self.out[at]:
                other, cost = self.head[arc], best[at] + self.cost[arc]
                if self.left[arc] > 0 and (other not in best or cost < best[other]):
                    best[other], came_by[other] = cost, arc
                    if other not in queued:
                        queue.append(other)
                        queued.add(other)
        return (best[end], came_by) if end in best else None
