"""Places for the nodes of a picture: trees side by side, each parent over the middle of what hangs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from epctl.topo.graph import Node

WIDTH = 96
HEIGHT = 34
GAP_X = 14
GAP_Y = 46
MARGIN = 20
_BOTTOM = ("nvlink_domain", "nvswitch")
_NETWORK = ("switch", "block", "rail")


class Placed(Struct, frozen=True):
    """Middle of each node, and the size of the picture."""

    at: Mapping[str, tuple[float, float]]
    width: int
    height: int


def layout(nodes: Sequence[Node], parents: Mapping[str, str], width_of: Callable[[Node], int]) -> Placed:
    """Network switches in rows at the top, machines below them, NVSwitches and rails under the devices."""
    children: dict[str, list[Node]] = {}
    for node in nodes:
        children.setdefault(parents.get(node.id, ""), []).append(node)
    tops = [node for node in children.get("", []) if node.kind == "host"]
    at: dict[str, tuple[float, float]] = {}
    rows = [[n for n in nodes if n.kind == "switch" and n.attrs.get("tier") == "spine"]]
    rows.append([n for n in nodes if n.kind in ("switch", "block") and n not in rows[0]])
    y = MARGIN + HEIGHT / 2
    edge = 0.0
    for row in rows:
        if row:
            edge = max(edge, _row(row, y, MARGIN, at, width_of))
            y += HEIGHT + 2 * GAP_Y
    start, bottom = float(MARGIN), y
    for host in tops:
        tree = [node for node in children.get(host.id, []) if node.kind not in _BOTTOM]
        right, low = _tree(host, tree, children, start, y, at, width_of)
        bottom = max(bottom, low)
        start = right + 2 * GAP_X
    bottom += HEIGHT + GAP_Y
    bottom = _below(nodes, at, bottom, max(start - 2 * GAP_X, edge), width_of)
    lost = [node for node in nodes if node.id not in at]
    if lost:
        edge = max(edge, _row(lost, bottom, MARGIN, at, width_of))
        bottom += HEIGHT + GAP_Y
    by_id = {node.id: node for node in nodes}
    right = max((x + width_of(by_id[id_]) / 2 for id_, (x, _) in at.items()), default=WIDTH)
    low_end = max((y for _, y in at.values()), default=HEIGHT)
    return Placed(at, round(max(right, edge) + MARGIN), round(low_end + HEIGHT / 2 + MARGIN))


def _row(
    row: Sequence[Node], y: float, start: float, at: dict[str, tuple[float, float]], width_of: Callable[[Node], int]
) -> float:
    for node in row:
        width = width_of(node)
        at[node.id] = (start + width / 2, y)
        start += width + GAP_X
    return start


def _tree(
    top: Node,
    below: Sequence[Node],
    children: Mapping[str, list[Node]],
    start: float,
    y: float,
    at: dict[str, tuple[float, float]],
    width_of: Callable[[Node], int],
) -> tuple[float, float]:
    """Places a subtree from `start` to the right; returns its right end and its lowest y. A node wider than all that hangs on it moves
    that to its middle."""
    own, low = width_of(top), y
    placed = len(at)
    right = start
    for child in below:
        end, deep = _tree(child, children.get(child.id, []), children, right, y + HEIGHT + GAP_Y, at, width_of)
        right, low = end + GAP_X, max(low, deep)
    right = right - GAP_X if below else start
    if right - start < own:
        shift = (own - (right - start)) / 2
        for id_ in list(at)[placed:]:
            at[id_] = at[id_][0] + shift, at[id_][1]
        right = start + own
    at[top.id] = ((start + right) / 2, y)
    return right, low


def _below(
    nodes: Sequence[Node], at: dict[str, tuple[float, float]], y: float, right: float, width_of: Callable[[Node], int]
) -> float:
    """NVSwitches and domains in rows under everything, then rails; each row spread over the whole width."""
    for kind in ("nvswitch", "nvlink_domain", "rail"):
        row = [node for node in nodes if node.kind == kind]
        if not row:
            continue
        widths = [width_of(node) for node in row]
        gap = max(float(GAP_X), (right - MARGIN - sum(widths)) / len(row))
        start = MARGIN + gap / 2
        for node, width in zip(row, widths, strict=True):
            at[node.id] = (start + width / 2, y)
            start += width + gap
        y += HEIGHT + GAP_Y
    return y
