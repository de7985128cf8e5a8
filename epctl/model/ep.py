"""SMs and QPs for dispatch and combine, with every value on the way to them."""

from __future__ import annotations

import math
from fractions import Fraction

from epctl.model.ep_types import ByAtomics, Counts, EpInputs, EpPlan, EpRequest, Link, LogicalSizes, Sizes
from epctl.model.gate import check_groups, check_topk, expected_distinct
from epctl.model.limits import broken_limits
from epctl.model.refusal import DIVIDES_BY_ZERO, RefusalError, rate
from epctl.model.rules import RULES, Rules
from epctl.model.traffic import Domain, Number, combine_volumes, dispatch_volumes, domain_of, shown, stages
from epctl.model.waterfall import Steps, ep_terms


def plan_ep(request: EpRequest, rules: Rules = RULES["deepep-2.5"], *, explain: bool = True) -> EpPlan:
    """SMs and QPs for one set-up. explain: with the terms (a sweep goes without).

    Raises RefusalError with code unknown_mode, no_ranks, topk_too_small, topk_exceeds_experts, experts_not_divisible,
    nvlink_bandwidth_missing, rdma_bandwidth_missing, sm_rate_missing, device_too_small, distinct_out_of_range, absurd_argument.
    Source: deepinfer-ep 2.5.0, deep_ep/buffers/ep.py, get_theoretical_num_sms and get_theoretical_num_qps.
    """
    inputs = _checked(request, rules)
    bound = _bound(inputs, rules)
    demands = _demands(inputs, rules, bound)
    demand = max(demands.values(), default=_idle_demand(request, rules))
    padded, uncapped, num_sms = _rounded(inputs, rules, bound, demand)
    domain, allocated = inputs.domain, _allocated(request.mode, rules)
    qps = _qps(request.mode, num_sms, allocated, rules)
    return EpPlan(
        num_ranks=domain.num_ranks,
        experts_per_rank=request.num_experts // domain.num_ranks,
        physical_domain=Sizes(domain.num_nodes, domain.gpus_per_node),
        logical_domain=LogicalSizes(domain.scaleout_ranks, domain.scaleup_ranks),
        expected_distinct_ranks=inputs.ranks,
        expected_distinct_ranks_exact="" if request.distinct_ranks is not None else str(inputs.exact_ranks),
        expected_distinct_nodes=inputs.nodes,
        expected_distinct_nodes_exact="" if request.distinct_nodes is not None else str(inputs.exact_nodes),
        traffic=shown(inputs.traffic),
        bound_link=bound,
        slowest_link=_slowest(inputs),
        sm_demand=demand,
        sm_demand_padded=padded,
        distance_to_integer=abs(padded - round(padded)),
        num_sms_uncapped=uncapped,
        num_sms=num_sms,
        allocated_qps=allocated,
        num_qps=qps,
        kernel_limits_broken=broken_limits(domain, request.num_experts, request.num_topk, num_sms),
        july_2026_release=_july(inputs),
        rules=rules.name,
        stages=stages(domain, inputs.ranks, inputs.nodes, rules.layout),
        terms=ep_terms(inputs, rules, bound, demands, Steps(demand, padded, uncapped, num_sms, qps)) if explain else (),
        sms_left=request.device_sms - num_sms,
    )


def _checked(request: EpRequest, rules: Rules) -> EpInputs:
    domain = domain_of(request.num_nodes, request.gpus_per_node, request.mode)
    check_topk(request.num_experts, request.num_topk)
    check_groups(request.num_experts, domain.num_ranks)
    if request.device_sms < 2:
        what = f"the device has {request.device_sms} SMs"
        raise RefusalError("device_too_small", what, "the kernels take SMs in pairs", "give --sms-on-device 132")
    if request.device_sms > 1 << 16:
        what = f"the device has {request.device_sms} SMs"
        raise RefusalError("absurd_argument", what, "no GPU has more than a few hundred", "give --sms-on-device 132")
    _check_rates(request, domain, rules)
    exact_ranks = _distinct(request.distinct_ranks, domain.num_ranks, request, "ranks")
    exact_nodes = _distinct(request.distinct_nodes, domain.num_nodes, request, "nodes")
    ranks, nodes = float(exact_ranks), float(exact_nodes)
    if nodes > ranks * (1 + 1e-9):
        what = f"a token is to reach {nodes} nodes, but {ranks} ranks"
        why = "it reaches a node by one of its ranks"
        raise RefusalError("distinct_out_of_range", what, why, f"give at most {ranks} nodes")
    traffic = dispatch_volumes(domain, ranks, nodes, 1.0)
    return EpInputs(request, domain, exact_ranks, exact_nodes, ranks, nodes, traffic)


def _check_rates(request: EpRequest, domain: Domain, rules: Rules) -> None:
    """The releases always divide by NVLink's rate between ranks; ours only where NVLink carries something."""
    if domain.num_ranks > 1 and (domain.gpus_per_node > 1 or not rules.rdma_binds_direct):
        crash = DIVIDES_BY_ZERO if domain.two_level else "answers 4 SMs (64 without overlap), no complaint"
        rate("the NVLink rate", request.nvlink_gbs, "nvlink_bandwidth_missing", example="405", deepep_2_5_0=crash)
    if domain.num_nodes > 1:
        crash = DIVIDES_BY_ZERO if domain.two_level else "plans for NVLink without looking at RDMA"
        rate("the RDMA rate", request.rdma_gbs, "rdma_bandwidth_missing", example="50", deepep_2_5_0=crash)
    for name, value in (("read", request.sm_read_gbs), ("write", request.sm_write_gbs)):
        if value is not None:
            rate(f"the {name} rate per SM", value, "sm_rate_missing", example="45")


def _distinct(given: float | None, num_groups: int, request: EpRequest, name: str) -> Fraction:
    """Groups a token reaches: the balanced gate's, or the given value if a token can reach that many."""
    if given is None:
        return expected_distinct(request.num_experts, num_groups, request.num_topk)
    most = min(num_groups, request.num_topk)
    if not 1 - 1e-9 <= given <= most + 1e-9:
        what = f"a token is to reach {given} distinct {name}"
        why = f"with top-{request.num_topk} over {num_groups} {name} it reaches 1 to {most}"
        raise RefusalError("distinct_out_of_range", what, why, f"give a mean from 1 to {most}")
    return Fraction(given)


def _slowest(inputs: EpInputs) -> Link:
    """The link with the longest time; NVLink where both take as long, none where neither carries anything."""
    traffic, request = inputs.traffic, inputs.request
    rdma = traffic.rdma / request.rdma_gbs if traffic.rdma else 0.0
    nvlink = traffic.nvlink / request.nvlink_gbs if traffic.nvlink else 0.0
    return "rdma" if rdma > nvlink else "nvlink" if nvlink else "none"


def _bound(inputs: EpInputs, rules: Rules) -> Link:
    """The link that the rules plan for: the releases look past RDMA in direct mode."""
    if inputs.domain.scaleout_ranks > 1 or rules.rdma_binds_direct:
        return _slowest(inputs)
    return "nvlink" if inputs.traffic.nvlink else "none"


def _idle_demand(request: EpRequest, rules: Rules) -> float:
    return float(request.device_sms) if rules.idle_takes_device else 0.0


def _demands(inputs: EpInputs, rules: Rules, bound: Link) -> dict[str, float]:
    """SMs by stage and direction that keep the bound link busy; empty where none is bound."""
    if bound == "none":
        return {}
    found = _demand_values(inputs, rules, bound, inputs.ranks, inputs.nodes, 1.0)
    return {name: float(value) for name, value in found.items()}


def _demand_values(
    inputs: EpInputs, rules: Rules, bound: Link, ranks: Number, nodes: Number, one: Number
) -> dict[str, float | Fraction]:
    """link rate / link traffic x SM volume / SM rate, in the type of `one`."""
    request, domain, number = inputs.request, inputs.domain, type(one)
    read_gbs = number(rules.sm_read_gbs if request.sm_read_gbs is None else request.sm_read_gbs)
    write_gbs = number(rules.sm_write_gbs if request.sm_write_gbs is None else request.sm_write_gbs)
    dispatch = dispatch_volumes(domain, ranks, nodes, one)
    per_unit = (
        number(request.rdma_gbs) / dispatch.rdma if bound == "rdma" else number(request.nvlink_gbs) / dispatch.nvlink
    )
    found: dict[str, float | Fraction] = {
        "dispatch_read": per_unit * dispatch.sm_read / read_gbs,
        "dispatch_write": per_unit * dispatch.sm_write / write_gbs,
    }
    if rules.combine_modelled:
        combine = combine_volumes(domain, ranks, nodes, one, rules.layout)
        found["combine_read"] = per_unit * combine.sm_read / read_gbs
        found["combine_write"] = per_unit * combine.sm_write / write_gbs
    return found


def _rounded(inputs: EpInputs, rules: Rules, bound: Link, demand: float) -> tuple[float, int, int]:
    """(padded demand, count before and after the device's cap). Near an integer, exact arithmetic decides which side it is."""
    padded = demand * rules.margin
    whole = math.ceil(padded)
    if abs(padded - round(padded)) <= 1e-9 * max(1.0, padded):
        exact = _exact_padded(inputs, rules, bound)
        padded, whole = float(exact), math.ceil(exact)
    uncapped = -(-max(rules.min_sms, whole) // rules.sm_step) * rules.sm_step
    if not inputs.request.prefer_overlap:
        uncapped = max(uncapped, rules.no_overlap_sms)
    device = inputs.request.device_sms
    return padded, uncapped, min(uncapped, device // 2 * 2 if rules.even_device_cap else device)


def _exact_padded(inputs: EpInputs, rules: Rules, bound: Link) -> Fraction:
    if bound == "none":
        return Fraction(_idle_demand(inputs.request, rules)) * rules.exact_margin
    values = _demand_values(inputs, rules, bound, inputs.exact_ranks, inputs.exact_nodes, Fraction(1))
    return max(Fraction(value) for value in values.values()) * rules.exact_margin


def _allocated(mode: str, rules: Rules) -> ByAtomics:
    if mode == "hybrid":
        return ByAtomics(rules.hybrid_qps_fast, rules.hybrid_qps_slow)
    return ByAtomics(rules.direct_qps, rules.direct_qps)


def _qps(mode: str, num_sms: int, allocated: ByAtomics, rules: Rules) -> ByAtomics:
    wanted = num_sms * rules.hybrid_qps_per_sm + 1 if mode == "hybrid" else min(num_sms, rules.direct_qp_cap)
    return ByAtomics(min(wanted, allocated.fast_atomics), min(wanted, allocated.slow_atomics))


def _july(inputs: EpInputs) -> Counts:
    rules = RULES["deepep-2"]
    bound = _bound(inputs, rules)
    demand = max(_demands(inputs, rules, bound).values(), default=_idle_demand(inputs.request, rules))
    num_sms = _rounded(inputs, rules, bound, demand)[2]
    mode = inputs.request.mode
    return Counts(num_sms, _qps(mode, num_sms, _allocated(mode, rules), rules))
