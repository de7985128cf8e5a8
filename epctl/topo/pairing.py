"""Which NIC each GPU of a machine should use: a minimum-cost assignment over PCIe distance and shared links, exact.

What is minimised (**choice**, in points): each pair pays for its way (both sides together)

    within one PCIe switch 0; one more switch 1 each; over a host bridge 10; between host bridges of a NUMA node 100; between sockets
    1000,

and for what it shares: OVERLOAD for each pair on a link between bridges that the link has no room for at line rate, SHARED for each GPU
beyond the first on a NIC, and up to SLOW for a NIC that is slower than the fastest one. Sharing halves the rate; crossing sockets was
measured to leave a third (https://github.com/NVIDIA/nccl/issues/595, https://github.com/deepseek-ai/DeepEP/issues/137): so a full link
is avoided by going over another host bridge, not over another socket.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from epctl.topo.flow import Flow
from epctl.topo.graph import Edge, Node
from epctl.topo.tree import Tree

OVERLOAD = 200
SHARED = 200
SLOW = 200
LEVEL_COST: dict[str, int] = {"PIX": 0, "PXB": 1, "PHB": 10, "NODE": 100, "SYS": 1000}
UNKNOWN_COST = 2000
"""Of a way that no source tells."""
_STEP: dict[tuple[str, str], int] = {
    ("pcie_switch", "pcie_port"): 1,
    ("pcie_switch", "pcie_switch"): 1,
    ("root_port", "host_bridge"): 5,
    ("pcie_switch", "host_bridge"): 5,
    ("gpu", "host_bridge"): 5,
    ("nic", "host_bridge"): 5,
    ("host_bridge", "numa"): 45,
    ("pcie_switch", "numa"): 5,
    ("gpu", "numa"): 5,
    ("nic", "numa"): 5,
    ("numa", "host"): 450,
    ("host_bridge", "host"): 495,
    ("gpu", "host"): 500,
    ("nic", "host"): 500,
}
"""(kind of a node, kind of what it hangs on) → points for going there, on one side of the way."""


class Pair(Struct, frozen=True, omit_defaults=True):
    """A GPU and its NICs. `gbps`: what the GPU gets of them when all GPUs send at once, by the rates of links and NICs."""

    gpu: str
    nics: tuple[str, ...]
    levels: tuple[str, ...]
    gbps: float | UnsetType = UNSET


class Problem(Struct, frozen=True):
    """One machine's GPUs and the NICs that carry EP traffic. `each`: NICs a GPU; `most`: GPUs a NIC."""

    tree: Tree
    host: str
    gpus: tuple[Node, ...]
    nics: tuple[Node, ...]
    each: int
    most: int


def problem_of(tree: Tree, host: str) -> Problem:
    """GPUs by their index; NICs that a source marked as fabric, all where none is marked."""
    gpus = sorted(tree.of_kind("gpu", host), key=lambda node: int(node.attrs.get("index", 0)))
    every = tree.of_kind("nic", host)
    nics = [node for node in every if node.attrs.get("fabric") is True] or every
    each = max(1, len(nics) // len(gpus)) if gpus else 0
    most = -(-len(gpus) // len(nics)) if nics else 0
    return Problem(tree, host, tuple(gpus), tuple(nics), each, max(most, 1))


def nic_gbs(nic: Node) -> float | None:
    """Line rate of a NIC in GB/s; None when it is not known."""
    gbps = nic.attrs.get("gbps")
    return float(gbps) / 8 if isinstance(gbps, int | float) and gbps > 0 else None


def best(problem: Problem) -> tuple[list[tuple[str, str]], int]:
    """(GPU, NIC) ids of the cheapest assignment, and its cost in points. Empty where there is no GPU or no NIC."""
    if not problem.gpus or not problem.nics:
        return [], 0
    flow = Flow()
    _ends(problem, flow)
    inner = _tree_arcs(problem, flow) if _has_tree(problem) else _direct_arcs(problem, flow)
    _, cost = flow.fill("source", "sink", problem.each * len(problem.gpus))
    pairs = _pairs(problem, flow, inner)
    return pairs, cost


def slow_cost(problem: Problem, nic: Node) -> int:
    """Points for a NIC that is slower than the fastest one."""
    rates = [rate for other in problem.nics if (rate := nic_gbs(other)) is not None]
    own = nic_gbs(nic)
    return 0 if own is None or not rates else round(SLOW * (1 - own / max(rates)))


def room(problem: Problem, edge: Edge) -> int | None:
    """How many NICs a link between bridges carries at line rate; None when a rate is not known."""
    rates = [rate for nic in problem.nics if (rate := nic_gbs(nic)) is not None]
    if edge.gbs is UNSET or not rates:
        return None
    return int(float(edge.gbs) * 1.001 / max(rates))


def step(tree: Tree, node: Node) -> int:
    """Points for going from a node to what it hangs on."""
    return _STEP.get((node.kind, tree.nodes[node.parent].kind), 0)


def _ends(problem: Problem, flow: Flow) -> None:
    for gpu in problem.gpus:
        flow.arc("source", f"up {gpu.id}", problem.each, 0)
    for nic in problem.nics:
        for user in range(problem.most):
            flow.arc(f"down {nic.id}", "sink", 1, slow_cost(problem, nic) + SHARED * user)


def _has_tree(problem: Problem) -> bool:
    """Distances that a source told as words count; else the tree does, if every device has a place in it."""
    told = any((gpu.id, nic.id) in problem.tree.told for gpu in problem.gpus for nic in problem.nics)
    return not told and all(node.parent for node in (*problem.gpus, *problem.nics))


Arcs = dict[str, list[tuple[str, int]]]
"""Tail → (head, arc), in the order in which ways are taken apart."""


def _direct_arcs(problem: Problem, flow: Flow) -> Arcs:
    found: Arcs = {}
    for gpu in problem.gpus:
        for nic in problem.nics:
            level = problem.tree.level(gpu.id, nic.id)
            cost = UNKNOWN_COST if level is None else LEVEL_COST[level]
            tail, head = f"up {gpu.id}", f"down {nic.id}"
            found.setdefault(tail, []).append((head, flow.arc(tail, head, 1, cost)))
    return found


def _tree_arcs(problem: Problem, flow: Flow) -> Arcs:
    """Each node of the tree twice, for the way up and the way down; a way turns round once."""
    tree, found = problem.tree, Arcs()
    units = problem.each * len(problem.gpus)

    def add(tail: str, head: str, capacity: int, cost: int) -> None:
        found.setdefault(tail, []).append((head, flow.arc(tail, head, capacity, cost)))

    inner: dict[str, Node] = {}
    for end in (*problem.gpus, *problem.nics):
        for node in tree.above(end.id)[1:]:
            inner.setdefault(node.id, node)
    for node in inner.values():
        add(f"up {node.id}", f"down {node.id}", units, 0)
    for going_up, ends in ((True, problem.gpus), (False, problem.nics)):
        for node in (*ends, *inner.values()):
            if node.parent in inner:
                tail, head = f"up {node.id}", f"up {node.parent}"
                if not going_up:
                    tail, head = f"down {node.parent}", f"down {node.id}"
                for capacity, cost in _prices(problem, node, units):
                    add(tail, head, capacity, cost)
    return found


def _prices(problem: Problem, node: Node, units: int) -> list[tuple[int, int]]:
    """(capacity, points) of the arcs for one step of the tree: at its price while the link has room, dearer beyond. Links of the GPUs
    and NICs themselves are as loaded in every assignment."""
    cost = step(problem.tree, node)
    edge = problem.tree.uplink.get(node.id)
    fits = room(problem, edge) if edge is not None and node.kind not in ("gpu", "nic") else None
    if fits is None or fits >= units:
        return [(units, cost)]
    return [(fits, cost), (units - fits, cost + OVERLOAD)] if fits else [(units, cost + OVERLOAD)]


def _pairs(problem: Problem, flow: Flow, arcs: Arcs) -> list[tuple[str, str]]:
    """Takes the flow apart into ways, GPU by GPU; each turns round as early as it can. Which unit goes with which does not change the
    cost."""
    left = {arc: flow.used(arc) for entries in arcs.values() for _, arc in entries}
    found = []
    for gpu in problem.gpus:
        for _ in range(problem.each):
            at = f"up {gpu.id}"
            while at in arcs:
                usable = [(head, arc) for head, arc in arcs[at] if left[arc] > 0]
                if not usable:
                    break
                at, arc = usable[0]
                left[arc] -= 1
            if at.startswith("down ") and problem.tree.nodes[at.removeprefix("down ")].kind == "nic":
                found.append((gpu.id, at.removeprefix("down ")))
    return found
