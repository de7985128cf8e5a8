"""A fabric out of a graph of `epctl topo` is the one that its cables make; what the graph does not show is as the flags say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epctl.commands.topo_input import sample_of
from epctl.fabric.from_topo import with_graph
from epctl.fabric.request import Request
from epctl.fabric.simulate import simulate
from epctl.fabric.topology import Shape, build
from epctl.model.refusal import RefusalError
from epctl.topo.build import assemble
from epctl.topo.gather import gather
from epctl.topo.graph import Edge, Graph, Node, Part, Source
from epctl.topo.report import report_of


def graph_of(
    *, nodes: int = 2, gpus: int = 2, wiring: str = "rail", spines: int = 2, span: int = 0, seen: int | None = None
) -> Graph:
    """Machines whose GPU 0 is beside the NIC of the largest number, GPU 1 beside the next one, and so on. `seen`: machines of which more
    than NICs is known; spines 0: leaves alone; wiring '': no leaf."""
    parts, edges = [], []
    span = span or (nodes if wiring == "rail" else 1)
    leaves: set[str] = set()
    for n in range(nodes):
        host = f"n{n}"
        parts.append(Node(host, "host", host))
        for g in range(gpus):
            nic = f"{host}/mlx5_{gpus - 1 - g}"
            parts.append(Node(f"{host}/numa{g}", "numa", f"NUMA node {g}", host))
            if seen is None or n < seen:
                parts.append(Node(f"{host}/gpu{g}", "gpu", f"GPU {g}", f"{host}/numa{g}", "NVML", {"index": g}))
                parts.append(Node(nic, "nic", nic[len(host) + 1 :], f"{host}/numa{g}", "sysfs", {"gbps": 400.0}))
            else:
                parts.append(Node(nic, "nic", nic[len(host) + 1 :], host, "ibnetdiscover"))
            if wiring:
                leaf = f"leaf-{n // span}-{g}" if wiring == "rail" else f"leaf-{n // span}"
                leaves.add(leaf)
                edges.append(Edge(nic, leaf, "network", "ibnetdiscover", 50.0))
    parts += [Node(leaf, "switch", leaf) for leaf in sorted(leaves)]
    parts += [Node(f"spine-{s}", "switch", f"spine-{s}") for s in range(spines)]
    lanes = (span if wiring == "rail" else span * gpus) // max(spines, 1)
    edges += [
        Edge(leaf, f"spine-{s}", "network", "ibnetdiscover", 50.0, lanes)
        for leaf in sorted(leaves)
        for s in range(spines)
    ]
    return assemble([Part(Source("f", "ibnetdiscover"), tuple(parts), tuple(edges))])


def request_of(graph: Graph, given: tuple[str, ...] = (), **shape: object) -> Request:
    start = Request(shape=replace(Shape(), **shape), experts=8, topk=2)
    return with_graph(start, report_of(graph), "t.json", given)


@pytest.mark.parametrize(("wiring", "span"), [("rail", 4), ("rail", 2), ("tor", 1), ("tor", 2)])
def test_cables_one_by_one_make_the_same_fabric_and_bytes_as_the_numbers(wiring: str, span: int) -> None:
    found = request_of(graph_of(nodes=4, wiring=wiring, span=span))
    wanted = build(Shape(nodes=4, gpus_per_node=2, spines=2, wiring=wiring, nodes_per_leaf=span))
    assert found.graph is not None
    assert (found.graph.num_nodes, found.graph.gpus_per_node, found.graph.leaf_of) == (4, 2, wanted.leaf_of)
    assert [sorted(group) for group in found.graph.uplinks] == [sorted(group) for group in wanted.uplinks]
    plain = replace(
        found, graph=None, shape=Shape(nodes=4, gpus_per_node=2, spines=2, wiring=wiring, nodes_per_leaf=span)
    )
    mine, theirs = (
        [(row.rdma_bytes, row.spine_bytes, row.nvlink_bytes, row.hops) for row in simulate(each).traffic]
        for each in (found, plain)
    )
    assert mine == theirs
    leaves, uplinks = len(wanted.leaf_names), wanted.num_uplinks
    assert found.origin[0] == (
        f"The fabric is that of t.json, link by link: 4 machines, 2 GPUs each, {leaves} leaves, 2 spines, {uplinks} uplinks."
    )


def test_gpu_0_is_on_the_leaf_of_the_nic_beside_it_not_of_the_first_name() -> None:
    found = request_of(graph_of())
    assert found.graph is not None
    assert [found.graph.leaf_names[leaf] for leaf in found.graph.leaf_of[0]] == ["leaf-0-0", "leaf-0-1"] * 2


def test_a_machine_without_leaves_takes_nodes_wiring_and_spines_from_flags_and_says_so() -> None:
    found = request_of(graph_of(nodes=1, wiring="", spines=0), ("nodes", "spines"), nodes=6, spines=3)
    assert (found.graph, found.shape) == (None, Shape(nodes=6, gpus_per_node=2, spines=3))
    assert found.origin == (
        (
            "t.json: 1 machine with 2 GPUs. What is not shown there is as flags or defaults say: rail wiring, 3 spines, "
            "oversubscription 1, 1 plane."
        ),
        "5 of 6 nodes are taken to be like those of t.json.",
    )


@pytest.mark.parametrize(("wiring", "span", "leaves"), [("rail", 2, 4), ("tor", 2, 2), ("tor", 1, 4)])
def test_leaves_without_spines_tell_wiring_and_span(wiring: str, span: int, leaves: int) -> None:
    found = request_of(graph_of(nodes=4, wiring=wiring, span=span, spines=0), ("spines",), spines=2)
    assert found.shape == Shape(nodes=4, gpus_per_node=2, spines=2, wiring=wiring, nodes_per_leaf=span)
    assert f"{wiring} wiring, {leaves} leaves. What is not shown there" in found.origin[0]
    assert "say: 2 spines, oversubscription 1." in found.origin[0]


def test_one_leaf_for_all_needs_no_spine() -> None:
    found = request_of(graph_of(wiring="tor", span=2, spines=0))
    assert found.graph is not None
    assert [(row.spine_bytes, row.hops) for row in simulate(found).traffic] == [(0, 1)] * 4


def test_machines_of_which_the_network_alone_knows_are_taken_to_be_alike() -> None:
    found = request_of(graph_of(nodes=3, seen=1, spines=0, wiring="tor", span=3))
    assert found.graph is not None
    assert found.graph.num_nodes == 3
    assert "Of 2 machines the NICs alone are known (n1, n2): the k-th NIC is taken for that of GPU k." in found.origin


def test_from_the_network_alone_gpus_are_asked_for() -> None:
    alone = graph_of(seen=0)
    with pytest.raises(RefusalError) as told:
        request_of(alone)
    assert told.value.todo == "give --gpus-per-node 2, or a snapshot of a machine beside it"
    found = request_of(alone, ("gpus_per_node",), gpus_per_node=2)
    assert found.graph is not None
    assert found.graph.num_gpus == 4


def test_lost_parts_are_lost_by_the_names_of_the_graph() -> None:
    found = request_of(graph_of(), ("lost",), lost=("leaf-0-1-spine-0",))
    assert found.graph is not None
    assert (found.graph.num_uplinks, found.graph.lost) == (3, ("leaf-0-1-spine-0",))


@pytest.mark.parametrize(
    ("field", "value", "what", "why"),
    [
        ("wiring", "tor", "--wiring is given", "every link of the fabric is in t.json"),
        ("nodes", 5, "--nodes is 5", "it is 2 in t.json"),
        ("gpus_per_node", 4, "--gpus-per-node is 4", "it is 2 in t.json"),
    ],
)
def test_a_flag_that_the_graph_contradicts_is_refused(field: str, value: object, what: str, why: str) -> None:
    with pytest.raises(RefusalError) as told:
        request_of(graph_of(), (field,), **{field: value})
    assert (told.value.what, told.value.why) == (what, why)


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ("p5-efa", "GPUs have up to 4 NICs; the model gives each one NIC, with a port into each plane (--planes)."),
        (
            "gb200-nvl",
            "NVLink reaches into other machines; the model sends everything between nodes through the network.",
        ),
    ],
)
def test_what_the_model_has_otherwise_than_the_machine_is_said(sample: str, told: str) -> None:
    assert told in request_of(gather([sample_of(sample)])).origin


def test_a_graph_without_machines_is_no_fabric() -> None:
    with pytest.raises(RefusalError, match="no fabric is described"):
        request_of(assemble([Part(Source("f", "graph"), (Node("s", "switch", "s"),))]))
