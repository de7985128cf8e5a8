"""Plans and sweeps as a whole: rows are the single plans', budgets agree, more bandwidth never takes longer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.model.budget import Load, budgets
from epctl.model.budget_lines import breaks
from epctl.model.plan import Files, Request, plan
from epctl.model.plan.request import Sweep
from epctl.model.plan.schema import schema
from epctl.model.plan.settings import settings as settings_of
from epctl.model.plan.sweep import EpRow, TimeRow, rows
from epctl.model.plan.types import EpFamily, PlanReport
from epctl.model.refusal import RefusalError
from epctl.model.show.env import render as env
from epctl.model.show.markdown import render as markdown
from epctl.model.show.page import Look, Page, bar, wrapped
from epctl.model.show.text import render
from epctl.model.timing_types import StageTime
from tests.support.planning import node_of, plan_of, request_of


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Requests, most of which can be planned."""
    return Request(
        experts=draw(st.sampled_from([64, 256, 384, 512])),
        topk=draw(st.integers(1, 10)),
        hidden=draw(st.sampled_from([2048, 7168, 7200])),
        tokens=draw(st.sampled_from([1, 128, 4096, 65536])),
        dtype=draw(st.sampled_from(["fp8", "bf16"])),
        nodes=draw(st.sampled_from([1, 2, 3, 8, 64])),
        gpus_per_node=draw(st.sampled_from([None, 1, 4, 8])),
        mode=draw(st.sampled_from([None, "direct", "hybrid"])),
        overlap=draw(st.sampled_from([None, False])),
        rules=draw(st.sampled_from(["deepep-2.5", "deepep-2", "epctl"])),
        hardware=draw(st.sampled_from(["h200-ndr400", "h100-p5-efa", "b200-xdr800", "h200x2"])),
        contexts=draw(st.sampled_from([None, 2, 2000])),
        memory_bytes=draw(st.sampled_from([None, 1 << 30])),
    )


def told(thing: object) -> Any:  # noqa: ANN401 - JSON
    return json.loads(msgspec.json.encode(thing))


def subset(small: Any, large: Any) -> bool:  # noqa: ANN401 - JSON
    if isinstance(small, dict):
        return all(key in large and subset(value, large[key]) for key, value in small.items())
    return bool(small == large)


@settings(max_examples=80, deadline=None)
@given(requests())
def test_a_row_of_a_sweep_is_the_single_plans_json(request: Request) -> None:
    (row,) = rows(request, Sweep((), ()), Files(memo={}))
    try:
        found = plan(request, Files(memo={}))
    except RefusalError as error:
        assert row.plan.error_code == error.code
        assert (row.plan.what, row.plan.todo) == (error.what, error.todo)
        return
    assert subset(told(row.ep), told(found.ep))
    for text in (render(found, Look()), markdown(found), env(found)):
        assert text.endswith("\n")
        assert "None" not in text.replace("None of", "")


def test_names_of_rows_are_names_of_plans() -> None:
    assert set(EpRow.__struct_fields__) <= set(EpFamily.__struct_fields__)
    assert set(TimeRow.__struct_fields__) <= set(StageTime.__struct_fields__)


def test_a_sweep_remembers_without_mixing_up() -> None:
    files = Files(memo={})
    sweep = Sweep(("tokens", "rdma_gbs", "rules"), ((128, 4096), (25.0, 50.0), ("deepep-2.5", "epctl")))
    base = Request(experts=256, topk=8, nodes=4)
    together = list(rows(base, sweep, files))
    for row in together:
        tokens, rdma, rules = row.keys.values()
        alone = msgspec.structs.replace(base, tokens=tokens, rdma_gbs=rdma, rules=rules)
        (single,) = rows(alone, Sweep((), ()), Files(memo={}))
        assert single.ep == row.ep


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["h200-ndr400", "h100-p5-efa", "h200x2"]),
    st.integers(1, 8),
    st.sampled_from([0, 1 << 20, 1 << 36, 1 << 39]),
    st.sampled_from([None, 1, 2, 17, 1024, 1025]),
    st.booleans(),
)
def test_a_sweeps_budgets_are_the_plans(hardware: str, nodes: int, size: int, contexts: int | None, mesh: bool) -> None:
    node = node_of(hardware, rdma_gbs=50.0)
    mode = "hybrid" if nodes % 2 else "direct"
    request = request_of(node, nodes, 4, mode, num_experts=32 * nodes)
    found = plan_of(node, nodes, 4, mode, num_experts=32 * nodes)
    load = Load(reserved_bytes=1 << 30, full_mesh=mesh, counters=mesh)
    entries = budgets(found, node, request, size, contexts, load)
    assert breaks(found, node, request, size, contexts, load) == tuple(e.name for e in entries if not e.fits)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["direct", "hybrid"]), st.sampled_from([2, 4]), st.floats(5, 400), st.floats(1, 4), st.booleans()
)
def test_a_faster_link_never_takes_longer(mode: str, nodes: int, gbs: float, factor: float, rdma: bool) -> None:
    def total(rate: float) -> float:
        link = {"rdma_gbs": rate / 16} if rdma else {"nvlink_gbs": rate}
        # With 64 SMs at least, whatever the rate: else the rules' own count follows the link that they plan for.
        request = Request(experts=256, topk=8, nodes=nodes, mode=mode, overlap=False, rules="epctl", **link)
        (row,) = rows(request, Sweep((), ()), Files(memo={}))
        assert row.ep.num_sms >= 64
        return float(row.ep.times.dispatch.us + row.ep.times.combine.us)

    assert total(gbs * factor) <= total(gbs) * (1 + 1e-9)


def test_defaults_of_a_plan_are_not_shared() -> None:
    first, second = (
        plan(Request(experts=256, topk=8), Files(memo={})),
        plan(Request(experts=256, topk=4), Files(memo={})),
    )
    assert first.ep != second.ep
    assert not Files().memo


def test_settings_have_a_reason_and_name_programs_that_have_a_source() -> None:
    found = plan(Request(experts=256, topk=8, nodes=4, contexts=33, redundant_experts=1), Files(memo={}))
    assert isinstance(found.ep, EpFamily)
    lines = settings_of(found, found.ep)
    assert all(setting.why for setting in lines)
    assert {setting.program for setting in lines} == {"DeepEP", "NCCL", "SGLang", "vLLM"}
    assert any("num_allocated_qps=33" in setting.line for setting in lines)


def test_the_schema_describes_plans() -> None:
    found = schema()
    names = set(found["$defs"]["PlanReport"]["properties"])
    assert names == {field.encode_name for field in msgspec.structs.fields(PlanReport)}
    assert len(found["$defs"]["PlanReport"]["properties"]["bucket"]["anyOf"]) == 2


@pytest.mark.parametrize(
    ("share", "text"), [(0, ".........."), (1e-9, "#........."), (1, "##########"), (1.01, "#########>")]
)
def test_bars(share: float, text: str) -> None:
    assert bar(share) == text


def test_the_last_column_wraps_and_addresses_stay_whole() -> None:
    page = Page(Look(40))
    address = "https://example.org/" + "a" * 60
    page.table([(("name", f"some words before {address} and after"), "")], frozenset())
    lines = page.text().splitlines()
    assert f"      {address}" in lines
    assert all(len(line) <= 40 for line in lines if address not in line)
    assert wrapped("a\x1b[31mb\n", 20) == ["a?[31mb"]
