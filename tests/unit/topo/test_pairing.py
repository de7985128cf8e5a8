"""The assignment of NICs is the cheapest there is: held against trying everything, on random PCIe trees and random distances."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from epctl.topo.build import assemble
from epctl.topo.choices import default_of, pairing_of, usable_gbps
from epctl.topo.flow import Flow
from epctl.topo.graph import Distance, Edge, Graph, Node, Part, Source
from epctl.topo.pairing import LEVEL_COST, OVERLOAD, SHARED, Problem, best, problem_of, room, slow_cost, step
from epctl.topo.tree import LEVELS, Tree

Pairs = tuple[tuple[str, str], ...]


def graph_of(nodes: list[Node], edges: list[Edge], distances: tuple[Distance, ...] = ()) -> Graph:
    return assemble([Part(Source("f", "graph"), tuple(nodes), tuple(edges), (), (), distances)])


@st.composite
def machines(draw: st.DrawFn) -> Tree:
    """One or two NUMA nodes with switches, some of them behind another; GPUs and NICs anywhere below; narrow and wide uplinks."""
    nodes, edges, places = [Node("h", "host", "h")], [], []
    for numa in range(draw(st.integers(1, 2))):
        nodes.append(Node(f"h/n{numa}", "numa", "n", "h"))
        for root in range(draw(st.integers(1, 2))):
            key = f"{numa}{root}"
            nodes += [
                Node(f"h/b{key}", "host_bridge", "b", f"h/n{numa}"),
                Node(f"h/r{key}", "root_port", "r", f"h/b{key}"),
            ]
            nodes.append(Node(f"h/s{key}", "pcie_switch", "s", f"h/r{key}"))
            edges.append(Edge(f"h/s{key}", f"h/r{key}", "pcie", "t", draw(st.sampled_from([31.5, 63.0, 126.0, UNSET]))))
            places.append(f"h/s{key}")
            if draw(st.booleans()):
                nodes += [
                    Node(f"h/p{key}", "pcie_port", "p", f"h/s{key}"),
                    Node(f"h/t{key}", "pcie_switch", "t", f"h/p{key}"),
                ]
                edges.append(Edge(f"h/t{key}", f"h/p{key}", "pcie", "t", draw(st.sampled_from([31.5, 63.0]))))
                places.append(f"h/t{key}")
    num_gpus, num_nics = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rates = draw(st.lists(st.sampled_from([100.0, 200.0, 400.0]), min_size=num_nics, max_size=num_nics))
    for i in range(num_gpus):
        nodes.append(Node(f"h/gpu{i}", "gpu", f"GPU {i}", draw(st.sampled_from(places)), "t", {"index": i}))
    for i, rate in enumerate(rates):
        attrs: dict[str, str | int | float | bool] = {"gbps": rate, "fabric": True}
        nodes.append(Node(f"h/m{i}", "nic", f"m{i}", draw(st.sampled_from(places)), "t", attrs))
    return Tree(graph_of(nodes, edges))


def every_assignment(problem: Problem) -> list[Pairs]:
    names = [nic.id for nic in problem.nics]
    found = []
    for chosen in product(combinations(names, problem.each), repeat=len(problem.gpus)):
        pairs = tuple((gpu.id, nic) for gpu, nics in zip(problem.gpus, chosen, strict=True) for nic in nics)
        if all(sum(used == name for _, used in pairs) <= problem.most for name in names):
            found.append(pairs)
    return found


def price(problem: Problem, pairs: Pairs) -> int:
    """By the definition: ways, NICs shared and slow, links between bridges with more pairs than they have room for."""
    tree, total = problem.tree, 0
    load: dict[tuple[str, bool], int] = {}
    for gpu, nic in pairs:
        left, top, right = tree.meeting(gpu, nic)
        assert top is not None
        for up, side in ((True, [tree.nodes[gpu], *left]), (False, [tree.nodes[nic], *right])):
            for node in side:
                total += step(tree, node)
                if node.kind not in ("gpu", "nic"):
                    load[node.id, up] = load.get((node.id, up), 0) + 1
    for (id_, _), count in load.items():
        fits = room(problem, tree.uplink[id_]) if id_ in tree.uplink else None
        total += 0 if fits is None else OVERLOAD * max(0, count - fits)
    for nic in problem.nics:
        users = sum(used == nic.id for _, used in pairs)
        total += users * slow_cost(problem, nic) + SHARED * users * (users - 1) // 2
    return total


@settings(max_examples=150, deadline=None)
@given(machines())
def test_on_a_tree_nothing_is_cheaper(tree: Tree) -> None:
    problem = problem_of(tree, "h")
    pairs, cost = best(problem)
    assert len(pairs) == problem.each * len(problem.gpus)
    assert cost == min(price(problem, candidate) for candidate in every_assignment(problem))
    assert price(problem, tuple(pairs)) == cost


@st.composite
def told_distances(draw: st.DrawFn) -> Tree:
    """What `nvidia-smi topo -m` tells: words, no tree."""
    gpus, nics = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    nodes = [
        Node("h", "host", "h"),
        *(Node(f"h/gpu{i}", "gpu", f"GPU {i}", "h", "t", {"index": i}) for i in range(gpus)),
    ]
    nodes += [Node(f"h/m{i}", "nic", f"m{i}", "h", "t", {"fabric": True}) for i in range(nics)]
    words = st.sampled_from(LEVELS)
    distances = tuple(Distance(f"h/gpu{a}", f"h/m{b}", draw(words), "t") for a in range(gpus) for b in range(nics))
    return Tree(graph_of(nodes, [], distances))


@settings(max_examples=150, deadline=None)
@given(told_distances())
def test_on_told_distances_nothing_is_cheaper(tree: Tree) -> None:
    problem = problem_of(tree, "h")

    def told_price(pairs: Pairs) -> int:
        ways = sum(LEVEL_COST[tree.told[pair]] for pair in pairs)
        users = [sum(used == nic.id for _, used in pairs) for nic in problem.nics]
        return ways + sum(SHARED * count * (count - 1) // 2 for count in users)

    pairs, cost = best(problem)
    assert cost == min(map(told_price, every_assignment(problem))) == told_price(tuple(pairs))


@settings(max_examples=60, deadline=None)
@given(machines())
def test_no_gpu_gets_more_than_its_nics_and_no_link_carries_more_than_it_can(tree: Tree) -> None:
    problem = problem_of(tree, "h")
    pairs, _ = best(problem)
    rates = usable_gbps(problem, pairs)
    assert rates is not None
    line = {nic.id: float(nic.attrs["gbps"]) for nic in problem.nics}
    for gpu in problem.gpus:
        assert 0 < rates[gpu.id] <= sum(line[nic] for owner, nic in pairs if owner == gpu.id) + 1e-6
    assert sum(rates.values()) <= sum(line.values()) + 1e-6


@settings(max_examples=60, deadline=None)
@given(machines())
def test_the_default_uses_nics_of_the_machine_and_serves_every_gpu(tree: Tree) -> None:
    problem = problem_of(tree, "h")
    pairs = default_of(problem)
    assert {gpu for gpu, _ in pairs} == {gpu.id for gpu in problem.gpus}
    assert {nic for _, nic in pairs} <= {nic.id for nic in problem.nics}


def test_a_full_uplink_is_avoided_over_the_host_bridge_but_not_over_the_socket() -> None:
    """Two GPUs on one switch, two NICs on each of two others: the first is behind an uplink with room for one."""

    def pairs(other: str) -> list[tuple[str, str]]:
        nodes = [Node("h", "host", "h"), Node("h/n0", "numa", "0", "h"), Node("h/n1", "numa", "1", "h")]
        for key, parent in (("a", "h/n0"), ("b", "h/n0"), ("c", other)):
            nodes += [Node(f"h/b{key}", "host_bridge", key, parent), Node(f"h/s{key}", "pcie_switch", key, f"h/b{key}")]
        nodes += [Node(f"h/gpu{i}", "gpu", f"GPU {i}", "h/sa", "", {"index": i}) for i in range(2)]
        for i, switch in enumerate(("h/sb", "h/sb", "h/sc", "h/sc")):
            nodes.append(Node(f"h/m{i}", "nic", f"m{i}", switch, "", {"gbps": 400.0, "fabric": i != 3}))
        edges = [
            Edge("h/sb", "h/bb", "pcie", "t", 63.0),
            Edge("h/sc", "h/bc", "pcie", "t", 63.0),
            Edge("h/sa", "h/ba", "pcie", "t", 126.0),
        ]
        return best(problem_of(Tree(graph_of(nodes, edges)), "h"))[0]

    assert sorted(nic for _, nic in pairs("h/n0")) == ["h/m0", "h/m2"]
    assert sorted(nic for _, nic in pairs("h/n1")) == ["h/m0", "h/m1"]


def test_two_gpus_and_two_nics_behind_one_switch_are_dealt_by_nccl_as_here() -> None:
    nodes = [Node("h", "host", "h"), Node("h/n0", "numa", "0", "h"), Node("h/s", "pcie_switch", "s", "h/n0")]
    nodes += [Node(f"h/gpu{i}", "gpu", f"GPU {i}", "h/s", "", {"index": i}) for i in range(2)]
    nodes += [Node(f"h/m{i}", "nic", f"m{i}", "h/s", "", {"gbps": 200.0, "fabric": True}) for i in range(2)]
    pairing = pairing_of(Tree(graph_of(nodes, [])), "h")
    assert pairing is not None
    assert (
        [pair.nics for pair in pairing.best.pairs]
        == [pair.nics for pair in pairing.default.pairs]
        == [("m0",), ("m1",)]
    )
    assert "the default choice is the same" in pairing.notes


def test_four_nics_for_four_gpus_at_one_distance_are_dealt_in_mirrored_order_by_nccl() -> None:
    """GPUs 0, 1, 2, 3 start at NICs 0, 2, 1, 3: the bits of the number in reverse."""
    nodes = [Node("h", "host", "h"), Node("h/n0", "numa", "0", "h"), Node("h/s", "pcie_switch", "s", "h/n0")]
    nodes += [Node(f"h/gpu{i}", "gpu", f"GPU {i}", "h/s", "", {"index": i}) for i in range(4)]
    nodes += [Node(f"h/m{i}", "nic", f"m{i}", "h/s", "", {"gbps": 200.0, "fabric": True}) for i in range(4)]
    assert [nic for _, nic in default_of(problem_of(Tree(graph_of(nodes, [])), "h"))] == [
        "h/m0",
        "h/m2",
        "h/m1",
        "h/m3",
    ]


def test_a_machine_without_nics_has_no_pairing() -> None:
    tree = Tree(graph_of([Node("h", "host", "h"), Node("h/gpu0", "gpu", "GPU 0", "h")], []))
    assert pairing_of(tree, "h") is None
    assert best(problem_of(tree, "h")) == ([], 0)


def test_flow_takes_back_a_unit_where_that_is_cheaper() -> None:
    flow = Flow()
    for tail, head, cost in (("s", "a", 1), ("s", "b", 4), ("a", "b", 1), ("a", "t", 5), ("b", "t", 1)):
        flow.arc(tail, head, 1, cost)
    assert flow.fill("s", "t", 2) == (2, 11)
    assert flow.fill("s", "t", 1) == (0, 0)


@pytest.mark.parametrize(
    ("places", "level", "points"),
    [
        (("s0", "s0"), "PIX", 0),
        (("s0", "t0"), "PXB", 1),
        (("s0", "s1"), "PHB", 10),
        (("s0", "s2"), "NODE", 100),
        (("s0", "s3"), "SYS", 1000),
        (("t0", "s3"), "SYS", 1001),
    ],
)
def test_points_of_each_distance(places: tuple[str, str], level: str, points: int) -> None:
    """Switch s0 with t0 behind it and s1 share a host bridge, s2 is on another of the socket, s3 on the other socket."""
    nodes = [Node("h", "host", "h"), Node("n0", "numa", "0", "h"), Node("n1", "numa", "1", "h")]
    nodes += [
        Node("b0", "host_bridge", "b", "n0"),
        Node("b1", "host_bridge", "b", "n0"),
        Node("b2", "host_bridge", "b", "n1"),
    ]
    nodes += [Node(f"r{i}", "root_port", "r", bridge) for i, bridge in enumerate(("b0", "b0", "b1", "b2"))]
    nodes += [Node(f"s{i}", "pcie_switch", "s", f"r{i}") for i in range(4)]
    nodes += [Node("p0", "pcie_port", "p", "s0"), Node("t0", "pcie_switch", "t", "p0")]
    nodes += [
        Node("g", "gpu", "GPU 0", places[0], "", {"index": 0}),
        Node("m", "nic", "m", places[1], "", {"fabric": True}),
    ]
    tree = Tree(graph_of(nodes, []))
    assert tree.level("g", "m") == level
    assert best(problem_of(tree, "h")) == ([("g", "m")], points)
