"""Where the parts of a topology are drawn: switches of the network at the top, under them each machine as a tree down to columns of
devices, NVSwitches at the bottom. A GPU stands at the foot of the column of its NICs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from epctl.topo.graph import Node
from epctl.topo.tree import Tree

WIDTH, HEIGHT = 104, 32
INDENT = 14
"""Room at the left of a device for the lines of those below it."""
GAP_X, GAP_Y, STACK = 10, 34, 8
MARGIN = 12
MOST_IN_COLUMN = 4
NVLINK_ROOM = 70


class Box(Struct, frozen=True):
    """A node's place; x and y of its corner, in units of the picture."""

    x: float
    y: float
    w: float
    h: float = HEIGHT

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.w

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.h

    @property
    def middle(self) -> float:
        """Of its width."""
        return self.x + self.w / 2


class Places(Struct, frozen=True):
    """All boxes by node; `bus`: how many devices stand above a device in its column."""

    at: dict[str, Box]
    bus: dict[str, int]
    width: float
    height: float


def places(
    tree: Tree, nodes: Sequence[Node], parents: Mapping[str, str], nics_of: Mapping[str, Sequence[str]]
) -> Places:
    """`nodes`: those that are drawn. `nics_of`: GPU → its NICs, ids."""
    return _Layout(tree, nodes, parents, nics_of).all()


class _Layout:
    def __init__(
        self, tree: Tree, nodes: Sequence[Node], parents: Mapping[str, str], nics_of: Mapping[str, Sequence[str]]
    ) -> None:
        self.tree = tree
        self.nodes = nodes
        self.nics_of = nics_of
        self.at: dict[str, Box] = {}
        self.bus: dict[str, int] = {}
        self.children: dict[str, list[Node]] = {}
        for node in nodes:
            self.children.setdefault(parents.get(node.id, ""), []).append(node)

    def all(self) -> Places:
        """Rows of switches, then machines, then NVSwitches, then what hangs nowhere."""
        switches = [node for node in self.nodes if node.kind in ("switch", "block")]
        spines = [node for node in switches if node.attrs.get("tier") == "spine"]
        rows = [row for row in (spines, [node for node in switches if node not in spines]) if row]
        top = float(MARGIN) + len(rows) * (HEIGHT + 2 * GAP_Y)
        right, bottom = float(MARGIN), top
        for host in (node for node in self.nodes if node.kind == "host"):
            right, low = self._place(host, right, top)
            right, bottom = right + 2 * GAP_X, max(bottom, low)
        width = max(right, *(MARGIN + len(row) * (WIDTH + GAP_X) for row in rows), 0.0)
        for i, row in enumerate(rows):
            self._spread(row, MARGIN, width, MARGIN + i * (HEIGHT + 2 * GAP_Y))
        bottom = self._nvlink(bottom, width)
        told = {node.parent for node in self.nodes if node.kind == "nvswitch"}
        lost = [node for node in self.nodes if node.id not in self.at and node.id not in told]
        if lost:
            width = max(width, MARGIN + len(lost) * (WIDTH + GAP_X))
            self._spread(lost, MARGIN, width, bottom + GAP_Y)
            bottom += GAP_Y + HEIGHT
        return Places(self.at, self.bus, round(width + MARGIN), round(bottom + MARGIN))

    def _place(self, node: Node, x: float, y: float) -> tuple[float, float]:
        """A node and all below it, from `x` to the right; gives its right end and its lowest edge."""
        kids = [kid for kid in self.children.get(node.id, []) if kid.kind not in ("nvlink_domain", "nvswitch")]
        devices = [kid for kid in kids if kid.kind in ("gpu", "nic") and kid.id not in self.children]
        at, low, below = x, y + HEIGHT, y + HEIGHT + GAP_Y
        columns = list(self._columns(devices))
        deepest = max((len(column) for column in columns), default=1)
        for column in columns:
            for i, device in enumerate(column):
                row = deepest - 1 if device.kind == "gpu" else i
                self.at[device.id] = Box(at + INDENT, below + row * (HEIGHT + STACK), WIDTH - INDENT)
                self.bus[device.id] = i
                low = max(low, self.at[device.id].bottom)
            at += WIDTH + GAP_X
        for kid in kids:
            if kid.id not in self.at:
                end, deep = self._place(kid, at, below)
                at, low = end + GAP_X, max(low, deep)
        right = max(x + WIDTH, at - GAP_X)
        inside = [self.at[kid.id] for kid in kids]
        left = min((box.x for box in inside), default=x)
        end = max((box.right for box in inside), default=right)
        width = max(WIDTH, min(end - left, 320) if node.kind in ("numa", "host") else WIDTH)
        middle = (max(left, x) + min(max(end, left + WIDTH), right)) / 2
        self.at[node.id] = Box(middle - width / 2, y, width)
        return right, low

    def _columns(self, devices: Sequence[Node]) -> Iterable[list[Node]]:
        by_id = {node.id: node for node in devices}
        left = dict(by_id)
        for gpu in devices:
            if gpu.kind == "gpu":
                nics = [left.pop(nic) for nic in self.nics_of.get(gpu.id, ()) if nic in left]
                while len(nics) > MOST_IN_COLUMN:
                    yield nics[:MOST_IN_COLUMN]
                    nics = nics[MOST_IN_COLUMN:]
                yield [*nics, left.pop(gpu.id)]
        rest = list(left.values())
        for start in range(0, len(rest), MOST_IN_COLUMN):
            yield rest[start : start + MOST_IN_COLUMN]

    def _spread(self, row: Sequence[Node], left: float, right: float, y: float) -> None:
        pitch = (right - left) / len(row)
        # A domain whose switches are not known is a bar under its GPUs.
        width = pitch - GAP_X if row[0].kind == "nvlink_domain" and len(row) == 1 else min(pitch - GAP_X, 1.5 * WIDTH)
        for i, node in enumerate(row):
            self.at[node.id] = Box(left + pitch * (i + 0.5) - width / 2, y, width)

    def _nvlink(self, bottom: float, width: float) -> float:
        """NVSwitches under the GPUs that they join; a domain whose switches are not known stands for them."""
        low = bottom
        direct = any(self._between_gpus(edge.a, edge.b) for edge in self.tree.graph.edges if edge.kind == "nvlink")
        for domain in [node for node in self.nodes if node.kind == "nvlink_domain"]:
            switches = [node for node in self.children.get(domain.id, []) if node.kind == "nvswitch"]
            row = (
                switches
                if not any(e.kind == "nvlink" for e in self.tree.at.get(domain.id, ()))
                else [*switches, domain]
            )
            row = row or [domain]
            gpus = [self.at[gpu] for gpu in self._gpus_of([domain, *switches]) if gpu in self.at]
            left = min((box.x for box in gpus), default=float(MARGIN))
            right = max((box.right for box in gpus), default=width)
            wide = max(right - left, len(row) * (WIDTH + GAP_X))
            left = max(float(MARGIN), (left + right - wide) / 2)
            self._spread(row, left, left + wide, bottom + NVLINK_ROOM)
            low = bottom + NVLINK_ROOM + HEIGHT
        rest = [node for node in self.nodes if node.kind == "nvswitch" and node.id not in self.at]
        if rest:
            self._spread(rest, MARGIN, max(width, MARGIN + len(rest) * (WIDTH + GAP_X)), bottom + NVLINK_ROOM)
            low = bottom + NVLINK_ROOM + HEIGHT
        return max(low, bottom + 2 * NVLINK_ROOM) if direct else low

    def _between_gpus(self, a: str, b: str) -> bool:
        return self.tree.nodes[a].kind == "gpu" and self.tree.nodes[b].kind == "gpu"

    def _gpus_of(self, ends: Sequence[Node]) -> set[str]:
        names = {node.id for node in ends}
        return {
            other
            for name in names
            for edge in self.tree.at.get(name, ())
            for other in (edge.a, edge.b)
            if self.tree.nodes[other].kind == "gpu"
        }
