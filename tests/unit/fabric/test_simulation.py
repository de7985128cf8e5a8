"""Simulated means against closed forms, jobs in other processes, cost by number of flows, and what the package imports."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import epctl.fabric
from epctl.fabric import ecmp, engine, simulate
from epctl.fabric.engine import Job
from epctl.fabric.flows import Pairing, flows_of
from epctl.fabric.redraw import Redraw
from epctl.fabric.report import Report, Spread
from epctl.fabric.request import Request, changed
from epctl.fabric.routing import Sends
from epctl.fabric.topology import Shape, build

SHAPES: list[dict[str, Any]] = [
    {"nodes": 4, "layout": "unified"},
    {"nodes": 4, "layout": "unified", "wiring": "tor"},
    {"nodes": 8, "layout": "unified", "nodes_per_leaf": 2, "spines": 2},
    {"nodes": 8, "layout": "unified", "nodes_per_leaf": 4, "transfer": "relay"},
    {"nodes": 8, "layout": "pd", "nodes_per_leaf": 4, "spines": 2},
    {"nodes": 4, "layout": "af"},
    {"nodes": 4, "layout": "af", "transfer": "relay"},
    {"nodes": 8, "layout": "pd+af", "nodes_per_leaf": 2, "spines": 2},
    {"nodes": 8, "layout": "af", "nodes_per_leaf": 2, "spines": 1, "transfer": "relay"},
    {"nodes": 4, "gpus_per_node": 4, "experts": 64, "topk": 6},
    {"nodes": 8, "gpus_per_node": 4, "experts": 160, "topk": 6},
    {"nodes": 1, "layout": "unified", "spines": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("values", SHAPES, ids=lambda values: " ".join(map(str, values.values())))
def test_simulated_means_are_the_closed_forms(values: dict[str, Any]) -> None:
    report = simulate.simulate(changed(Request(), **values, batch=64, seeds=300, phases=("decode",)))
    for row in report.traffic:
        assert isinstance(row.expected, msgspec.Struct)
        for name in ("rdma_bytes", "spine_bytes", "nvlink_bytes"):
            found, form = getattr(row, name), getattr(row.expected, name)
            assert isinstance(found, Spread)
            # A range of 300 draws spans about 5.8 standard deviations.
            error = (found.max - found.min) / 5.8 / 300**0.5
            assert abs(found.mean - form) <= 4.2 * error, (row.traffic, name)


def test_a_gate_without_closed_form_has_no_expectation() -> None:
    report = simulate.simulate(Request(gate="zipf:1.0", phases=("decode",)))
    assert all(row.expected is msgspec.UNSET for row in report.traffic)


def test_a_hot_gate_fills_the_links_of_its_node() -> None:
    even = simulate.simulate(Request(phases=("decode",), batch=256))
    hot = simulate.simulate(Request(phases=("decode",), batch=256, gate="hot:8:50"))
    assert isinstance(even.traffic[0].largest_nic_bytes, int)
    assert isinstance(hot.traffic[0].largest_nic_bytes, int)
    assert hot.traffic[0].largest_nic_bytes > 2 * even.traffic[0].largest_nic_bytes


def test_jobs_that_are_spread_give_the_same_report(monkeypatch: pytest.MonkeyPatch) -> None:
    request = changed(Request(), wiring="tor", seeds=30, redraw="ecmp", phases=("decode",))
    whole = simulate.simulate(request)
    monkeypatch.setattr(simulate, "JOB_FLOWS", 1000)
    sizes = []

    def spread(jobs: Sequence[Job]) -> list[list[list[int]]]:
        sizes.append(len(jobs))
        return [engine.run(job) for job in reversed(jobs)][::-1]

    assert simulate.simulate(request, spread=spread) == whole
    assert max(sizes) > 1


def test_redraws_say_what_a_seed_changes() -> None:
    def figures(redraw: str) -> tuple[Spread, Spread, Report]:
        request = changed(Request(), wiring="tor", layout="pd", seeds=12, redraw=redraw, phases=("decode",))
        report = simulate.simulate(request)
        row = report.traffic[0]
        assert isinstance(row.rdma_bytes, Spread)
        assert isinstance(row.largest_link_bytes, Spread)
        return row.rdma_bytes, row.largest_link_bytes, report

    rdma, largest, report = figures("ecmp")
    assert rdma.min == rdma.max
    assert largest.min < largest.max
    assert report.routing_draws == {"decode": 1}
    rdma, _, report = figures("routing")
    assert rdma.min < rdma.max
    assert report.routing_draws == {"decode": 12}
    assert figures("auto")[:2] == figures("both")[:2]


def test_many_tokens_are_drawn_fewer_times_and_that_is_said() -> None:
    report = simulate.simulate(Request(seeds=8, batch=1 << 17, phases=("decode",), traffic=("dispatch",)))
    assert report.routing_draws == {"decode": 1}
    assert any("once for all 8 seeds" in note for note in report.notes)


def test_more_queue_pairs_even_out_links_and_one_port_does_not() -> None:
    report = simulate.simulate(
        changed(Request(), wiring="tor", layout="pd", traffic=("kv",), phases=("kv",), what_if=True)
    )
    by_pairing = {(row.qps, row.ports): row for row in report.what_if}
    one, eight, stuck = by_pairing[1, 16384], by_pairing[8, 16384], by_pairing[8, 1]
    assert one.evenly_bytes == 11_524_608
    assert one.evenly_bytes < eight.largest_link_bytes < 0.8 * one.largest_link_bytes
    assert abs(stuck.largest_link_bytes / one.largest_link_bytes - 1) < 0.12


def ring(shape: Shape, each: int) -> Sends:
    """Every GPU sends a unit to `each` GPUs of other nodes."""
    gpus, total = shape.gpus_per_node, shape.nodes * shape.gpus_per_node
    return Sends({(s, (s + gpus + 7 * i) % total): 1 for s in range(total) for i in range(each)}, {}, 1)


@pytest.mark.slow
def test_the_time_of_a_seed_grows_linearly_with_the_flows() -> None:
    shape = Shape(nodes=128, spines=8, wiring="tor")
    fabric, times = build(shape), []
    for each in (16, 32, 64, 128):
        flows = flows_of(fabric, ring(shape, each), Pairing())
        assert len(flows) == 1024 * each
        redraw = Redraw(fabric, flows)
        best = 1e9
        for seed in range(8):
            tables = ecmp.Tables(seed)
            begin = time.process_time()
            redraw.loads(tables)
            best = min(best, time.process_time() - begin)
        times.append(best)
    # Eight times the flows: not more than about eight times the time.
    assert times[3] < 12 * times[0]
    assert times[3] / (1024 * 128) < 150e-9


MODULES = sorted(Path(epctl.fabric.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_package_is_pure(path: Path) -> None:
    outside = {"os", "subprocess", "socket", "pathlib", "multiprocessing", "concurrent", "time", "threading"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top not in outside
            assert top in sys.stdlib_module_names or name.startswith(
                ("msgspec", "tomli", "epctl.fabric", "epctl.topo", "epctl.model", "epctl.core")
            )


def test_the_report_has_a_json_schema() -> None:
    assert "TrafficReport" in msgspec.json.schema(Report)["$defs"]
