"""Parts become one graph, or a refusal that says what does not hold."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from epctl.core.errors import EpctlError
from epctl.topo.addresses import guid, pci_address
from epctl.topo.build import assemble, disagreements
from epctl.topo.graph import Claim, Edge, Node, Part, Source
from epctl.topo.rates import pcie_gbs

A, B = Node("a", "host", "a"), Node("b", "host", "b")


def part(*, nodes: tuple[Node, ...] = (A, B), edges: tuple[Edge, ...] = (), claims: tuple[Claim, ...] = ()) -> Part:
    return Part(Source("f", "graph"), nodes, edges, claims)


def refused(*parts: Part) -> str:
    with pytest.raises(EpctlError) as told:
        assemble(parts)
    return str(told.value)


def test_cyclic_parents_are_refused_with_the_circle() -> None:
    nodes = (Node("x", "switch", "x", "y"), Node("y", "switch", "y", "z"), Node("z", "switch", "z", "x"))
    assert "cyclic" in refused(part(nodes=nodes))
    assert "x < y < z < x" in refused(part(nodes=nodes))


def test_a_link_that_one_source_has_twice_is_refused() -> None:
    edges = (Edge("a", "b", "network", "s"), Edge("b", "a", "network", "s"))
    assert "is there twice" in refused(part(edges=edges))


def test_the_same_link_from_two_sources_is_one_and_takes_the_rate_of_the_one_that_knows() -> None:
    graph = assemble(
        [part(edges=(Edge("a", "b", "network", "s"),)), part(edges=(Edge("b", "a", "network", "t", 50.0),))]
    )
    assert graph.edges == (Edge("a", "b", "network", "s, rate: t", 50.0),)


def test_a_link_to_itself_or_to_nothing_is_refused() -> None:
    assert "linked to itself" in refused(part(edges=(Edge("a", "a", "network", "s"),)))
    assert "ends at c" in refused(part(edges=(Edge("a", "c", "network", "s"),)))
    assert "hangs on gone" in refused(part(nodes=(Node("x", "numa", "x", "gone"),)))


def test_a_tower_of_nodes_is_refused() -> None:
    nodes = tuple(Node(f"n{i}", "switch", "n", f"n{i - 1}" if i else "") for i in range(200))
    assert "too deep" in refused(part(nodes=nodes))


def test_a_node_of_two_sources_keeps_the_first_word_and_gains_what_the_second_adds() -> None:
    first, second = (
        Node("x", "gpu", "GPU 0", "a", "s", {"sm": "9.0"}),
        Node("x", "gpu", "other", "b", "t", {"sm": "8.0", "pci": "p"}),
    )
    graph = assemble([part(nodes=(A, B, first)), part(nodes=(second,))])
    assert graph.nodes[2] == Node("x", "gpu", "GPU 0", "a", "s", {"sm": "9.0", "pci": "p"})


def test_disagreements_of_one_kind_are_one_finding() -> None:
    claims = [
        claim
        for gpu in range(6)
        for claim in (
            Claim("n", f"GPU {gpu}", "NUMA node", "0", "sysfs"),
            Claim("n", f"GPU {gpu}", "NUMA node", "1", "XML"),
        )
    ]
    found = disagreements(claims)
    assert [finding.text for finding in found] == [
        "n: NUMA node of GPU 0, GPU 1, GPU 2, GPU 3 and 2 more: sysfs says 0, XML says 1"
    ]
    assert found[0].sources == ("sysfs", "XML")


@pytest.mark.parametrize(
    ("xml", "other", "differ"),
    [("PHB", "NODE", False), ("PHB", "PHB", False), ("PHB", "PIX", True), ("SYS", "NODE", True)],
)
def test_phb_of_a_topology_file_means_node_too(xml: str, other: str, differ: bool) -> None:
    claims = [
        Claim("n", "GPU 0 - mlx5_0", "path", xml, "NCCL XML"),
        Claim("n", "GPU 0 - mlx5_0", "path", other, "sysfs"),
    ]
    assert bool(disagreements(claims)) is differ


def test_two_other_sources_that_differ_are_told_whatever_the_topology_file_says() -> None:
    claims = [
        Claim("n", "GPU 0 - mlx5_0", "path", value, source)
        for value, source in (("PHB", "NCCL XML"), ("NODE", "sysfs"), ("SYS", "nvidia-smi topo -m"))
    ]
    assert len(disagreements(claims)) == 1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("0000:18:00.0", "0000:18:00.0"),
        ("18:00.0", "0000:18:00.0"),
        ("0008:01:00.0", "0008:01:00.0"),
        ("00010101:AB:1F.7", "10101:ab:1f.7"),
        ("fffffff:ff:ff.0", "fffffff:ff:ff.0"),
        ("18:00", ""),
        ("0000:18:00.8", ""),
        ("", ""),
    ],
)
def test_addresses_have_one_form(text: str, address: str) -> None:
    assert pci_address(text) == address


def test_guids_have_one_form() -> None:
    assert guid("0xB4E9B803005E47D2") == guid("b4e9:b803:005e:47d2") == "b4e9b803005e47d2"
    assert guid("x") == guid("") == guid("0x" + "1" * 17) == ""


@pytest.mark.parametrize(
    ("gts", "width", "gbs"),
    [(32.0, 16, 63.015), (16.0, 16, 31.508), (8.0, 8, 7.877), (2.5, 16, 4.0), (64.0, 16, 121.0), (7.0, 16, None)],
)
def test_pcie_rates(gts: float, width: int, gbs: float | None) -> None:
    assert pcie_gbs(gts, width) == gbs


def test_unknown_rates_are_left_out() -> None:
    assert assemble([part(edges=(Edge("a", "b", "network", "s"),))]).edges[0].gbs is UNSET
