"""The page of `epctl topo`: what is wired to what, which NIC each GPU uses, and how full links are when all GPUs send."""

from __future__ import annotations

from typing import Any

import msgspec

from epctl.core.errors import EpctlError
from epctl.core.render.safe import plain
from epctl.page.assemble import page
from epctl.page.topo_layout import places
from epctl.page.topo_links import Links
from epctl.page.topo_loads import network, nics_of, scale_up
from epctl.topo.graph import Node
from epctl.topo.report import Report, without_rails
from epctl.topo.tree import Tree
from epctl.topo.words import KINDS, drawn, drawn_parent, facts, label, rail_of

SCHEMA = {"name": "epctl.page.topo", "version": 1}
MOST_DRAWN = 1500
"""More nodes make a page that nobody can read."""
LONGEST = 22
"""Characters in a box's second line."""


def topo_page(report: Report, *, version: str = "") -> str:
    """HTML. Raises EpctlError for a graph that is too large to be looked at."""
    tree = Tree(without_rails(report.graph))
    nodes = drawn(tree)
    if len(nodes) > MOST_DRAWN:
        why = f"it has {len(nodes)} nodes; a page holds {MOST_DRAWN}"
        raise EpctlError("the graph is too large for a page", why, "give fewer sources, or --format json or dot")
    parents = {node.id: parent for node in nodes if (parent := drawn_parent(tree, node))}
    placed = places(tree, nodes, parents, nics_of(tree))
    links = Links(tree, nodes, parents, placed)
    rails = rail_of(Tree(report.graph))
    boxes = [
        _box(node, rails.get(node.id, "")) | msgspec.to_builtins(placed.at[node.id])
        for node in nodes
        if node.id in placed.at
    ]
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "epctl": version,
        "report": report,
        "size": [placed.width, placed.height],
        "boxes": boxes,
        "links": links.all,
        "network": network(tree, links),
        "scale_up": scale_up(tree, links),
    }
    names = ", ".join(plain(host.label) for host in tree.hosts()[:4]) or "network"
    return page(
        title=f"epctl topo: {names}",
        body="topo.html",
        scripts=("page.js", "drawing.js", "topo_panel.js", "topo.js"),
        data=data,
    )


def _box(node: Node, rail: str) -> dict[str, Any]:
    first, second = label(node), facts(node)
    if node.kind == "pcie_switch":
        first, second = KINDS[node.kind], plain(node.label)
    elif node.kind == "nvswitch":
        first, second = "NVSwitch", plain(node.label.removeprefix("NVSwitch "))
    elif node.kind == "nic":
        second = _nic(node, rail)
    elif node.kind == "gpu":
        second = plain(str(node.attrs.get("name", ""))).removeprefix("NVIDIA ")
    attrs = "\n".join(plain(f"{key} {value}") for key, value in node.attrs.items())
    return {
        "id": node.id,
        "kind": node.kind,
        "first": _short(first),
        "second": _short(second),
        "title": plain(f"{KINDS[node.kind]} {node.label} ({node.source})") + (f"\n{attrs}" if attrs else ""),
        "out": node.kind == "nic" and node.attrs.get("fabric") is False,
    }


def _nic(node: Node, rail: str) -> str:
    gbps = node.attrs.get("gbps")
    rate = f"{gbps:g} Gb/s" if isinstance(gbps, int | float) else plain(str(node.attrs.get("state", "")))
    return ", ".join(part for part in (rate, rail) if part)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
