"""What differs between two graphs. With one machine each, its name does not count: two nodes of one kind can be compared."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct

from epctl.topo.choices import pairing_of
from epctl.topo.graph import Edge, Graph, Node
from epctl.topo.report import without_rails
from epctl.topo.tree import Tree
from epctl.topo.words import KINDS

_NAMES = ("uuid", "node_guid", "lid", "cluster_uuid", "guid", "dev")
"""What tells one machine from the next, but not its wiring."""


class Change(Struct, frozen=True, omit_defaults=True):
    """One difference. `what`: the node or link; `before` and `after`: '' where there is nothing on that side."""

    kind: Literal["node", "link", "attribute", "place", "pairing"]
    what: str
    before: str = ""
    after: str = ""


class Diff(Struct, frozen=True):
    """`changes` is empty when both are wired alike."""

    a: str
    b: str
    changes: tuple[Change, ...]
    compared: int
    """Nodes and links that were looked at, on both sides together."""


def diff(a: Graph, b: Graph, names: tuple[str, str], *, every: bool = False) -> Diff:
    """`every`: also what names a machine (UUIDs, GUIDs, LIDs)."""
    first, second = Tree(without_rails(a)), Tree(without_rails(b))
    cut = _cut(first), _cut(second)
    if not all(cut):
        cut = "", ""
    nodes = tuple(
        {_short(id_, own): node for id_, node in tree.nodes.items()}
        for tree, own in zip((first, second), cut, strict=True)
    )
    changes = [*_nodes(nodes[0], nodes[1], cut, every=every)]
    links = tuple(_links(tree, own) for tree, own in zip((first, second), cut, strict=True))
    changes += _link_changes(links[0], links[1])
    changes += _pairings(first, second, cut)
    return Diff(names[0], names[1], tuple(changes), sum(map(len, nodes)) + sum(map(len, links)))


def _cut(tree: Tree) -> str:
    hosts = tree.hosts()
    return hosts[0].id if len(hosts) == 1 else ""


def _short(id_: str, host: str) -> str:
    if host and id_ == host:
        return "machine"
    return id_.removeprefix(f"{host}/") if host else id_


def _nodes(a: dict[str, Node], b: dict[str, Node], cut: tuple[str, str], *, every: bool) -> list[Change]:
    changes = []
    for id_ in dict.fromkeys((*a, *b)):
        one, other = a.get(id_), b.get(id_)
        if one is None or other is None:
            told = [f"{KINDS[node.kind]} {node.label}" if node is not None else "" for node in (one, other)]
            changes.append(Change("node", id_, told[0], told[1]))
            continue
        above = _short(one.parent, cut[0]), _short(other.parent, cut[1])
        if above[0] != above[1]:
            changes.append(Change("place", id_, above[0] or "nothing", above[1] or "nothing"))
        for key in dict.fromkeys((*one.attrs, *other.attrs)):
            before, after = one.attrs.get(key, ""), other.attrs.get(key, "")
            if before != after and (every or key not in _NAMES):
                changes.append(Change("attribute", f"{id_} {key}", _told(before), _told(after)))
    return changes


def _told(value: str | float | bool) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _links(tree: Tree, host: str) -> dict[str, Edge]:
    found = {}
    for edge in tree.graph.edges:
        ends = sorted((_short(edge.a, host), _short(edge.b, host)))
        found[f"{ends[0]} - {ends[1]} ({edge.kind})"] = edge
    return found


def _link_changes(a: dict[str, Edge], b: dict[str, Edge]) -> list[Change]:
    found = []
    for key in dict.fromkeys((*a, *b)):
        before, after = (_link(links[key]) if key in links else "" for links in (a, b))
        if before != after:
            found.append(Change("link", key, before, after))
    return found


def _link(edge: Edge) -> str:
    rate = "unknown rate" if edge.gbs is UNSET else f"{float(edge.gbs):g} GB/s"
    return f"{edge.num_links} links, {rate}" if edge.num_links > 1 else rate


def _pairings(a: Tree, b: Tree, cut: tuple[str, str]) -> list[Change]:
    told: list[dict[str, str]] = []
    for tree, own in zip((a, b), cut, strict=True):
        mine: dict[str, str] = {}
        for host in tree.hosts():
            pairing = pairing_of(tree, host.id)
            for pair in pairing.best.pairs if pairing is not None else ():
                front = "" if own else f"{host.id} "
                mine[f"{front}{pair.gpu}"] = ", ".join(
                    f"{nic} ({level})" for nic, level in zip(pair.nics, pair.levels, strict=True)
                )
        told.append(mine)
    keys = dict.fromkeys((*told[0], *told[1]))
    return [
        Change("pairing", key, told[0].get(key, ""), told[1].get(key, ""))
        for key in keys
        if told[0].get(key) != told[1].get(key)
    ]
