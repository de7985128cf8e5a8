"""Puts parts together: one graph that holds, or a refusal that says what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.topo.graph import Claim, Edge, Finding, Graph, Node, NodeKind, Part

MOST_NODES = 200_000
MOST_EDGES = 1_000_000
MOST_DEPTH = 128
"""Nodes one above the other; a machine with four tiers of PCIe switches has 14."""
MOST_DEVICES: dict[NodeKind, int] = {"gpu": 128, "nic": 2048}
"""Of one machine; 16 adapters with 127 virtual functions each are 2,032. Pairs of both are looked at one by one."""
SHOWN = 4
"""Subjects that a finding names; of more, their number is told."""
_LINK = frozenset({("PHB", "NODE")})
"""Words that mean the same: a topology file of NCCL has no host bridges, so that PHB is its word for NODE, too."""


def assemble(parts: Sequence[Part]) -> Graph:
    """One graph. Of a node or link that several parts hold the first one counts, with what later ones add. Raises EpctlError for cyclic
    parents, links from a node to itself, ends that are not there, and for graphs beyond all bounds."""
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str, str], Edge] = {}
    for part in parts:
        for node in part.nodes:
            nodes[node.id] = _joined(nodes[node.id], node) if node.id in nodes else node
        own: set[tuple[str, str, str]] = set()
        for edge in part.edges:
            key = _key(edge)
            if key in own:
                raise _twice(edge, part.source.name)
            own.add(key)
            edges[key] = _richer(edges[key], edge) if key in edges else edge
    if len(nodes) > MOST_NODES or len(edges) > MOST_EDGES:
        why = f"{len(nodes)} nodes and {len(edges)} links; up to {MOST_NODES} and {MOST_EDGES} are drawn"
        raise EpctlError("the topology is refused", why, "give the part of the network that matters")
    _check_ends(nodes, edges.values())
    _check_parents(nodes)
    check_devices(nodes)
    claims = [claim for part in parts for claim in part.claims]
    told = [finding for part in parts for finding in part.findings]
    findings = dict.fromkeys([*disagreements(claims), *told])
    sources = tuple(part.source for part in parts)
    distances = tuple(dict.fromkeys(entry for part in parts for entry in part.distances))
    measured = tuple(entry for part in parts for entry in part.measured)
    if unknown := next((end for entry in measured for end in (entry.a, entry.b) if end not in nodes), ""):
        why = f"its rate is told to or from {unknown}, which is nowhere described"
        raise EpctlError("a measurement belongs to no GPU", why, "give a whole file")
    return Graph(sources, tuple(nodes.values()), tuple(edges.values()), tuple(findings), distances, measured)


def check_devices(nodes: Mapping[str, Node]) -> None:
    """Raises EpctlError for a machine with more GPUs or NICs than any has. Every parent is there, and none is its own."""
    hosts: dict[str, str] = {}
    counts: Counter[tuple[str, NodeKind]] = Counter()
    for node in nodes.values():
        if node.kind in MOST_DEVICES and (host := _host(node, nodes, hosts)):
            counts[host, node.kind] += 1
    for (host, kind), count in counts.items():
        if count > MOST_DEVICES[kind]:
            what = f"machine {host} has {count} {'GPUs' if kind == 'gpu' else 'NICs'}"
            why = f"at most {MOST_DEVICES[kind]} of a machine are looked at"
            raise EpctlError(what, why, "give a file of one machine, or the part that matters")


def _host(node: Node, nodes: Mapping[str, Node], known: dict[str, str]) -> str:
    """Id of the machine that a node hangs in, '' for none. `known`: of its parents."""
    if node.parent not in known:
        at = node
        while at.parent and at.kind != "host":
            at = nodes[at.parent]
        known[node.parent] = at.id if at.kind == "host" else ""
    return known[node.parent]


def _key(edge: Edge) -> tuple[str, str, str]:
    first, second = sorted((edge.a, edge.b))
    return first, second, edge.kind


def _twice(edge: Edge, name: str) -> EpctlError:
    what = f"{name}: the link {edge.a} - {edge.b} is there twice"
    return EpctlError(what, "parallel links are counted in one entry", "remove one of the entries")


def _joined(first: Node, other: Node) -> Node:
    """What is known of a node from two sources; the first wins."""
    parent = first.parent or other.parent
    return replace(first, parent=parent, attrs={**other.attrs, **first.attrs})


def _richer(first: Edge, other: Edge) -> Edge:
    if first.gbs is UNSET and other.gbs is not UNSET:
        return replace(first, gbs=other.gbs, source=f"{first.source}, rate: {other.source}")
    return first


def _check_ends(nodes: dict[str, Node], edges: Iterable[Edge]) -> None:
    for edge in edges:
        if edge.a == edge.b:
            raise EpctlError(f"{edge.a} is linked to itself", "a link has two ends", "correct or remove that link")
        for end in (edge.a, edge.b):
            if end not in nodes:
                why = f"{edge.a} - {edge.b} ends at {end}, which is nowhere described"
                raise EpctlError("a link ends nowhere", why, "give a whole file")
    for node in nodes.values():
        if node.parent and node.parent not in nodes:
            raise EpctlError(
                "a node hangs on nothing", f"{node.id} hangs on {node.parent}, which is not there", "give a whole file"
            )


def _check_parents(nodes: dict[str, Node]) -> None:
    sound: dict[str, int] = {"": 0}
    for start in nodes:
        way: list[str] = []
        seen: set[str] = set()
        at = start
        while at not in sound:
            if at in seen:
                loop = [*way[way.index(at) :], at]
                shown = " < ".join(loop[:8]) + (" …" if len(loop) > 8 else "")
                raise EpctlError("the topology is cyclic", shown, "correct the entry that closes the circle")
            way.append(at)
            seen.add(at)
            at = nodes[at].parent
        depth = sound[at]
        for id_ in reversed(way):
            depth += 1
            sound[id_] = depth
        if depth > MOST_DEPTH:
            why = f"{start} has {depth} nodes above it; up to {MOST_DEPTH} are drawn"
            raise EpctlError("the topology is too deep", why, "give the part of it that matters")


def disagreements(claims: Iterable[Claim]) -> list[Finding]:
    """One finding for all subjects about which the same sources say the same different things."""
    told: dict[tuple[str, str, str], dict[str, str]] = {}
    for claim in claims:
        told.setdefault((claim.host, claim.what, claim.subject), {}).setdefault(claim.source, claim.value)
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[str]] = {}
    for (host, what, subject), by_source in told.items():
        values = set(by_source.values())
        if len(values) > 1 and not _same(what, by_source):
            groups.setdefault((host, what, tuple(by_source.items())), []).append(subject)
    return [_finding(host, what, sources, subjects) for (host, what, sources), subjects in groups.items()]


def _same(what: str, by_source: dict[str, str]) -> bool:
    if what != "path":
        return False
    from_xml = {value for source, value in by_source.items() if source == "NCCL XML"}
    rest = set(by_source.values()) - from_xml
    return all(value in rest or any((value, other) in _LINK for other in rest) for value in from_xml) and len(rest) <= 1


def _finding(host: str, what: str, sources: tuple[tuple[str, str], ...], subjects: list[str]) -> Finding:
    shown = ", ".join(subjects[:SHOWN])
    more = f" and {len(subjects) - SHOWN} more" if len(subjects) > SHOWN else ""
    by_value: dict[str, list[str]] = {}
    for source, value in sources:
        by_value.setdefault(value, []).append(source)
    said = ", ".join(
        f"{' and '.join(who)} {'say' if len(who) > 1 else 'says'} {value}" for value, who in by_value.items()
    )
    return Finding("warn", f"{host}: {what} of {shown}{more}: {said}", tuple(source for source, _ in sources))
