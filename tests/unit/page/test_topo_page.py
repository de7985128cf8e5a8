"""What the page of `epctl topo` holds: boxes that do not overlap, loads that are the report's rates."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from epctl.commands.topo_input import input_of, sample_of
from epctl.core.errors import EpctlError
from epctl.page.topo_page import MOST_DRAWN, topo_page
from epctl.topo.gather import gather
from epctl.topo.graph import Edge, Graph, Node
from epctl.topo.report import Report, Schema, report_of

SAMPLES = ("gb200-nvl", "h200x2-vm", "hgx-h100-ib", "hgx-h200-roce-degraded", "laptop", "p5-efa")
DATA = Path(__file__).parents[2] / "data" / "readers"
FILES = tuple(
    sorted(
        path
        for folder, ending in (("topo", "txt"), ("ibnetdiscover", "txt"), ("nccl_topo_xml", "xml"))
        for path in (DATA / folder).glob(f"*.{ending}")
        if not path.name.startswith(("error_", "empty_", "truncated_"))
    )
)


def data_of(html: str) -> dict[str, Any]:
    return dict(json.loads(html.partition('id="data">')[2].partition("</script>")[0]))


def sampled(*names: str) -> dict[str, Any]:
    return data_of(topo_page(report_of(gather([sample_of(name) for name in names]))))


def recorded(path: Path) -> dict[str, Any]:
    return data_of(topo_page(report_of(gather([input_of(path)]))))


def by_pair(flows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    return {(flow["source"], flow["target"]): flow["gbs"] for flow in flows}


def on_link(found: dict[str, Any], flows: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Up and down, in GB/s."""
    number = next(i for i, link in enumerate(found["links"]) if link["name"] == name)
    sums = [0.0, 0.0]
    for flow in flows:
        for link, up, share in flow["path"]:
            if link == number:
                sums[not up] += flow["gbs"] * share
    return sums[0], sums[1]


def check_drawing(found: dict[str, Any]) -> None:
    boxes = {box["id"]: box for box in found["boxes"]}
    width, height = found["size"]
    for box in boxes.values():
        assert box["x"] >= 0
        assert box["y"] >= 0
        assert box["x"] + box["w"] <= width
        assert box["y"] + box["h"] <= height
        assert box["w"] > 20
    for one, other in combinations(boxes.values(), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        over = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or over, (one["id"], other["id"])
    for link in found["links"]:
        assert {link["a"], link["b"]} <= set(boxes)


@pytest.mark.parametrize("name", SAMPLES)
def test_no_two_boxes_of_a_sample_overlap(name: str) -> None:
    check_drawing(sampled(name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_two_boxes_of_a_recorded_file_overlap(path: Path) -> None:
    check_drawing(recorded(path))


def test_machines_stand_side_by_side() -> None:
    check_drawing(sampled("hgx-h100-ib", "gb200-nvl", "laptop"))


@pytest.mark.parametrize("name", ["gb200-nvl", "hgx-h100-ib", "hgx-h200-roce-degraded", "p5-efa"])
@pytest.mark.parametrize("nics", ["best", "default"])
def test_flows_of_a_gpu_add_up_to_its_rate_in_the_report(name: str, nics: str) -> None:
    found = sampled(name)
    for pair in found["report"]["pairings"][0][nics]["pairs"]:
        mine = [flow for flow in found["network"][nics] if flow["source"] == pair["gpu"]]
        assert [flow["target"] for flow in mine] == pair["nics"]
        assert 8 * sum(flow["gbs"] for flow in mine) == pytest.approx(pair["gbps"], abs=0.001)


@pytest.mark.parametrize("name", ["gb200-nvl", "hgx-h100-ib", "hgx-h200-roce-degraded", "p5-efa"])
@pytest.mark.parametrize("nics", ["best", "default"])
def test_no_link_carries_more_than_its_rate(name: str, nics: str) -> None:
    found = sampled(name)
    for flows in (found["network"][nics], found["scale_up"]["flows"]):
        for link in found["links"]:
            if "gbs" in link:
                assert max(on_link(found, flows, link["name"])) <= link["gbs"] * 1.000001, link["name"]


def test_the_default_of_the_degraded_node_fills_the_link_of_gpu_3() -> None:
    found = sampled("hgx-h200-roce-degraded")
    name = "GPU 3 – PCIe switch 0000:46:00.0"
    up, down = on_link(found, found["network"]["default"], name)
    assert (round(8 * up, 2), down) == (504.12, 0.0)
    assert on_link(found, found["network"]["best"], name) == (25.0, 0.0)


def test_an_even_exchange_over_switches_is_held_back_by_the_gpu_with_fewest_links() -> None:
    found = sampled("hgx-h200-roce-degraded")
    pairs = by_pair(found["scale_up"]["flows"])
    whole, less = 478.116, 371.868
    assert len(pairs) == 8 * 7
    assert pairs["GPU 0", "GPU 1"] == pytest.approx(whole / 7)
    assert pairs["GPU 0", "GPU 5"] == pairs["GPU 5", "GPU 0"] == pytest.approx(less / 7)
    sent = sum(gbs for (source, _), gbs in pairs.items() if source == "GPU 0")
    assert sent == pytest.approx((6 * whole + less) / 7)


def test_gpus_that_are_joined_directly_use_each_link_whole() -> None:
    found = data_of(topo_page(_joined()))
    assert by_pair(found["scale_up"]["flows"]) == {("GPU 0", "GPU 1"): 50.0, ("GPU 1", "GPU 0"): 50.0}
    assert on_link(found, found["scale_up"]["flows"], "GPU 0 – GPU 1") == (50.0, 50.0)


def _joined() -> Report:
    nodes = (
        Node("h", "host", "h"),
        *(Node(f"h/gpu{i}", "gpu", f"GPU {i}", "h", "NVML", {"index": i}) for i in range(3)),
    )
    return Report(Schema(), Graph(nodes=nodes, edges=(Edge("h/gpu0", "h/gpu1", "nvlink", "NVML", 50.0, 2),)))


def test_a_chip_to_chip_link_is_taken_instead_of_pcie() -> None:
    found = recorded(DATA / "nccl_topo_xml" / "gb10_c2c_nic_without_pci.xml")
    chip = next(i for i, link in enumerate(found["links"]) if link["kind"] == "c2c")
    flows = found["network"]["best"]
    assert flows
    assert all(flow["path"][0][:2] == [chip, True] for flow in flows)


def test_what_is_not_known_is_said_instead_of_drawn() -> None:
    assert sampled("laptop")["network"]["missing"] == "No machine here has both GPUs and NICs."
    assert sampled("laptop")["scale_up"]["missing"] == "No source shows an NVLink."
    matrix = recorded(DATA / "topo" / "dgx1_v100_device_name_columns.txt")
    assert matrix["network"]["missing"] == "No source tells the rate of every NIC, so loads are not known."
    assert matrix["scale_up"]["missing"] == "No source tells the rate of every NVLink."


def test_the_page_holds_the_whole_report() -> None:
    report = report_of(gather([sample_of("hgx-h100-ib")]), 16)
    from epctl.core.jsontext import dump

    assert data_of(topo_page(report))["report"] == json.loads(dump(report))


def test_names_of_a_strangers_machine_cannot_become_markup() -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    graph = Graph(
        nodes=(Node(evil, "host", evil), Node("g", "gpu", f"GPU {evil}", evil, "NVML", {"index": 0, "name": evil}))
    )
    html = topo_page(report_of(graph))
    assert "<img" not in html
    assert html.count("</script>") == 2


def test_a_graph_that_is_too_large_is_refused() -> None:
    nodes = tuple(Node(f"h{i}", "host", f"h{i}") for i in range(MOST_DRAWN + 1))
    with pytest.raises(EpctlError, match="too large for a page"):
        topo_page(report_of(Graph(nodes=nodes)))
