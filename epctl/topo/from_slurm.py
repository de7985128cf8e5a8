"""A scheduler's topology as a part of the graph, and the graph as a scheduler's topology."""

from __future__ import annotations

import re

from epctl.topo.graph import Edge, Node, Part, Scalar, Source
from epctl.topo.slurm import Block, Switch, Topology
from epctl.topo.tree import Tree

SOURCE = "Slurm"
_PLAIN = re.compile(r"[^\w.-]", re.ASCII)


def part_of(topology: Topology, name: str) -> Part:
    """Switches hang on each other; a machine hangs on nothing (it keeps its own tree) and is linked to its switch and its block."""
    above = {child: switch.name for switch in topology.switches for child in switch.switches}
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str], Edge] = {}
    for switch in topology.switches:
        attrs: dict[str, Scalar] = {"tier": "leaf" if switch.nodes else "spine"}
        if switch.link_speed:
            attrs["link_speed"] = switch.link_speed
        if switch.alias:
            attrs["alias"] = switch.alias
        parent = f"slurm/{above[switch.name]}" if switch.name in above else ""
        nodes[f"slurm/{switch.name}"] = Node(f"slurm/{switch.name}", "switch", switch.name, parent, SOURCE, attrs)
    for block in topology.blocks:
        more: dict[str, Scalar] = {"alias": block.alias} if block.alias else {}
        nodes[f"block/{block.name}"] = Node(f"block/{block.name}", "block", block.name, "", SOURCE, more)
    for front, entry in [("slurm", s) for s in topology.switches] + [("block", b) for b in topology.blocks]:
        for host in entry.nodes:
            nodes.setdefault(host, Node(host, "host", host, "", SOURCE))
            edges[host, entry.name] = Edge(
                host, f"{front}/{entry.name}", "network" if front == "slurm" else "member", SOURCE
            )
    for child, parent_name in above.items():
        edges[child, parent_name] = Edge(f"slurm/{child}", f"slurm/{parent_name}", "network", SOURCE)
    return Part(Source(name, "slurm"), tuple(nodes.values()), tuple(edges.values()))


def topology_of(tree: Tree) -> tuple[Topology, list[str]]:
    """For topology.conf: the switches that link the machines, each machine below the switch that most of its ports are on; a block for
    every NVLink domain that reaches over machines; and notes. Machines without a known switch hang below one that is made up: Slurm wants
    them all in one tree."""
    hosts = [node.id for node in tree.hosts()]
    leaf_of = _leaves(tree)
    parents = _parents(tree, set(leaf_of.values()))
    names = _names(tree)
    told: list[Switch] = []
    below: dict[str, list[str]] = {}
    for child, parent in parents.items():
        below.setdefault(parent, []).append(names[child])
    on: dict[str, list[str]] = {}
    for host in hosts:
        if host in leaf_of:
            on.setdefault(leaf_of[host], []).append(host)
    for switch in tree.of_kind("switch"):
        children, mine = tuple(below.get(switch.id, ())), tuple(on.get(switch.id, ()))
        own = f"{names[switch.id]}-nodes"
        if children and mine:  # topology/tree has either below a switch
            told += [Switch(names[switch.id], (*children, own)), Switch(own, (), mine)]
        elif children or mine:
            told.append(Switch(names[switch.id], children, mine))
    notes = []
    lost = tuple(host for host in hosts if host not in leaf_of)
    if lost:
        told = _with_unknown(told, lost)
        notes.append(f"no source shows the switch of {len(lost)} machines: they hang below a switch that is made up")
    blocks, sizes = _blocks(tree)
    return Topology(tuple(told), blocks, sizes), notes


def _names(tree: Tree) -> dict[str, str]:
    """Switch id → a name that Slurm takes, each once."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for node in tree.of_kind("switch"):
        name = _name(node)
        name = name if name not in taken else f"{name}-{_PLAIN.sub('_', node.id)[-24:]}"
        taken.add(name)
        found[node.id] = name
    return found


def _with_unknown(told: list[Switch], lost: tuple[str, ...]) -> list[Switch]:
    if not told:
        return [Switch("all", (), lost)]
    below = {child for switch in told for child in switch.switches}
    tops = tuple(switch.name for switch in told if switch.name not in below)
    return [Switch("all", (*tops, "unknown")), *told, Switch("unknown", (), lost)]


def _leaves(tree: Tree) -> dict[str, str]:
    """Machine → the switch that most of its ports are on; the first by id where several have the same number (rails)."""
    counts: dict[str, dict[str, int]] = {}
    for edge in tree.graph.edges:
        if edge.kind == "network":
            for own, other in ((edge.a, edge.b), (edge.b, edge.a)):
                host = tree.host(own)
                if host and tree.nodes[other].kind == "switch":
                    mine = counts.setdefault(host, {})
                    mine[other] = mine.get(other, 0) + edge.num_links
    return {host: min(mine, key=lambda id_: (-mine[id_], id_)) for host, mine in counts.items()}


def _parents(tree: Tree, leaves: set[str]) -> dict[str, str]:
    """A tree over switches: each hangs on the neighbour one tier up that has the most neighbours. Slurm knows trees only, so that of
    several spines one stands for all."""
    own = {node.id: node.parent for node in tree.of_kind("switch") if node.parent}
    if own:
        return own
    neighbours: dict[str, set[str]] = {}
    for edge in tree.graph.edges:
        ends = tree.nodes[edge.a], tree.nodes[edge.b]
        if edge.kind == "network" and all(
            node.kind == "switch" and node.attrs.get("tier") != "unknown" for node in ends
        ):
            neighbours.setdefault(edge.a, set()).add(edge.b)
            neighbours.setdefault(edge.b, set()).add(edge.a)
    tier = dict.fromkeys(leaves, 0)
    queue = sorted(leaves)
    for at in queue:  # grows while it is gone through
        for other in sorted(neighbours.get(at, ())):
            if other not in tier:
                tier[other] = tier[at] + 1
                queue.append(other)
    found: dict[str, str] = {}
    for id_, height in tier.items():
        up = [other for other in neighbours.get(id_, ()) if tier.get(other) == height + 1]
        if up:
            found[id_] = min(up, key=lambda other: (-len(neighbours[other]), other))
    return found


def _blocks(tree: Tree) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """NVLink domains that several machines are in, or that a scheduler's file told."""
    members: dict[str, dict[str, None]] = {}
    for edge in tree.graph.edges:
        for own, other in ((edge.a, edge.b), (edge.b, edge.a)):
            node = tree.nodes[other]
            rack = node.kind == "nvlink_domain" and not node.parent
            if (rack or node.kind == "block") and tree.host(own):
                members.setdefault(other, {})[tree.host(own)] = None
    blocks = tuple(
        Block(
            _name(tree.nodes[id_]) if tree.nodes[id_].kind == "block" else f"block{i:03d}",
            tuple(hosts),
            _alias(tree.nodes[id_]),
        )
        for i, (id_, hosts) in enumerate(members.items(), 1)
    )
    smallest = min((len(block.nodes) for block in blocks), default=0)
    sizes = [smallest * 2**k for k in range(len(blocks).bit_length())] if smallest else []
    return blocks, tuple(size for size in sizes if size <= smallest * len(blocks))


def _alias(node: Node) -> str:
    told = node.attrs.get("alias", node.id.removeprefix("nvlink/") if node.kind == "nvlink_domain" else "")
    return _PLAIN.sub("_", str(told))


def _name(node: Node) -> str:
    return _PLAIN.sub("_", node.label) or "switch"
