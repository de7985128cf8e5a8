"""Plans that read well and cannot run, or that flatter: each test is named after the mistake."""

from __future__ import annotations

from typing import Any

import pytest

from epctl.model.hardware import hardware
from epctl.model.inputs import Flags, resolve
from epctl.model.plan import Files, Request, plan
from epctl.model.plan.request import Sweep
from epctl.model.plan.sweep import EpRow, rows
from epctl.model.plan.types import EpFamily, PlanReport
from epctl.model.readings import read
from epctl.model.rules import RULES
from epctl.model.show.page import Look
from epctl.model.show.table import SHOWN
from epctl.model.show.text import render
from epctl.probes.load import sample


def planned(files: Files | None = None, **fields: Any) -> tuple[PlanReport, EpFamily]:  # noqa: ANN401
    report = plan(Request(**{"experts": 256, "topk": 8, "what": "ep", **fields}), files or Files(memo={}))
    assert isinstance(report.ep, EpFamily)
    return report, report.ep


def flat(report: PlanReport) -> str:
    return " ".join(render(report, Look()).split())


def test_gpus_below_hopper_said_to_fit() -> None:
    for rules in ("deepep-2.5", "epctl"):
        report, ep = planned(hardware="a100-hdr200", rules=rules)
        assert not report.fits
        assert ep.budgets_broken == ("kernel_limits",)
        assert "needs_sm90" in report.verdict
        assert "nearest plan" not in flat(report)
        (row,) = rows(Request(experts=256, topk=8, hardware="a100-hdr200", rules=rules), Sweep((), ()), Files(memo={}))
        assert row.plan.budgets_broken == ep.budgets_broken
    assert planned(hardware="b200-ndr400")[0].fits


@pytest.mark.parametrize(
    ("nodes", "rules", "broken"),
    [(2, "deepep-2.5", True), (1, "deepep-2.5", False), (2, "epctl", False), (2, "deepep-2", False)],
)
def test_efa_between_nodes_said_to_carry_gdaki(nodes: int, rules: str, broken: bool) -> None:
    _, ep = planned(hardware="h200-p5en-efa", nodes=nodes, rules=rules)
    assert ("needs_gdaki" in ep.kernel_limits_broken) is broken


def test_a_snapshot_of_efa_planned_like_infiniband() -> None:
    files = Files(readings={"sample p5-efa": read(sample("p5-efa"))}, memo={})
    report, ep = planned(files, sample="p5-efa", nodes=2)
    assert not report.fits
    assert "runs on this hardware beyond one node" in report.verdict
    for name, assumed in (("p5-efa", True), (None, False)):
        ep = planned(files, sample=name, nodes=2)[1]
        terms = [term for time in ep.times.values() for term in time.terms if term.name == "rdma"]
        assert [("assumed: as InfiniBand" in term.formula) for term in terms] == [assumed] * 2


def test_a_skewed_gate_shown_by_its_mean_rank() -> None:
    even, skewed = planned(nodes=1)[1], planned(nodes=1, gate="zipf:1.0")
    assert skewed[1].times["dispatch"].us < even.times["dispatch"].us < skewed[1].times["dispatch"].us_slow_rank
    busiest = f"{skewed[1].times['dispatch'].us_slow_rank:.0f} us on the busiest rank"
    assert f"dispatch {busiest}" in flat(skewed[0])
    assert f"Time of dispatch: {busiest}" in flat(skewed[0])
    total = sum(time.us_slow_rank for time in skewed[1].times.values())
    more = next(entry for entry in skewed[1].sensitivities if entry.change.startswith("+"))
    assert isinstance(more.dispatch_us, float)
    assert isinstance(more.combine_us, float)
    assert more.ratio == pytest.approx((more.dispatch_us + more.combine_us) / total)
    assert {SHOWN[EpRow][stage] for stage in ("dispatch", "combine")} == {
        "times.dispatch.us_slow_rank",
        "times.combine.us_slow_rank",
    }


def test_a_trace_onto_one_rank_shown_by_the_seven_idle_ones() -> None:
    files = Files(traces={"hot.csv": ((0, 1), (2, 3), (4, 5))}, memo={})
    time = planned(files, topk=2, gate="hot.csv")[1].times["dispatch"]
    assert time.us_slow_rank > time.us * 5


def test_the_balanced_gate_by_name_told_apart_from_the_default() -> None:
    named, default = planned(gate="balanced", nodes=2)[1], planned(nodes=2)[1]
    assert named.times == default.times


def test_one_row_of_padding_refused_as_a_token_without_ranks() -> None:
    trace = tuple((expert, expert + 128) for expert in range(100))
    files = Files(traces={"gate.csv": (*trace, (-1, -1))}, memo={})
    ep = planned(files, topk=2, gate="gate.csv")[1]
    assert ep.gate.kind.endswith("1 row of padding (-1 alone) left out")


def test_floors_read_as_times() -> None:
    report, ep = planned(rules="epctl")
    assert f"dispatch {ep.times['dispatch'].us_slow_rank:.0f} us floor (" in flat(report)
    assert "us floor" not in flat(planned()[0])


def test_another_number_of_gpus_called_measured() -> None:
    for gpus, mark in ((None, "bulk writes"), (8, "assumed")):
        node = resolve(Flags(gpus_per_node=gpus), hardware("h200x2"), None, RULES["epctl"])
        for name in ("sm_write_limit_gbs", "pull_add_limit_gbs", "nvlink_hop_us"):
            assert getattr(node, name).source.startswith("assumed" if gpus else "measured"), (name, mark)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus_per_node": 64}, "--nodes 8 --gpus-per-node 8"),
        ({"gpus_per_node": 4, "nodes": 2}, "--nodes 1 --gpus-per-node 8"),
        ({"gpus_per_node": 8, "nodes": 2, "hardware": "gb200-nvl72-ndr400"}, "--nodes 1 --gpus-per-node 16"),
        ({"gpus_per_node": 4}, ""),
        ({"nodes": 2}, ""),
    ],
)
def test_nvlink_domain_taken_as_given(fields: dict[str, Any], said: str) -> None:
    report, _ = planned(**fields)
    notes = [note for note in report.notes if "NVLink" in note]
    assert bool(notes) is bool(said)
    assert said in " ".join(notes)


def test_trays_of_one_rack_planned_over_rdma_without_a_word() -> None:
    files = Files(readings={"sample gb200-nvl": read(sample("gb200-nvl"))}, memo={})
    report, _ = planned(files, sample="gb200-nvl", gpus_per_node=4, nodes=2)
    assert any("--nodes 1 --gpus-per-node 8" in note for note in report.notes)


def test_what_binds_the_mean_rank_said_to_bind_the_busiest() -> None:
    report, ep = planned(nodes=4, gate="zipf:1.0")
    time = ep.times["dispatch"]
    assert (time.binding, time.binding_slow_rank) == ("rdma", "nvlink")
    assert "on the mean one), bound by NVLink; the mean one gets" in flat(report)
    assert planned(nodes=4)[1].times["dispatch"].binding_slow_rank == "rdma"
