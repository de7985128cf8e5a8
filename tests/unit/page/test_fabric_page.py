"""What the page of `epctl fabric` holds: every variant is the report of its own command line."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

import msgspec
import pytest

from epctl.fabric import ecmp
from epctl.fabric.flags import with_flags
from epctl.fabric.report import Report
from epctl.fabric.request import Request, changed, settle
from epctl.fabric.simulate import simulate
from epctl.fabric.topology import from_graph
from epctl.model.refusal import RefusalError
from epctl.page.fabric_command import command
from epctl.page.fabric_variants import Variants, uplinks, variants

FIGURES = (
    "rdma_bytes",
    "spine_bytes",
    "nvlink_bytes",
    "hops",
    "largest_link_bytes",
    "largest_nic_bytes",
    "sends",
    "flows",
)


def report_of(request: Request) -> Report:
    return simulate(request)


@cache
def article() -> Variants:
    return variants(Request(), report_of)


def request_of(line: str) -> Request:
    words = shlex.split(line)[2:]
    fields = {"phase": "phases"}
    flags = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    return with_flags(Request(), dict(zip((fields.get(flag, flag) for flag in flags), words[1::2], strict=True)))


def test_the_fabric_of_four_nodes_has_all_variants_within_its_bytes() -> None:
    found = article()
    assert found.base == "rail|unified|default"
    assert len(found.held) == 2 * 4 * 3
    assert (found.refused, found.left_out) == ({}, ())
    assert found.hashes == tuple(range(8))
    assert len(msgspec.json.encode(found)) < 2_000_000


@pytest.mark.parametrize("key", ["rail|unified|default", "tor|pd|relay", "rail|pd+af|direct", "tor|af|default"])
def test_a_variant_is_the_report_of_the_command_that_it_names(key: str) -> None:
    held: dict[str, Any] = article().held[key]
    report = simulate(request_of(held["command"]))
    assert held["command"].startswith("epctl fabric")
    for mine, row in zip(held["traffic"], report.traffic, strict=True):
        assert (mine["phase"], mine["traffic"], mine["transfer"]) == (row.phase, row.traffic, row.transfer)
        assert [mine[name] for name in FIGURES] == [getattr(row, name) for name in FIGURES]
        assert mine["loads"] == [[load.link, load.up_bytes, load.down_bytes] for load in row.loads]
        assert [flow[:3] for flow in mine["flow_rows"]] == [[f.source, f.target, f.bytes] for f in row.flow_rows]
        assert [tuple(flow[4:]) for flow in mine["flow_rows"]] == [flow.path for flow in row.flow_rows]
    topology = article().topologies[key.partition("|")[0]]
    assert topology["links"] == [[link.kind, link.lower, link.upper, link.lane, link.plane] for link in report.links]
    assert list(held["advice"]) == list(report.advice)


@pytest.mark.parametrize(
    "shape",
    [{"nodes": 4}, {"nodes": 8, "wiring": "tor"}, {"planes": 2, "nodes": 8}, {"lost": ("leaf0-spine1", "nic5.0")}],
)
def test_the_requests_own_seed_gives_the_path_of_the_report(shape: dict[str, Any]) -> None:
    if shape.get("lost"):
        shape = {**shape, "planes": 2}
    request = changed(Request(seed=3, qps=2), **shape)
    fabric, tables = settle(request).fabric, ecmp.Tables(3)
    crossing = [flow for row in simulate(request).traffic for flow in row.flow_rows if len(flow.path) == 4]
    assert crossing
    assert all(uplinks(flow, fabric, tables) == flow.path[1:3] for flow in crossing)


def _largest(row: dict[str, Any], topology: dict[str, Any], draw: int) -> int:
    up: dict[int, int] = {}
    down: dict[int, int] = {}
    ends = iter(row["redraws"][draw - 1] if draw else [])
    for _, _, amount, _, *path in row["flow_rows"]:
        way = path if not draw or len(path) < 4 else [path[0], next(ends), next(ends), path[3]]
        for i, link in enumerate(way):
            side = up if i < len(way) / 2 else down
            side[link] = side.get(link, 0) + amount
    gpus = topology["fabric"].gpus
    return max(load for side in (up, down) for link, load in side.items() if link >= gpus)


@pytest.mark.parametrize("key", ["rail|unified|direct", "tor|pd|default"])
def test_redraws_of_the_hash_are_those_that_the_command_line_goes_through(key: str) -> None:
    found = article()
    held = found.held[key]
    spread = simulate(changed(request_of(held["command"]), seeds=8, redraw="ecmp"))
    for mine, row in zip(held["traffic"], spread.traffic, strict=True):
        largest = [_largest(mine, found.topologies[key.partition("|")[0]], draw) for draw in range(8)]
        told: Any = row.largest_link_bytes
        assert (min(largest), max(largest)) == (told.min, told.max)
        assert sum(largest) / 8 == pytest.approx(told.mean)
        assert largest[0] == mine["largest_link_bytes"]


def test_variants_that_cannot_be_say_why() -> None:
    found = variants(changed(Request(), nodes=6, spines=2, experts=96), report_of)
    assert "rail|pd+af|default" not in found.held
    assert found.refused["rail|pd+af|default"] == (
        "--layout pd+af is given for 6 nodes: the layout deals nodes out in quarters"
    )
    assert "rail|pd|default" in found.held


def test_a_request_that_cannot_be_is_refused() -> None:
    with pytest.raises(RefusalError):
        variants(changed(Request(), layout="pd", nodes=3), report_of)


def test_larger_fabrics_hold_fewer_variants_and_name_the_rest() -> None:
    found = variants(changed(Request(), nodes=16, batch=16, lengths="1"), report_of)
    assert set(found.held) == {
        "rail|unified|default",
        "tor|unified|default",
        *(f"rail|{layout}|default" for layout in ("pd", "af", "pd+af")),
        *(f"rail|unified|{transfer}" for transfer in ("direct", "relay")),
    }
    assert len(found.held) + len(found.left_out) == 24


def test_a_fabric_of_hundreds_of_gpus_holds_the_request_alone_without_redraws() -> None:
    found = variants(changed(Request(), nodes=64, batch=16, experts=512, lengths="1", transfer="relay"), report_of)
    assert list(found.held) == ["rail|unified|relay"]
    assert found.hashes == (0,)


def test_the_other_wiring_has_its_own_nodes_of_a_leaf() -> None:
    found = variants(changed(Request(), nodes=8, nodes_per_leaf=4, batch=8, lengths="1"), report_of)
    assert found.topologies["rail"]["fabric"].nodes_per_leaf == 4
    assert found.topologies["tor"]["fabric"].nodes_per_leaf == 1


def test_a_fabric_given_link_by_link_keeps_its_wiring() -> None:
    nics = [(gpu, 0, f"leaf {gpu % 2}") for gpu in range(4)]
    graph = from_graph(2, 2, nics, [("leaf 0", "top", 2), ("leaf 1", "top", 2)])
    found = variants(Request(graph=graph, batch=4), report_of)
    assert found.base == "custom|unified|default"
    assert {key.partition("|")[0] for key in found.held} == {"custom"}
    assert found.held[found.base]["command"].endswith("--topology FILE.toml")


def test_the_command_line_leaves_out_defaults_and_gives_the_request_back() -> None:
    assert command(Request()) == "epctl fabric"
    request = changed(Request(), nodes=8, layout="pd+af", lengths="82+-50%", phases=("kv", "decode"), seed=7, planes=2)
    assert request_of(command(request)) == request
    assert "--lost leaf0 --lost nic1" in command(changed(Request(), lost=("leaf0", "nic1")))
