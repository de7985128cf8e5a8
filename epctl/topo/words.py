"""How nodes and links are worded, for every writer."""

from __future__ import annotations

import re

from msgspec import UNSET

from epctl.core.render.safe import plain
from epctl.topo.graph import Edge, Node
from epctl.topo.tree import Tree

KINDS: dict[str, str] = {
    "host": "machine",
    "numa": "NUMA node",
    "host_bridge": "PCI root",
    "root_port": "root port",
    "pcie_switch": "PCIe switch",
    "pcie_port": "switch port",
    "gpu": "GPU",
    "nic": "NIC",
    "port": "port",
    "nvlink_domain": "NVLink domain",
    "nvswitch": "NVSwitch",
    "rail": "rail",
    "switch": "switch",
    "block": "block",
}
_SAYS_NOTHING = ("Unspecified",)
"""The link layer of adapters that have none of their own, such as EFA."""
_PLACES = ("host_bridge", "root_port", "pcie_port")
"""Nodes that only lead on: pictures and the text leave them out, JSON has them."""


def label(node: Node) -> str:
    """`PCIe switch 0000:16:00.0`, `GPU 0`."""
    if node.kind in ("pcie_switch", "host_bridge", "root_port", "pcie_port"):
        return plain(f"{KINDS[node.kind]} {node.label}")
    return plain(node.label)


def natural(node: Node) -> tuple[tuple[int, str], ...]:
    """To sort by label as people count: mlx5_2 before mlx5_10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", node.label)
    return tuple((int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in parts)


def gbs(edge: Edge) -> str:
    """`63.0 GB/s`, '' where no source tells."""
    return "" if edge.gbs is UNSET else f"{float(edge.gbs):.1f} GB/s"


def link(edge: Edge) -> str:
    """All that is known of a link: number, rate, how it is trained."""
    many = f"{edge.num_links} x " if edge.num_links > 1 else ""
    return " ".join(part for part in (f"{many}{edge.kind}", gbs(edge), plain(edge.detail), measured(edge)) if part)


def measured(edge: Edge) -> str:
    """`(measured 389.2 and 388.7 GB/s)`, towards `b` first; '' where nothing is."""
    told = ["?" if each is UNSET else f"{float(each):.1f}" for each in (edge.measured_up_gbs, edge.measured_down_gbs)]
    if told == ["?", "?"]:
        return ""
    return f"(measured {told[0] if told[0] == told[1] else ' and '.join(told)} GB/s)"


def facts(node: Node) -> str:
    """Name, state and rate of a device, in one line."""
    attrs = node.attrs
    keys = ("name", "product", "state", "link_layer", "tier")
    words = [str(attrs[key]) for key in keys if attrs.get(key) and attrs[key] not in _SAYS_NOTHING]
    gbps = attrs.get("gbps")
    if isinstance(gbps, int | float):
        words.append(f"{gbps:g} Gb/s")
    return plain(", ".join(words))


def rail_of(tree: Tree) -> dict[str, str]:
    """NIC id → `rail 0`."""
    return {edge.a: tree.nodes[edge.b].label for edge in tree.graph.edges if edge.kind == "rail"}


def drawn_parent(tree: Tree, node: Node) -> str:
    """The nearest node above that pictures show."""
    at = node.parent
    while at and tree.nodes[at].kind in _PLACES:
        at = tree.nodes[at].parent
    return at


def drawn(tree: Tree) -> list[Node]:
    """Nodes that pictures show: without the places that only lead on, ports, and switches with nothing below."""
    used = {above.id for node in tree.graph.nodes if node.kind in ("gpu", "nic") for above in tree.above(node.id)}
    shown = []
    for node in tree.graph.nodes:
        if node.kind in _PLACES or node.kind == "port":
            continue
        if node.kind == "pcie_switch" and node.id not in used:
            continue
        shown.append(node)
    return shown


def drawn_edges(tree: Tree, shown: set[str]) -> list[tuple[str, str, Edge]]:
    """Links of pictures; an end at a port is drawn at its NIC, one at a place that only leads on at the node above it. The links of the
    tree come from the nodes' parents."""
    found = []
    for edge in tree.graph.edges:
        if edge.kind == "pcie":
            continue
        ends = [_seen(tree, end, shown) for end in (edge.a, edge.b)]
        if all(ends) and ends[0] != ends[1]:
            found.append((ends[0], ends[1], edge))
    return found


def _seen(tree: Tree, id_: str, shown: set[str]) -> str:
    return next((node.id for node in tree.above(id_) if node.id in shown), "")
