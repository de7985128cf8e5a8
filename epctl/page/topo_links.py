"""The links that a page draws, the line of each, and which of them a way between two devices takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from epctl.page.topo_layout import GAP_Y, INDENT, WIDTH, Box, Places
from epctl.topo.graph import Edge, Node
from epctl.topo.tree import Tree
from epctl.topo.words import drawn_edges, label, measured

BAR = 2 * WIDTH
"""A box wider than that is a bar; lines reach it straight."""


class Drawn(Struct, frozen=True, omit_defaults=True):
    """One line. `a` is the lower end. `gbs`: one direction, 1e9 bytes/s, the least of the links that the line stands for."""

    kind: str
    a: str
    b: str
    name: str
    d: str
    """Path of SVG."""
    source: str = ""
    detail: str = ""
    num_links: int = 1
    gbs: float | UnsetType = UNSET


class Step(Struct, frozen=True, array_like=True):
    """A way's part: a line by number, whether it is taken upwards (from `a` to `b`), and which share of the flow takes it."""

    link: int
    up: bool
    share: float = 1.0


class Links:
    """All lines of a picture, by number."""

    def __init__(self, tree: Tree, nodes: Sequence[Node], parents: Mapping[str, str], places: Places) -> None:
        self.tree = tree
        self.parents = parents
        self.places = places
        self.shown = {node.id for node in nodes}
        self.all: list[Drawn] = []
        self.up: dict[str, int] = {}
        """Node → its line to the node that it hangs on."""
        self.by_edge: dict[tuple[str, str, str], int] = {}
        """(a, b, kind) of an edge → its line."""
        hanging = [node for node in nodes if node.id in parents and node.kind not in ("nvlink_domain", "nvswitch")]
        others = [entry for entry in drawn_edges(tree, self.shown) if all(end in places.at for end in entry[:2])]
        self._ends = _Ends(places, [(node.id, parents[node.id]) for node in hanging], others)
        for node in hanging:
            self.up[node.id] = len(self.all)
            self.all.append(self._hanging(node))
        for a, b, edge in others:
            self.by_edge[edge.a, edge.b, edge.kind] = len(self.all)
            self.all.append(self._other(a, b, edge))

    def _hanging(self, node: Node) -> Drawn:
        parent = self.parents[node.id]
        edges = [self.tree.uplink[above.id] for above in self._between(node.id, parent) if above.id in self.tree.uplink]
        rates = [float(edge.gbs) for edge in edges if edge.gbs is not UNSET]
        name = f"{label(node)} – {label(self.tree.nodes[parent])}"
        d = self._ends.hanging(node.id, parent)
        if not edges:
            return Drawn("tree", node.id, parent, name, d, node.source)
        return Drawn("pcie", node.id, parent, name, d, edges[0].source, edges[0].detail, 1, min(rates, default=UNSET))

    def _between(self, low: str, high: str) -> list[Node]:
        """The node and what it hangs on, below `high`."""
        found = []
        for node in self.tree.above(low):
            if node.id == high:
                break
            found.append(node)
        return found

    def _other(self, a: str, b: str, edge: Edge) -> Drawn:
        name = f"{label(self.tree.nodes[a])} – {label(self.tree.nodes[b])}"
        d = self._ends.other(a, b, edge.kind)
        detail = " ".join(part for part in (edge.detail, measured(edge)) if part)
        return Drawn(edge.kind, a, b, name, d, edge.source, detail, edge.num_links, edge.gbs)

    def way(self, gpu: str, nic: str) -> list[Step]:
        """Lines from a GPU up and down to a NIC of its machine. As `Tree.way`, a chip-to-chip link is taken where the way uses one."""
        left, right = self._chain(gpu), self._chain(nic)
        common = next((id_ for id_ in left if id_ in right), "")
        chip = next((hop.edge for hop in self.tree.way(gpu, nic) if hop.edge.kind == "c2c"), None)
        rising = left[: left.index(common)] if common else left
        steps = []
        if chip is not None and (chip.a, chip.b, "c2c") in self.by_edge:
            steps.append(Step(self.by_edge[chip.a, chip.b, "c2c"], chip.a == gpu))
            cpu = chip.b if chip.a == gpu else chip.a
            rising = rising[rising.index(cpu) :] if cpu in rising else []
        steps += [Step(self.up[id_], True) for id_ in rising if id_ in self.up]
        falling = right[: right.index(common)] if common else right
        return steps + [Step(self.up[id_], False) for id_ in reversed(falling) if id_ in self.up]

    def _chain(self, id_: str) -> list[str]:
        return [node.id for node in self.tree.above(id_) if node.id in self.shown]


class _Ends:
    """Lines that meet at one edge of a box share it."""

    def __init__(
        self, places: Places, hanging: Sequence[tuple[str, str]], others: Sequence[tuple[str, str, Edge]]
    ) -> None:
        self.at = places.at
        self.bus = places.bus
        self._share: dict[tuple[str, str], list[str]] = {}
        for child, parent in sorted(hanging, key=lambda pair: self.at[pair[0]].middle):
            self._share.setdefault((parent, "below"), []).append(child)
        for a, b, edge in others:
            self._share.setdefault((a, edge.kind), []).append(b)
            self._share.setdefault((b, edge.kind), []).append(a)
        for (_, side), ends in self._share.items():
            if side != "below":
                ends.sort(key=lambda end: self.at[end].middle)

    def _x(self, box: Box, key: tuple[str, str], other: str) -> float:
        ends = self._share[key]
        return box.x + box.w * (0.08 + 0.84 * (ends.index(other) + 0.5) / len(ends))

    def hanging(self, child: str, parent: str) -> str:
        """From a node down to what hangs on it; beside the devices that stand above it in its column."""
        box, above = self.at[child], self.at[parent]
        x = self._x(above, (parent, "below"), child)
        down = self.bus.get(child, 0)
        if down == 0:
            return f"M{x:.1f} {above.bottom:.1f}L{box.middle:.1f} {box.y:.1f}"
        rail = box.x - INDENT + 3 * down
        first = above.bottom + GAP_Y - 4
        return f"M{x:.1f} {above.bottom:.1f}L{rail:.1f} {first:.1f}V{box.y + box.h / 2:.1f}H{box.x:.1f}"

    def other(self, a: str, b: str, kind: str) -> str:
        """Between two boxes: straight from the upper one to the lower one, or in an arc below both."""
        one, two = self.at[a], self.at[b]
        x, to = self._x(one, (a, kind), b), self._x(two, (b, kind), a)
        if two.w > BAR:
            to = min(max(x, two.x + 4), two.right - 4)
        if abs(one.y - two.y) < one.h:
            deep = max(one.bottom, two.bottom) + 14 + min(110.0, abs(x - to) / 5)
            return f"M{x:.1f} {one.bottom:.1f}C{x:.1f} {deep:.1f} {to:.1f} {deep:.1f} {to:.1f} {two.bottom:.1f}"
        low, high = ((one, x), (two, to)) if one.y > two.y else ((two, to), (one, x))
        return f"M{low[1]:.1f} {low[0].y:.1f}L{high[1]:.1f} {high[0].bottom:.1f}"
