"""Snapshots of all packaged samples as graphs; values looked up by hand in the samples."""

from __future__ import annotations

from functools import cache

import pytest

from epctl.probes import load
from epctl.topo.build import assemble
from epctl.topo.from_snapshot import part_of
from epctl.topo.graph import Edge, Graph
from epctl.topo.report import Report, report_of
from epctl.topo.tree import Tree


@cache
def graph_of(name: str) -> Graph:
    return assemble([part_of(load.sample(name))])


@cache
def report(name: str, ep: int = 8) -> Report:
    return report_of(graph_of(name), ep)


@pytest.mark.parametrize("name", load.samples())
def test_every_sample_makes_a_graph_whose_devices_have_a_place(name: str) -> None:
    tree = Tree(graph_of(name))
    for node in (*tree.of_kind("gpu"), *tree.of_kind("nic")):
        assert tree.host(node.id) == tree.hosts()[0].id
        assert tree.nodes[node.parent].kind in ("host_bridge", "root_port", "pcie_port")


def test_counts_of_nodes_by_kind() -> None:
    kinds = ("numa", "gpu", "nic", "nvswitch", "pcie_switch")
    found = {name: [len(Tree(graph_of(name)).of_kind(kind)) for kind in kinds] for name in load.samples()}  # type: ignore[arg-type]
    assert found == {
        "gb200-nvl": [2, 4, 6, 0, 5],
        "h200x2-vm": [1, 2, 0, 0, 0],
        "hgx-h100-ib": [2, 8, 10, 4, 9],
        "hgx-h200-roce-degraded": [2, 8, 10, 4, 9],
        "laptop": [0, 0, 0, 0, 0],
        "p5-efa": [2, 8, 32, 4, 0],
    }


def test_a_gpu_of_the_hgx_board_hangs_below_its_switch() -> None:
    tree = Tree(graph_of("hgx-h100-ib"))
    chain = [node.label for node in tree.above("hgx-h100-31/gpu0")]
    assert chain == [
        "GPU 0",
        "0000:17:00.0",
        "0000:16:00.0",
        "0000:15:01.0",
        "pci0000:15",
        "NUMA node 0",
        "hgx-h100-31",
    ]
    assert tree.uplink["hgx-h100-31/gpu0"] == Edge(
        "hgx-h100-31/gpu0", "hgx-h100-31/0000:17:00.0", "pcie", "sysfs", 63.015, 1, "x16 at 32 GT/s"
    )


def test_nvlinks_go_to_the_switches_that_nvml_names() -> None:
    tree = Tree(graph_of("hgx-h100-ib"))
    links = {edge.b: (edge.num_links, edge.gbs) for edge in tree.at["hgx-h100-31/gpu0"] if edge.kind == "nvlink"}
    assert links == {
        "hgx-h100-31/0000:05:00.0": (5, 132.81),
        "hgx-h100-31/0000:06:00.0": (5, 132.81),
        "hgx-h100-31/0000:07:00.0": (4, 106.248),
        "hgx-h100-31/0000:08:00.0": (4, 106.248),
    }


def test_nvlinks_without_a_named_switch_go_to_the_domain() -> None:
    tree = Tree(graph_of("h200x2-vm"))
    assert [edge for edge in tree.at["host-4/gpu0"] if edge.kind == "nvlink"] == [
        Edge("host-4/gpu0", "host-4/nvlink", "nvlink", "NVML", 478.116, 18)
    ]


def test_a_rack_scale_domain_belongs_to_no_machine() -> None:
    tree = Tree(graph_of("gb200-nvl"))
    (domain,) = tree.of_kind("nvlink_domain")
    assert domain.id == "nvlink/7b7ed6a2c3f14d0e9a5c1d2e3f405162.32766"
    assert (domain.parent, domain.attrs["rack_scale"]) == ("", True)


def test_a_guest_tells_no_pcie_rates() -> None:
    assert all(edge.detail.endswith("as the guest sees it") for edge in graph_of("p5-efa").edges if edge.kind == "pcie")
    assert not [edge for edge in graph_of("p5-efa").edges if edge.kind == "pcie" and isinstance(edge.gbs, float)]


def test_findings() -> None:
    told = {name: [finding.text for finding in graph_of(name).findings] for name in load.samples()}
    assert told["hgx-h100-ib"] == told["h200x2-vm"] == told["p5-efa"] == []
    assert told["hgx-h200-roce-degraded"] == [
        "hgx-h200-17: active NVLinks of GPU 5: NVML says 14, nvidia-smi topo -m says 18"
    ]
    assert told["gb200-nvl"][0] == (
        "nvl72-r2-t06: path of GPU 0 - mlx5_0, GPU 0 - mlx5_1, GPU 0 - mlx5_2, GPU 0 - mlx5_3 and 8 more: sysfs says NODE, "
        "nvidia-smi topo -m says SYS"
    )
    assert told["laptop"] == ["laptop: GPUs: not found: NVML: NVML Shared Library Not Found"]


def test_the_paths_of_the_tree_are_those_of_the_matrix() -> None:
    for name in ("hgx-h100-ib", "hgx-h200-roce-degraded", "p5-efa"):
        node, tree = load.sample(name), Tree(graph_of(name))
        host = tree.hosts()[0].id
        cells = [cell for cell in node.gpu.topology if not cell.other.startswith("GPU")]  # type: ignore[union-attr]
        assert cells
        for cell in cells:
            assert tree.level(f"{host}/gpu{cell.gpu}", f"{host}/{cell.other}") == cell.path


def test_pairing_of_the_hgx_board_is_the_nic_below_the_same_switch() -> None:
    (pairing,) = report("hgx-h100-ib").pairings
    assert [(pair.gpu, pair.nics, pair.levels, pair.gbps) for pair in pairing.best.pairs] == [
        (f"GPU {i}", (f"mlx5_{i}",), ("PIX",), 400.0) for i in range(8)
    ]
    assert pairing.left_out == ("mlx5_8", "mlx5_9")
    assert (pairing.cost, pairing.lost_gbps, pairing.unused) == (0, 0.0, ())
    assert {line.name: line.value for line in pairing.lines if line.name == "NCCL_IB_HCA"} == {
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{i}:1" for i in range(8))
    }


def test_what_the_default_loses_where_one_nic_is_slow() -> None:
    """NCCL gives GPU 3 the three faster NICs of its socket, which the GPUs beside them then share."""
    (pairing,) = report("hgx-h200-roce-degraded").pairings
    assert pairing.best.pairs[3].nics == ("mlx5_3",)
    assert pairing.default.pairs[3].nics == ("mlx5_0", "mlx5_1", "mlx5_2")
    assert [pair.gbps for pair in pairing.default.pairs[:3]] == [200.0] * 3
    assert pairing.default.pairs[3].gbps == 504.12  # the GPU's own link: 63.015 GB/s
    assert (pairing.best.total_gbps, pairing.default.total_gbps) == (3000.0, 2704.12)
    assert (pairing.lost_gbps, pairing.lost_total_gbps) == (200.0, 295.88)


def test_four_efa_devices_a_gpu() -> None:
    (pairing,) = report("p5-efa").pairings
    assert pairing.best.pairs[0].nics == ("rdmap79s0", "rdmap80s0", "rdmap81s0", "rdmap82s0")
    assert [pair.gbps for pair in pairing.best.pairs] == [400.0] * 8
    assert pairing.lines == ()  # lists of HCAs are for other adapters


def test_two_nics_a_socket_on_a_grace_board() -> None:
    (pairing,) = report("gb200-nvl").pairings
    assert [pair.nics for pair in pairing.best.pairs] == [("mlx5_0",), ("mlx5_1",), ("mlx5_4",), ("mlx5_5",)]
    assert pairing.cost == 4 * 100


def test_fabric_facts() -> None:
    facts = report("hgx-h200-roce-degraded").fabric
    assert (facts.num_nodes, facts.gpus_per_node, facts.num_rails, facts.wiring) == (1, 8, 8, "unknown")  # type: ignore[union-attr]
    assert (facts.nic_gbps, facts.nvlink_gbs) == (200.0, 371.868)  # type: ignore[union-attr]


def test_rails_are_drawn_in() -> None:
    graph = report("hgx-h100-ib").graph
    assert [edge.a for edge in graph.edges if edge.kind == "rail"] == [f"hgx-h100-31/mlx5_{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("name", "ep", "layout", "mode"),
    [
        ("hgx-h100-ib", 8, (1, 8), "scale-up"),
        ("hgx-h100-ib", 16, (2, 8), "hybrid"),
        ("hgx-h100-ib", 12, (3, 4), "hybrid"),
        ("hgx-h100-ib", 7, (1, 7), "scale-up"),
        ("gb200-nvl", 4, (1, 4), "scale-up"),
        ("gb200-nvl", 8, (2, 4), "hybrid"),
        ("p5-efa", 32, (4, 8), "hybrid"),
        ("h200x2-vm", 2, (1, 2), "scale-up"),
        ("h200x2-vm", 4, (4, 1), "none"),
    ],
)
def test_ep_layouts(name: str, ep: int, layout: tuple[int, int], mode: str) -> None:
    domains = report(name, ep).domains
    assert (domains.scaleout, domains.scaleup, domains.mode) == (*layout, mode)  # type: ignore[union-attr]
    assert domains.possible is (mode != "none")  # type: ignore[union-attr]


def test_a_node_without_nics_says_why_two_nodes_of_it_are_not_possible() -> None:
    domains = report("h200x2-vm", 4).domains
    assert "no source shows an RDMA adapter" in domains.verdict  # type: ignore[union-attr]
    assert (domains.machines, domains.assumed_machines) == (2, 1)  # type: ignore[union-attr]


def test_two_trays_of_one_rack_are_one_nvlink_domain() -> None:
    from msgspec.structs import replace

    node = load.sample("gb200-nvl")
    other = replace(node, host=replace(node.host, hostname="tray-2"))
    domains = report_of(assemble([part_of(node), part_of(other)]), 8).domains
    assert (domains.scaleout, domains.scaleup) == (1, 8)  # type: ignore[union-attr]
