"""Questions about a graph: what hangs where, how far two devices are apart, which links lie between them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.topo.graph import Edge, Graph, Node, NodeKind

Level = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
LEVELS: tuple[Level, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first; the words of `nvidia-smi topo -m`."""
_BRIDGES = ("root_port", "pcie_switch", "pcie_port")


class Hop(Struct, frozen=True):
    """One link of a way. `up`: from the device towards the CPU."""

    edge: Edge
    up: bool


class Tree:
    """A graph with the look-ups that the questions need."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[str, Node] = {node.id: node for node in graph.nodes}
        self.children: dict[str, list[Node]] = {}
        self.at: dict[str, list[Edge]] = {}
        self.uplink: dict[str, Edge] = {}
        self.told: dict[tuple[str, str], str] = {}
        for entry in graph.distances:
            self.told[entry.a, entry.b] = self.told[entry.b, entry.a] = entry.level
        self.host_of: dict[str, str] = {}
        self.kinds: dict[tuple[str, str], list[Node]] = {}
        for node in graph.nodes:
            self.children.setdefault(node.parent, []).append(node)
            self.kinds.setdefault((node.kind, ""), []).append(node)
            if host := self._host(node):
                self.kinds.setdefault((node.kind, host), []).append(node)
        for edge in graph.edges:
            self.at.setdefault(edge.a, []).append(edge)
            self.at.setdefault(edge.b, []).append(edge)
            if edge.kind == "pcie":
                self.uplink[edge.a] = edge

    def of_kind(self, kind: NodeKind, host: str = "") -> list[Node]:
        """Nodes of a kind, of one host where `host` is given, in the order of the graph."""
        return list(self.kinds.get((kind, host), ()))

    def hosts(self) -> list[Node]:
        """The machines."""
        return self.of_kind("host")

    def above(self, id: str) -> list[Node]:  # noqa: A002
        """The node and what it hangs on, up to the top."""
        found = []
        while id:
            node = self.nodes[id]
            found.append(node)
            id = node.parent  # noqa: A001
        return found

    def host(self, id: str) -> str:  # noqa: A002
        """Id of the machine that a node belongs to, '' for one of the network."""
        return self.host_of[id]

    def _host(self, node: Node) -> str:
        way = []
        at = node
        while at.id not in self.host_of and at.kind != "host" and at.parent:
            way.append(at.id)
            at = self.nodes[at.parent]
        found = self.host_of.get(at.id, at.id if at.kind == "host" else "")
        self.host_of.update(dict.fromkeys([*way, at.id], found))
        return found

    def placed(self, id: str) -> bool:  # noqa: A002
        """Its place in the machine is known: it hangs below a NUMA node or a PCIe bridge."""
        return self.nodes[id].parent != "" and self.nodes[self.nodes[id].parent].kind != "host"

    def meeting(self, one: str, other: str) -> tuple[list[Node], Node | None, list[Node]]:
        """What lies above each of two nodes below the place where their ways meet, and that place."""
        left, right = self.above(one), self.above(other)
        ids = {node.id: i for i, node in enumerate(right)}
        for i, node in enumerate(left):
            if node.id in ids:
                return left[1:i], node, right[1 : ids[node.id]]
        return left[1:], None, right[1:]

    def level(self, one: str, other: str) -> Level | None:
        """Distance of two devices of one machine in the words of `nvidia-smi topo -m`; None when the place of one is not known.
        A topology file of NCCL has no host bridges: two devices whose ways meet at its CPU are PHB, NCCL's word for it."""
        told = self.told.get((one, other))
        if told in LEVELS:
            return told
        left, top, right = self.meeting(one, other)
        if top is None or not self.placed(one) or not self.placed(other):
            return None
        return self._word(top, (*left, top, *right))

    def _word(self, top: Node, between: tuple[Node, ...]) -> Level | None:
        if top.kind in _BRIDGES:
            return "PIX" if sum(node.kind == "pcie_switch" for node in between) <= 1 else "PXB"
        if top.kind == "numa":
            return "NODE" if any(node.kind == "host_bridge" for node in between) else "PHB"
        return {"host_bridge": "PHB", "host": "SYS"}.get(top.kind)  # type: ignore[return-value]

    def way(self, one: str, other: str) -> list[Hop]:
        """Links between two devices, from `one` up and down to `other`; links that no source tells are left out. A GPU with a
        chip-to-chip link to its CPU uses that instead of PCIe where the way goes over the CPU."""
        left, top, right = self.meeting(one, other)
        over_cpu = top is None or top.kind not in _BRIDGES
        up, down = self._side(one, left, over_cpu), self._side(other, right, over_cpu)
        return [Hop(edge, True) for edge in up] + [Hop(edge, False) for edge in reversed(down)]

    def _side(self, end: str, between: list[Node], over_cpu: bool) -> list[Edge]:
        chip = [edge for edge in self.at.get(end, ()) if edge.kind == "c2c"]
        if chip and over_cpu:
            return chip[:1]
        return [self.uplink[node.id] for node in (self.nodes[end], *between) if node.id in self.uplink]
