"""What flows over a node's links when all GPUs send at once: to their NICs, and to each other over NVLink."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, Struct

from epctl.page.topo_links import Links, Step
from epctl.topo.choices import default_of, flow_gbps
from epctl.topo.graph import Edge, Node
from epctl.topo.pairing import best, problem_of
from epctl.topo.tree import Tree

MOST_NVLINK_GPUS = 144
"""Of one domain whose flows are listed pair by pair."""


class Flow(Struct, frozen=True):
    """From device to device, 1e9 bytes/s."""

    source: str
    target: str
    gbs: float
    path: tuple[Step, ...]


class Network(Struct, frozen=True):
    """GPUs and their NICs under both assignments; `missing`: why there is none."""

    best: tuple[Flow, ...] = ()
    default: tuple[Flow, ...] = ()
    missing: str = ""


class ScaleUp(Struct, frozen=True):
    """Every GPU sends to every other that it reaches over NVLink; `missing`: why there is nothing."""

    flows: tuple[Flow, ...] = ()
    missing: str = ""


def network(tree: Tree, links: Links) -> Network:
    """Of all machines. Rates as `epctl.topo.choices` has them."""
    best_flows: list[Flow] = []
    default_flows: list[Flow] = []
    paired = False
    for host in tree.hosts():
        problem = problem_of(tree, host.id)
        if not problem.gpus or not problem.nics:
            continue
        paired = True
        for chosen, flows in ((best(problem)[0], best_flows), (default_of(problem), default_flows)):
            rates = flow_gbps(problem, chosen)
            if rates is None:
                return Network(missing="No source tells the rate of every NIC, so loads are not known.")
            for (gpu, nic), gbps in zip(chosen, rates, strict=True):
                names = (_name(tree, gpu), _name(tree, nic))
                flows.append(Flow(*names, gbps / 8, tuple(links.way(gpu, nic))))
    if not paired:
        return Network(missing="No machine here has both GPUs and NICs.")
    return Network(tuple(best_flows), tuple(default_flows))


def _name(tree: Tree, id_: str) -> str:
    node = tree.nodes[id_]
    return f"{tree.nodes[tree.host(id_)].label} {node.label}" if len(tree.hosts()) > 1 else node.label


def nics_of(tree: Tree) -> dict[str, list[str]]:
    """GPU → NICs of the best assignment."""
    found: dict[str, list[str]] = {}
    for host in tree.hosts():
        for gpu, nic in best(problem_of(tree, host.id))[0]:
            found.setdefault(gpu, []).append(nic)
    return found


def scale_up(tree: Tree, links: Links) -> ScaleUp:
    """An even exchange: of two GPUs behind switches each gives the other an equal part of its NVLink rate, and the smaller part counts;
    GPUs that are joined directly use their links whole."""
    edges = [edge for edge in tree.graph.edges if edge.kind == "nvlink"]
    if not edges:
        return ScaleUp(missing="No source shows an NVLink.")
    if any(edge.gbs is UNSET for edge in edges):
        return ScaleUp(missing="No source tells the rate of every NVLink.")
    domains = _domains(tree, edges)
    if any(len(members) > MOST_NVLINK_GPUS for members in domains):
        return ScaleUp(missing="Too many GPUs share one NVLink domain to list their flows.")
    flows = [*_direct(tree, links, edges)]
    for members in domains:
        flows += _switched(tree, links, members)
    return ScaleUp(tuple(flows))


def _domains(tree: Tree, edges: list[Edge]) -> list[dict[str, list[Edge]]]:
    """By domain: GPU → its edges to switches."""
    found: dict[str, dict[str, list[Edge]]] = {}
    for edge in edges:
        gpu, other = (edge.a, edge.b) if tree.nodes[edge.a].kind == "gpu" else (edge.b, edge.a)
        if tree.nodes[other].kind != "gpu" and tree.nodes[gpu].kind == "gpu":
            found.setdefault(_home(tree.nodes[other]), {}).setdefault(gpu, []).append(edge)
    return list(found.values())


def _home(node: Node) -> str:
    return node.parent if node.kind == "nvswitch" and node.parent else node.id


def _direct(tree: Tree, links: Links, edges: list[Edge]) -> Iterator[Flow]:
    for edge in edges:
        if tree.nodes[edge.a].kind == tree.nodes[edge.b].kind == "gpu":
            number = links.by_edge[edge.a, edge.b, "nvlink"]
            for source, target in ((edge.a, edge.b), (edge.b, edge.a)):
                yield Flow(_name(tree, source), _name(tree, target), _rate([edge]), (Step(number, source == edge.a),))


def _switched(tree: Tree, links: Links, members: dict[str, list[Edge]]) -> Iterator[Flow]:
    for source, out in members.items():
        for target, into in members.items():
            least = min(_rate(out), _rate(into))
            if source != target and least > 0:
                path = (*_fan(links, out, source, out=True), *_fan(links, into, target, out=False))
                yield Flow(_name(tree, source), _name(tree, target), least / (len(members) - 1), path)


def _rate(edges: list[Edge]) -> float:
    return sum(0.0 if edge.gbs is UNSET else float(edge.gbs) for edge in edges)


def _fan(links: Links, edges: list[Edge], gpu: str, *, out: bool) -> Iterator[Step]:
    """A flow spreads over a GPU's links as their rates."""
    total = _rate(edges)
    for edge in edges:
        if edge.gbs is not UNSET:
            up = out if edge.a == gpu else not out
            yield Step(links.by_edge[edge.a, edge.b, "nvlink"], up, float(edge.gbs) / total)
