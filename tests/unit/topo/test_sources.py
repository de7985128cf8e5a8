"""Topology files of NCCL, matrices of nvidia-smi and subnets: all recorded texts, with values looked up in them by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from epctl.commands.topo_input import input_of
from epctl.core.errors import EpctlError
from epctl.topo.from_matrix import Matrix, cell
from epctl.topo.gather import Input, gather
from epctl.topo.graph import Edge
from epctl.topo.report import report_of
from epctl.topo.tree import Tree

DATA = Path(__file__).parents[2] / "data" / "readers"
XML = sorted((DATA / "nccl_topo_xml").glob("*.xml"))
MATRICES = sorted((DATA / "topo").glob("*.txt"))
SUBNETS = sorted((DATA / "ibnetdiscover").glob("*.txt"))
BROKEN = {
    "empty_file.xml", "truncated_inside_tag.xml", "error_command_not_found.txt", "error_driver_not_loaded.txt", "error_no_umad_port.txt",
}  # fmt: skip


def tree_of(*names: str) -> Tree:
    return Tree(gather([input_of(DATA / name) for name in names]))


@pytest.mark.parametrize("path", [*XML, *MATRICES, *SUBNETS], ids=lambda path: path.name)
def test_every_recording_makes_a_graph_or_is_refused(path: Path) -> None:
    if path.name in BROKEN:
        with pytest.raises(EpctlError, match=path.name):
            input_of(path)
        return
    report = report_of(gather([input_of(path)]))
    assert report.graph.nodes
    for pairing in report.pairings:
        assert all(pair.nics for pair in pairing.best.pairs)


@pytest.mark.parametrize("path", [path for path in MATRICES if path.name not in BROKEN], ids=lambda path: path.name)
def test_the_graph_gives_back_every_distance_of_the_matrix(path: Path) -> None:
    given = input_of(path)
    matrix, tree = given.thing, Tree(gather([given]))
    assert isinstance(matrix, Matrix)
    host = tree.hosts()[0].id
    for i, gpu in enumerate(matrix.gpus):
        for column, device in matrix.nics.items():
            assert tree.level(f"{host}/gpu{i}", f"{host}/{device}") == cell(matrix, gpu, column)


def test_dgx_a100_dump() -> None:
    tree = tree_of("nccl_topo_xml/dgx_a100_dump.xml")
    host = "dgx_a100_dump"
    assert [node.label for node in tree.above(f"{host}/gpu0")] == [
        "GPU 0",
        "0000:04:00.0",
        "0000:01:00.0",
        "NUMA node 3",
        host,
    ]
    assert tree.uplink[f"{host}/gpu0"] == Edge(
        f"{host}/gpu0", f"{host}/0000:04:00.0", "pcie", "NCCL XML", 31.508, 1, "x16 at 16 GT/s"
    )
    assert [tree.level(f"{host}/gpu0", f"{host}/mlx5_{i}") for i in (0, 1, 2, 8)] == ["PXB", "PXB", "SYS", "SYS"]
    links = [edge for edge in tree.at[f"{host}/gpu0"] if edge.kind == "nvlink"]
    assert [(edge.num_links, edge.gbs) for edge in links] == [(2, 50.0)] * 6
    assert [node.attrs["fabric"] for node in tree.of_kind("nic")] == [True] * 8 + [False] * 2
    assert [finding.text for finding in tree.graph.findings] == [
        f"{host}: two functions have the PCI address 0000:0c:00.0; NCCL takes the first one for both"
    ]


def test_the_file_and_the_matrix_of_one_machine_are_one_machine_and_agree() -> None:
    tree = tree_of("nccl_topo_xml/dgx_a100_dump.xml", "topo/dgx_a100_10nic_tabs.txt")
    assert len(tree.hosts()) == 1
    assert not [finding for finding in tree.graph.findings if "says" in finding.text]


def test_a_matrix_of_another_machine_is_a_machine_of_its_own() -> None:
    tree = tree_of("nccl_topo_xml/dgx_a100_dump.xml", "topo/b300_8gpu_bonds.txt")
    assert [host.id for host in tree.hosts()] == ["dgx_a100_dump", "b300_8gpu_bonds"]


def test_static_file_of_azure_pairs_by_switch_and_does_not_know_nvlinks() -> None:
    report = report_of(gather([input_of(DATA / "nccl_topo_xml/azure_ndv5_static.xml")]), 8)
    (pairing,) = report.pairings
    assert [pair.nics[0] for pair in pairing.best.pairs] == [f"010{i}:00:00.0" for i in range(1, 9)]
    assert pairing.lines == ()  # NICs without a name
    assert pairing.best.least_gbps is UNSET
    assert "no source tells the NVLinks of GPU 0" in report.domains.verdict  # type: ignore[union-attr]


def test_p4d_has_two_gpus_a_nic() -> None:
    report = report_of(gather([input_of(DATA / "nccl_topo_xml/aws_p4d_static_comments.xml")]))
    assert [pair.nics[0] for pair in report.pairings[0].best.pairs] == [
        nic for bus in ("10", "20", "90", "a0") for nic in [f"0000:{bus}:1b.0"] * 2
    ]


def test_a_chip_to_chip_link_carries_what_goes_over_the_cpu() -> None:
    """GB10: 43125 MB/s x 8 to the CPU; the adapter's slot, x4 at 32 GT/s, is what limits."""
    tree = tree_of("nccl_topo_xml/gb10_c2c_nic_without_pci.xml")
    host = "gb10_c2c_nic_without_pci"
    assert [(edge.kind, edge.gbs) for edge in tree.at[f"{host}/gpu0"]] == [("pcie", 4.0), ("c2c", 345.0)]
    assert [hop.edge.kind for hop in tree.way(f"{host}/gpu0", f"{host}/rocep1s0f0")] == ["c2c", "pcie"]
    (pairing,) = report_of(tree.graph).pairings
    assert pairing.best.pairs[0].gbps == pytest.approx(8 * 15.754)
    assert pairing.left_out == ("wlP9s9", "tailscale0")


def test_front_end_card_of_gcp_is_left_out_though_it_is_as_fast() -> None:
    (pairing,) = report_of(gather([input_of(DATA / "nccl_topo_xml/gcp_h100_empty_link_speed.xml")])).pairings
    assert pairing.left_out == ("enp0s12",)
    assert [pair.nics for pair in pairing.best.pairs] == [("enp6s0",), ("enp6s0",), ("enp12s0",), ("enp12s0",)]
    assert [pair.gbps for pair in pairing.best.pairs] == [100.0] * 4


def test_functions_without_a_class_are_told() -> None:
    (finding,) = tree_of("nccl_topo_xml/aws_g5_sparse.xml").graph.findings
    assert "9 PCI functions have no class" in finding.text


def test_dgx1_is_no_one_nvlink_domain() -> None:
    graph = gather([input_of(DATA / "topo/dgx1_v100_device_name_columns.txt")])
    tree = Tree(graph)
    host = tree.hosts()[0].id
    assert sorted(edge.num_links for edge in tree.at[f"{host}/gpu0"] if edge.kind == "nvlink") == [1, 1, 2, 2]
    domains = report_of(graph, 8).domains
    assert (domains.scaleout, domains.scaleup) == (2, 4)  # type: ignore[union-attr]
    assert domains.layouts[0].why == "GPU 0 and GPU 5 share no NVLink"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "links"),
    [("gb200_4gpu_6nic", 18), ("dgx2_16gpu_spaces", 6), ("vr200_nv36_12nic", 36), ("dgx_a100_10nic_tabs", 12)],
)
def test_bonds_that_no_gpu_could_have_to_all_peers_go_over_switches(name: str, links: int) -> None:
    tree = tree_of(f"topo/{name}.txt")
    edges = [edge for edge in tree.graph.edges if edge.kind == "nvlink"]
    assert {(tree.nodes[edge.b].kind, edge.num_links) for edge in edges} == {("nvlink_domain", links)}


def test_two_gpus_leave_open_whether_a_switch_lies_between() -> None:
    tree = tree_of("topo/h200_vm_no_nic_ansi.txt")
    assert [(edge.a[-4:], edge.b[-4:], edge.num_links) for edge in tree.graph.edges] == [("gpu0", "gpu1", 18)]
    assert "does not say whether a switch lies between" in tree.graph.findings[0].text


def test_subnet_of_a_part_of_a_cluster() -> None:
    tree = tree_of("ibnetdiscover/ndr_two_tier_real.txt")
    switches = {node.label: node.attrs["tier"] for node in tree.of_kind("switch")}
    assert switches["RK09-IBLEAF-04-04"] == switches["RK09-IBLEAF-04-02"] == "leaf"
    assert sum(tier == "spine" for tier in switches.values()) == 8
    assert switches["RK09-IBLEAF-01-01"] == "unknown"  # named as a neighbour only
    leaf, spine = (
        next(n.id for n in tree.of_kind("switch") if n.label == name)
        for name in ("RK09-IBLEAF-04-04", "RK10-IBSPINE-02")
    )
    assert [(edge.num_links, edge.gbs) for edge in tree.at[leaf] if spine in (edge.a, edge.b)] == [(2, 100.0)]
    assert tree.at["r18-dgx4-n01/mlx5_5"] == [Edge(leaf, "r18-dgx4-n01/mlx5_5", "network", "ibnetdiscover", 50.0)]


def test_modules_of_a_chassis_keep_their_names_apart() -> None:
    labels = [node.label for node in tree_of("ibnetdiscover/hdr_extra_fields.txt").of_kind("switch")]
    assert labels[:3] == ["row3-0908-01ib1-A/S01", "row3-0908-01ib1-A/L01", "row3-0908-01ib1-A/L02"]
    assert len(set(labels)) == len(labels)


def test_an_adapter_of_a_snapshot_is_found_in_the_subnet_by_its_guid(tmp_path: Path) -> None:
    from epctl.probes import load

    node = load.sample("hgx-h100-ib")
    guids = [device.node_guid.replace(":", "") for device in node.rdma.devices[:8]]  # type: ignore[union-attr]
    lines = ["# Topology file: generated on x", ""]
    for rail, guid in enumerate(guids):
        rate = "4xHDR" if rail == 3 else "4xNDR"
        lines += [f'Switch\t65 "S-00000000000000a{rail}"\t\t# "MF0;leaf{rail}:MQM9700/U1" enhanced port 0 lid 1 lmc 0']
        lines += [f'[1]\t"H-{guid}"[1]({guid}) \t\t# "elsewhere HCA-{rail}" lid 9 {rate}', ""]
    (tmp_path / "ib.txt").write_text("\n".join(lines) + "\n")
    graph = gather([Input("hgx", node), input_of(tmp_path / "ib.txt")])
    assert [host.id for host in Tree(graph).hosts()] == ["hgx-h100-31"]
    assert [finding.text for finding in graph.findings] == [
        "hgx-h100-31: rate (Gb/s) of mlx5_3: sysfs says 400, ibnetdiscover says 200"
    ]
    facts = report_of(graph).fabric
    assert (facts.wiring, facts.num_leaves, facts.rail_leaves["3"]) == ("rail", 8, ("leaf3",))  # type: ignore[union-attr]


def test_one_port_with_two_cables_is_refused(tmp_path: Path) -> None:
    text = (
        '# Topology file: generated on x\n\nSwitch\t65 "S-00000000000000a1"\t\t# "a" lid 1 lmc 0\n'
        '[1]\t"H-0000000000000001"[1](1) \t\t# "n1 mlx5_0" lid 9 4xNDR\n'
        '[2]\t"H-0000000000000001"[1](1) \t\t# "n1 mlx5_0" lid 9 4xNDR\n'
    )
    (tmp_path / "ib.txt").write_text(text)
    with pytest.raises(EpctlError, match="refused") as told:
        gather([input_of(tmp_path / "ib.txt")])
    assert "has two cables" in str(told.value)


def test_a_machine_given_twice_is_refused() -> None:
    from epctl.probes import load

    node = load.sample("hgx-h100-ib")
    with pytest.raises(EpctlError, match="given twice"):
        gather([Input("a", node), Input("b", node)])


def hgx_and_its_dump(change: tuple[str, str] = ("", "")) -> list[str]:
    """Findings of the sample beside a topology file of the same machine, with one thing in the file changed."""
    from epctl.probes import load
    from epctl.topo.to_nccl_xml import nccl_xml
    from epctl.topo.xml_tree import parse

    node = load.sample("hgx-h100-ib")
    written, _ = nccl_xml(Tree(gather([Input("hgx", node)])))
    graph = gather([Input("f.xml", parse(written.replace(*change, 1).encode(), "f")), Input("hgx", node)])
    assert [host.id for host in Tree(graph).hosts()] == ["hgx-h100-31"]
    return [finding.text for finding in graph.findings]


def test_a_snapshot_and_the_topology_file_of_its_machine_agree() -> None:
    assert hgx_and_its_dump() == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            ('count="5"', 'count="4"'),
            "active NVLinks of GPU 0: NVML and nvidia-smi topo -m say 18, NCCL XML says 17",
        ),
        (('speed="400000"', 'speed="200000"'), "rate (Gb/s) of mlx5_0: sysfs says 400, NCCL XML says 200"),
        (
            (
                'link_speed="32.0 GT/s PCIe" link_width="16">\n        <gpu',
                'link_speed="16.0 GT/s PCIe" link_width="16">\n        <gpu',
            ),
            "best PCIe speed (GT/s) of GPU 0: NVML and sysfs say 32, NCCL XML says 16",
        ),
        (
            ('numaid="1"', 'numaid="3"'),
            "NUMA node of GPU 4, GPU 5, GPU 6, GPU 7: sysfs (GPU) and sysfs (PCI tree) say 1, NCCL XML says 3",
        ),
    ],
    ids=["links", "rate", "speed", "numa"],
)
def test_a_topology_file_that_disagrees_with_the_snapshot_is_a_finding(change: tuple[str, str], told: str) -> None:
    assert hgx_and_its_dump(change) == [f"hgx-h100-31: {told}"]


def test_a_folder_of_texts_has_the_nics_of_the_matrix(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_bytes((DATA / "topo/dgx_a100_10nic_tabs.txt").read_bytes())
    report = report_of(gather([input_of(tmp_path)]))
    assert [pair.nics for pair in report.pairings[0].best.pairs] == [(f"mlx5_{i}",) for i in range(8)]
    assert report.pairings[0].left_out == ("mlx5_8", "mlx5_9")
