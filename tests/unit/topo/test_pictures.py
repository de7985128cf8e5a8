"""Writers for people and for other tools; what differs between two graphs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from epctl.commands.topo_input import input_of
from epctl.core.errors import EpctlError
from epctl.core.jsontext import dump
from epctl.probes import load
from epctl.topo.diff import Change, diff
from epctl.topo.gather import Input, gather
from epctl.topo.graph import Graph, Node
from epctl.topo.report import decode, report_of
from epctl.topo.show_dot import dot
from epctl.topo.show_mermaid import mermaid
from epctl.topo.show_svg import svg
from epctl.topo.tree import Tree
from epctl.topo.words import drawn

DATA = Path(__file__).parents[2] / "data" / "readers"
SVG = "{http://www.w3.org/2000/svg}"


def read_back(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - what was written a moment ago


def graphs() -> dict[str, Graph]:
    found = {name: report_of(gather([Input(name, load.sample(name))])).graph for name in load.samples()}
    for file in (
        "nccl_topo_xml/dgx_a100_dump.xml",
        "topo/dgx1_v100_device_name_columns.txt",
        "ibnetdiscover/hdr_extra_fields.txt",
    ):
        found[file] = report_of(gather([input_of(DATA / file)])).graph
    return found


GRAPHS = graphs()
HOSTILE = Graph(
    (),
    (
        Node("h", "host", '"><script>alert(1)</script>\n\x1b[31m'),
        Node("g", "gpu", 'a"b\\c#`', "h", "", {"name": "</svg>"}),
    ),
)


@pytest.mark.parametrize("name", GRAPHS)
def test_svg_is_whole_shows_every_node_and_reaches_for_nothing(name: str) -> None:
    text = svg(GRAPHS[name])
    root = read_back(text)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    for node in drawn(Tree(GRAPHS[name])):
        assert any(node.label in title for title in titles)
    outside = re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", text)
    assert not re.search(r"https?:|url\(|@import|<script|<image|href", outside)


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_of_a_picture_lie_inside_of_it_and_not_on_each_other(name: str) -> None:
    root = read_back(svg(GRAPHS[name]))
    width, height = (float(root.attrib[key]) for key in ("width", "height"))
    boxes = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height")) for rect in root.iter(f"{SVG}rect")
    ]
    for x, y, wide, high in boxes:
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
    for i, (x, y, wide, high) in enumerate(boxes):
        for a, b, c, d in boxes[i + 1 :]:
            assert x + wide <= a or a + c <= x or y + high <= b or b + d <= y


@pytest.mark.parametrize("name", GRAPHS)
def test_dot_and_mermaid_name_every_node_that_is_drawn(name: str) -> None:
    nodes = drawn(Tree(GRAPHS[name]))
    in_dot, in_mermaid = dot(GRAPHS[name]), mermaid(GRAPHS[name])
    assert in_dot.count("{") == in_dot.count("}")
    for i, node in enumerate(nodes):
        assert f'"{node.id}" [label=' in in_dot
        assert re.search(rf"^\s+n{i}[\[\(\{{]", in_mermaid, re.MULTILINE)


def test_hostile_names_stay_names() -> None:
    root = read_back(svg(HOSTILE))
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in svg(HOSTILE) + dot(HOSTILE) + mermaid(HOSTILE)
    assert '[label="a\\"b\\\\c#`' in dot(HOSTILE)
    assert "<script>" not in mermaid(HOSTILE)
    assert '"a#quot;b' in mermaid(HOSTILE)


def test_a_picture_of_thousands_of_nodes_is_refused() -> None:
    crowd = Graph((), tuple(Node(f"h{i}", "host", f"h{i}") for i in range(4000)))
    with pytest.raises(EpctlError, match="too large for a picture"):
        svg(crowd)


@pytest.mark.parametrize("name", GRAPHS)
def test_json_holds_the_graph_and_gives_the_same_answers_again(name: str) -> None:
    report = report_of(GRAPHS[name])
    raw = dump(report)
    whole = json.loads(raw)
    assert whole["schema"] == {"name": "epctl.topo", "version": 1}
    assert {node["id"] for node in whole["graph"].get("nodes", [])} == {node.id for node in report.graph.nodes}
    assert b": null" not in raw
    again = report_of(decode(raw, "f"))
    assert (again.pairings, again.fabric) == (report.pairings, report.fabric)
    assert again.graph.nodes == report.graph.nodes


@pytest.mark.parametrize(
    "head", [b"", b'"schema":{"name":"x","version":1},', b'"schema":{"name":"epctl.topo","version":9},']
)
def test_other_json_is_refused(head: bytes) -> None:
    with pytest.raises(EpctlError, match="is no topology of epctl"):
        decode(b"{" + head + b'"graph":{}}', "f")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_does_not_differ_from_itself(name: str) -> None:
    assert diff(GRAPHS[name], GRAPHS[name], ("a", "b"), every=True).changes == ()


def test_what_differs_between_two_boards_of_one_kind() -> None:
    found = diff(GRAPHS["hgx-h100-ib"], GRAPHS["hgx-h200-roce-degraded"], ("a", "b"))
    assert (
        Change("link", "0000:05:00.0 - gpu5 (nvlink)", "5 links, 132.81 GB/s", "3 links, 79.686 GB/s") in found.changes
    )
    assert Change("attribute", "mlx5_3 gbps", "400", "200") in found.changes
    assert not [change for change in found.changes if "uuid" in change.what]


def test_a_lost_adapter_changes_nodes_links_and_pairing() -> None:
    from msgspec.structs import replace

    node = load.sample("hgx-h100-ib")
    kept = tuple(device for device in node.rdma.devices if device.name != "mlx5_2")  # type: ignore[union-attr]
    less = gather([Input("b", replace(node, rdma=replace(node.rdma, devices=kept)))])
    found = diff(gather([Input("a", node)]), less, ("a", "b"))
    assert Change("node", "mlx5_2", "NIC mlx5_2", "") in found.changes
    assert Change("link", "0000:37:01.0 - mlx5_2 (pcie)", "63.015 GB/s", "") in found.changes
    (pairing,) = [change for change in found.changes if change.kind == "pairing"]
    assert (pairing.what, pairing.before) == ("GPU 2", "mlx5_2 (PIX)")
    assert pairing.after.endswith("(NODE)")
