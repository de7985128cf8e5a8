"""EP plans: monotone, invariant, their terms add up, what is refused, and how fast they are."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpPlan, EpRequest
from epctl.model.limits import KERNEL_LIMITS
from epctl.model.refusal import RefusalError
from epctl.model.rules import RULES, Rules
from epctl.model.traffic import bytes_moved, combine_volumes, dispatch_volumes, domain_of, stages

RATES = st.floats(1.0, 2000.0)


@st.composite
def requests(draw: st.DrawFn) -> EpRequest:
    nodes, gpus = draw(st.sampled_from((1, 2, 4, 8, 16))), draw(st.sampled_from((1, 2, 4, 8)))
    experts = nodes * gpus * draw(st.integers(1, 8))
    return EpRequest(
        num_experts=experts,
        num_topk=draw(st.integers(1, min(experts, 10))),
        num_nodes=nodes,
        gpus_per_node=gpus,
        mode=draw(st.sampled_from(("direct", "hybrid"))),
        nvlink_gbs=draw(RATES),
        rdma_gbs=draw(RATES),
        prefer_overlap=draw(st.booleans()),
        device_sms=draw(st.sampled_from((78, 108, 132, 133, 148, 160))),
    )


ALL_RULES = st.sampled_from(list(RULES.values()))


def changed(request: EpRequest, **changes: Any) -> EpRequest:  # noqa: ANN401
    return msgspec.structs.replace(request, **changes)


@given(requests(), ALL_RULES)
def test_counts_keep_their_promises(request: EpRequest, rules: Rules) -> None:
    plan = plan_ep(request, rules)
    cap = request.device_sms // 2 * 2 if rules.even_device_cap else request.device_sms
    assert 1 <= plan.expected_distinct_ranks <= min(request.num_topk, plan.num_ranks)
    assert plan.expected_distinct_nodes <= plan.expected_distinct_ranks + 1e-12
    assert plan.num_sms == min(cap, plan.num_sms_uncapped)
    assert plan.num_sms_uncapped % rules.sm_step == 0
    assert plan.num_sms_uncapped >= max(rules.min_sms, plan.sm_demand_padded - 1e-6)
    assert request.prefer_overlap or plan.num_sms >= min(64, cap)
    assert plan.sms_left == request.device_sms - plan.num_sms >= 0
    assert plan.num_qps.fast_atomics <= plan.allocated_qps.fast_atomics
    assert plan.num_qps.slow_atomics <= plan.allocated_qps.slow_atomics
    assert set(plan.kernel_limits_broken) <= set(KERNEL_LIMITS)
    assert math.isclose(plan.sm_demand_padded, plan.sm_demand * rules.margin)
    assert msgspec.json.decode(msgspec.json.encode(plan))["status"] == "ok"


@given(requests(), ALL_RULES, st.floats(1.0, 8.0), st.sampled_from(("nvlink_gbs", "rdma_gbs")))
def test_a_faster_link_never_needs_fewer_sms(request: EpRequest, rules: Rules, factor: float, link: str) -> None:
    slow = plan_ep(request, rules)
    fast = plan_ep(changed(request, **{link: getattr(request, link) * factor}), rules)
    assert fast.sm_demand >= slow.sm_demand * (1 - 1e-12)
    assert fast.num_sms_uncapped >= slow.num_sms_uncapped


@given(requests(), ALL_RULES, st.floats(1.0, 8.0))
def test_faster_sms_never_need_more_of_them(request: EpRequest, rules: Rules, factor: float) -> None:
    slow = plan_ep(request, rules)
    fast = plan_ep(
        changed(request, sm_read_gbs=rules.sm_read_gbs * factor, sm_write_gbs=rules.sm_write_gbs * factor), rules
    )
    assert fast.num_sms_uncapped <= slow.num_sms_uncapped


@given(requests(), ALL_RULES, st.sampled_from((0.25, 0.5, 2.0, 4.0)))
def test_scaling_every_rate_changes_nothing(request: EpRequest, rules: Rules, factor: float) -> None:
    scaled = changed(
        request,
        nvlink_gbs=request.nvlink_gbs * factor,
        rdma_gbs=request.rdma_gbs * factor,
        sm_read_gbs=rules.sm_read_gbs * factor,
        sm_write_gbs=rules.sm_write_gbs * factor,
    )
    before, after = plan_ep(request, rules), plan_ep(scaled, rules)
    assert (after.num_sms, after.num_qps, after.bound_link) == (before.num_sms, before.num_qps, before.bound_link)
    assert math.isclose(after.sm_demand, before.sm_demand, rel_tol=1e-12)


@given(requests())
def test_slowest_link_is_the_slowest(request: EpRequest) -> None:
    plan = plan_ep(request)
    rdma, nvlink = plan.traffic.rdma / request.rdma_gbs, plan.traffic.nvlink / request.nvlink_gbs
    assert plan.slowest_link == ("none" if rdma == nvlink == 0 else "rdma" if rdma > nvlink else "nvlink")
    assert plan_ep(request, RULES["epctl"]).bound_link == plan.slowest_link
    if plan.logical_domain.scaleout_ranks > 1 or request.num_nodes == 1:
        assert plan.bound_link == plan.slowest_link


@given(requests(), ALL_RULES)
def test_terms_show_how_the_plan_came_about(request: EpRequest, rules: Rules) -> None:
    plan = plan_ep(request, rules)
    terms = {term.name: term for term in plan.terms}
    assert len(terms) == len(plan.terms)
    assert terms["num_sms"].value == plan.num_sms
    assert terms["uncapped"].value == plan.num_sms_uncapped
    assert terms["padded"].value == plan.sm_demand_padded
    assert terms["num_qps"].value == plan.num_qps.slow_atomics
    assert terms["dispatch.sm_read"].value == plan.traffic.sm_read
    demands = [term for term in plan.terms if term.unit == "SMs" and "_gbs" in term.formula]
    binding = [term for term in demands if term.binding]
    assert (plan.bound_link == "none") == (not demands)
    for term in demands:
        rate, traffic, volume, sm_rate = (float(value) for value in term.inputs.values())
        assert math.isclose(rate / traffic * volume / sm_rate, float(term.value), rel_tol=1e-9)
        stage, name = list(term.inputs)[2].split(".")
        assert math.isclose(volume, getattr(plan.stages[stage], name), rel_tol=1e-9)
    assert not demands or binding[0].value == plan.sm_demand
    times = {term.name for term in plan.terms if term.name.endswith("_time") and term.binding}
    assert times == (set() if plan.bound_link == "none" else {f"{plan.bound_link}_time"})


@given(requests(), st.sampled_from(("staged", "write_once")))
def test_volumes_are_the_same_in_floats_and_fractions(request: EpRequest, layout: Any) -> None:  # noqa: ANN401
    domain = domain_of(request.num_nodes, request.gpus_per_node, request.mode)
    plan = plan_ep(request)
    ranks, nodes = Fraction(plan.expected_distinct_ranks_exact), Fraction(plan.expected_distinct_nodes_exact)
    one = Fraction(1)
    exact = dispatch_volumes(domain, ranks, nodes, one) + combine_volumes(domain, ranks, nodes, one, layout)
    floats = dispatch_volumes(domain, float(ranks), float(nodes), 1.0)
    floats += combine_volumes(domain, float(ranks), float(nodes), 1.0, layout)
    assert all(isinstance(value, (Fraction, int)) for value in exact)
    assert all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-15) for a, b in zip(exact, floats, strict=True))


@given(requests())
def test_writing_once_saves_the_second_kernel(request: EpRequest) -> None:
    domain = domain_of(request.num_nodes, request.gpus_per_node, request.mode)
    plan = plan_ep(request)
    staged = stages(domain, plan.expected_distinct_ranks, plan.expected_distinct_nodes, "staged")
    once = stages(domain, plan.expected_distinct_ranks, plan.expected_distinct_nodes, "write_once")
    assert set(staged) - set(once) == {"dispatch_epilogue", "combine_epilogue"}
    assert once["dispatch"] == staged["dispatch"]
    for name in once:
        assert (once[name].nvlink, once[name].rdma) == (staged[name].nvlink, staged[name].rdma)


def test_hybrid_saves_rdma_traffic() -> None:
    plans = [plan_ep(EpRequest(**{**BASE, "mode": mode})) for mode in ("direct", "hybrid")]
    assert plans[1].traffic.rdma < plans[0].traffic.rdma


def test_bytes_follow_tokens_copies_and_size() -> None:
    traffic = plan_ep(EpRequest(**{**BASE, "num_nodes": 1})).traffic
    moved = bytes_moved(traffic, num_tokens=4096, distinct_ranks=5.0, bytes_per_copy=7168)
    assert moved.nvlink == 0.875 * 4096 * 5 * 7168


BASE: dict[str, Any] = {
    "num_experts": 256,
    "num_topk": 8,
    "num_nodes": 4,
    "gpus_per_node": 8,
    "mode": "hybrid",
    "nvlink_gbs": 405.0,
    "rdma_gbs": 50.0,
}


@pytest.mark.parametrize(
    ("changes", "code", "hint"),
    [
        ({"num_experts": 250}, "experts_not_divisible", "256 (6 redundant)"),
        ({"num_topk": 257}, "topk_exceeds_experts", "256"),
        ({"num_topk": -1}, "topk_too_small", "1"),
        ({"num_nodes": -1}, "no_ranks", "--nodes 1"),
        ({"mode": "turbo"}, "unknown_mode", "hybrid"),
        ({"nvlink_gbs": math.nan}, "nvlink_bandwidth_missing", "405"),
        ({"nvlink_gbs": -1.0}, "nvlink_bandwidth_missing", "405"),
        ({"nvlink_gbs": 4e11}, "absurd_argument", "GB/s"),
        ({"rdma_gbs": math.inf}, "rdma_bandwidth_missing", "50"),
        ({"rdma_gbs": 0.0, "mode": "direct"}, "rdma_bandwidth_missing", "50"),
        ({"sm_read_gbs": 0.0}, "sm_rate_missing", "45"),
        ({"device_sms": 1}, "device_too_small", "132"),
        ({"device_sms": 10**9}, "absurd_argument", "132"),
        ({"num_experts": 10**13}, "absurd_argument", "256"),
        ({"num_nodes": 10**11}, "experts_not_divisible", "256 instead of"),
        ({"distinct_ranks": 2.0, "distinct_nodes": 3.0}, "distinct_out_of_range", "at most 2.0"),
        ({"num_nodes": 10**9, "gpus_per_node": 10**9}, "absurd_argument", "16"),
        ({"distinct_ranks": 9.0}, "distinct_out_of_range", "8"),
        ({"distinct_nodes": 0.5}, "distinct_out_of_range", "1 to 4"),
    ],
)
def test_refusals_name_the_value_and_one_that_would_do(changes: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(RefusalError) as caught:
        plan_ep(EpRequest(**{**BASE, **changes}))
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    assert hint in caught.value.todo
    assert "\n" not in caught.value.what + caught.value.why + caught.value.todo


def test_one_node_needs_no_rdma_rate() -> None:
    assert plan_ep(EpRequest(**{**BASE, "num_nodes": 1, "rdma_gbs": 0.0})).slowest_link == "nvlink"


def test_one_gpu_a_node_needs_no_nvlink_rate_by_our_rules() -> None:
    lone = EpRequest(**{**BASE, "gpus_per_node": 1, "nvlink_gbs": 0.0, "mode": "direct"})
    assert plan_ep(lone, RULES["epctl"]).bound_link == "rdma"
    with pytest.raises(RefusalError):
        plan_ep(lone)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"num_nodes": 64, "num_experts": 512}, "hybrid_scaleout_over_32"),
        ({"num_topk": 33}, "topk_over_32"),
        ({"num_experts": 4096}, "experts_over_2048"),
        ({"num_nodes": 256, "num_experts": 2048}, "ranks_over_1024"),
        ({"num_nodes": 1, "num_experts": 8192}, "local_experts_over_512"),
        ({"device_sms": 200, "rdma_gbs": 5000.0, "nvlink_gbs": 9000.0}, "hybrid_sms_over_160"),
    ],
)
def test_kernel_limits_are_named(changes: dict[str, Any], limit: str) -> None:
    assert limit in plan_ep(EpRequest(**{**BASE, **changes})).kernel_limits_broken


def test_no_hybrid_limit_where_one_node_runs_direct_kernels() -> None:
    assert plan_ep(EpRequest(**{**BASE, "num_nodes": 1, "gpus_per_node": 128})).kernel_limits_broken == ()


def test_a_given_gate_moves_the_plan() -> None:
    balanced = plan_ep(EpRequest(**BASE))
    limited = plan_ep(EpRequest(**BASE, distinct_ranks=6.8, distinct_nodes=3.1))
    assert limited.expected_distinct_ranks_exact == ""
    assert limited.traffic.rdma < balanced.traffic.rdma
    assert {term.formula for term in limited.terms[:2]} == {"given"}


def test_exact_arithmetic_decides_at_whole_numbers() -> None:
    """180 / 0.75 x 1 / 50 x 1.25 is 6, which floats may miss either way."""
    request = EpRequest(
        num_experts=16, num_topk=2, num_nodes=1, gpus_per_node=4, mode="hybrid", nvlink_gbs=180.0, rdma_gbs=0.0
    )
    plan = plan_ep(request, RULES["deepep-2"])
    assert (plan.num_sms, plan.distance_to_integer) == (6, 0.0)


def sweep() -> list[EpPlan]:
    return [
        plan_ep(
            EpRequest(**{**BASE, "num_topk": k, "num_nodes": n, "gpus_per_node": g, "mode": m, "rdma_gbs": 25.0 + r})
        )
        for k in range(1, 11)
        for n in (1, 2, 4, 8)
        for g in (1, 2, 4, 8)
        for m in ("direct", "hybrid")
        for r in range(32)
    ]


def test_a_sweep_plans_every_combination() -> None:
    assert len(sweep()) > 10_000


@given(requests())
def test_plans_are_pure(request: EpRequest) -> None:
    assume(request.num_nodes > 1)
    assert plan_ep(request) == plan_ep(request)
