"""Which mode, and why, in sentences: each names the figures that it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpPlan, EpRequest
from epctl.model.inputs import Node
from epctl.model.limits import KERNEL_LIMITS
from epctl.model.rules import RULES, Rules
from epctl.model.timing import stage_times
from epctl.model.timing_types import StageTime, Workload

LATENCY = frozenset(("launch", "hops", "kernel"))
"""Terms that do not shrink with the tokens."""
_LINKS = {"nvlink": "NVLink", "rdma": "RDMA"}

Times = tuple[StageTime, ...]


def advise(
    request: EpRequest, work: Workload, node: Node, rules: Rules = RULES["deepep-2.5"], *, overlap: bool = True
) -> tuple[str, ...]:
    """Direct or hybrid, low latency or throughput, whether NVLink suffices, what binds and which SMs are wasted.

    Both modes are planned and timed by the rules. Raises RefusalError as `plan_ep` and `stage_times` do.
    """
    plan = plan_ep(request, rules)
    times = stage_times(plan, work, node, rules=rules, overlap=overlap)
    return (
        _mode(request, plan, work, node, rules),
        _latency(times, work),
        _binding(times),
        *_sms(plan, times, rules, overlap=overlap),
        *_blind(plan),
    )


def best_mode(request: EpRequest, work: Workload, node: Node, rules: Rules = RULES["deepep-2.5"]) -> str:
    """direct or hybrid: what `--mode auto` takes. The faster one of those that the kernels take; direct within one node."""
    if request.num_nodes == 1:
        return "direct"
    if work.sends == "selection":
        return "direct"
    plans = {mode: plan_ep(msgspec.structs.replace(request, mode=mode), rules) for mode in ("direct", "hybrid")}
    return faster(plans, {mode: stage_times(plan, work, node, rules=rules) for mode, plan in plans.items()})


def faster(plans: Mapping[str, EpPlan], times: Mapping[str, Times]) -> str:
    """The mode whose dispatch and combine take less time together, among those that the kernels take (among all, if they take none)."""
    able = [mode for mode, plan in plans.items() if not plan.kernel_limits_broken] or list(plans)
    return min(able, key=lambda mode: _total(times[mode]))


def _total(times: Times) -> float:
    """On the busiest rank, which the group waits for."""
    return sum(time.us_slow_rank for time in times)


def _mode(request: EpRequest, plan: EpPlan, work: Workload, node: Node, rules: Rules) -> str:
    ranks = plan.num_ranks
    if ranks == 1:
        return "Direct: there is one rank, so no link carries anything."
    if request.num_nodes == 1:
        return (
            f"NVLink alone suffices: all {ranks} ranks share one NVLink domain, so no byte crosses RDMA, and direct and hybrid run "
            "the same kernels."
        )
    if work.sends == "selection":
        return "Direct: low-latency sends go straight to each expert's rank, so there is no level to relay at."
    best = best_mode(request, work, node, rules)
    other = "direct" if best == "hybrid" else "hybrid"
    plans = {mode: plan_ep(msgspec.structs.replace(request, mode=mode), rules) for mode in (best, other)}
    taken = {mode: _total(stage_times(found, work, node, rules=rules)) for mode, found in plans.items()}
    copies = {
        "direct": plan.expected_distinct_ranks * (1 - 1 / request.num_nodes),
        "hybrid": plan.expected_distinct_nodes * (1 - 1 / request.num_nodes),
    }
    broken = plans[other].kernel_limits_broken
    if broken and not plans[best].kernel_limits_broken:
        return f"{best.capitalize()}: {other} kernels cannot run this: {KERNEL_LIMITS[broken[0]][0]}."
    busiest = " (the busiest rank's)" if work.slow_rank > 1 else ""
    text = (
        f"{best.capitalize()}: dispatch and combine take about {taken[best]:.0f} us, against {taken[other]:.0f} us {other}{busiest}; a "
        f"token crosses RDMA {copies[best]:.2f} times, {copies[other]:.2f} times {other}"
    )
    if best == "hybrid":
        return f"{text}, since hybrid sends once a node and fans out over NVLink."
    if copies["direct"] <= copies["hybrid"] * 1.001:
        return f"{text}: relaying saves no RDMA here and costs NVLink hops."
    return f"{text}, but the saved hop and NVLink's share weigh more than the RDMA bytes."


def _latency(times: Times, work: Workload) -> str:
    """Where bytes take longer than what does not shrink with them, throughput decides."""
    fixed = sum(term.us for time in times for term in time.terms if term.name in LATENCY)
    total = sum(time.us for time in times)
    moving = total - fixed
    turn = work.tokens * fixed / moving
    shares = f"of {total:.0f} us for dispatch and combine, {fixed:.0f} us are launches, flag hops and fixed costs"
    if fixed >= moving:
        return (
            f"Low latency: {shares}, so capture the calls in a CUDA graph, without a CPU sync; above about {turn:.0f} tokens a rank "
            "bandwidth decides."
        )
    return f"Bandwidth decides: {shares}; only below about {turn:.0f} tokens a rank would latency decide."


def _binding(times: Times) -> str:
    told = ", ".join(f"{time.stage} {_named(time.binding)}" for time in times)
    rdma = sum(_us(time, "rdma") for time in times)
    nvlink = sum(_us(time, "nvlink") for time in times)
    if {time.binding for time in times} == {"rdma"} and nvlink > 0:
        part = f"NVLink needs {nvlink:.0f} us of the {rdma:.0f} us that RDMA takes"
        return f"RDMA binds both stages: {part}, so a faster NVLink gains nothing."
    if rdma > 0 and nvlink > rdma:
        return f"NVLink binds across nodes ({told}): RDMA needs {rdma:.0f} us of {nvlink:.0f} us."
    return f"What binds: {told}."


def _named(binding: str) -> str:
    names = {
        "latency": "latency (launches, flag hops, fixed costs)",
        "second_kernel": "the second kernel (copies within HBM)",
        "sm_read": "SM reads",
        "sm_write": "SM writes",
        "hbm": "HBM",
        **_LINKS,
    }
    return f"by {names[binding]}"


def _us(time: StageTime, name: str) -> float:
    return sum(term.us for term in time.terms if term.name == name)


def _sms(plan: EpPlan, times: Times, rules: Rules, *, overlap: bool) -> tuple[str, ...]:
    """SMs past those that keep the slowest link fed."""
    needed, link = 0, "nvlink"
    for time in times:
        links = {name: _us(time, name) for name in _LINKS}
        slowest = max(links, key=lambda name: links[name])
        if not links[slowest]:
            return ()
        sms = max(_us(time, "sm_read"), _us(time, "sm_write")) * plan.num_sms / links[slowest]
        if sms > needed:
            needed, link = math.ceil(sms - 1e-9), slowest
    needed = max(rules.min_sms, -(-needed // 2) * 2)
    device, name = plan.num_sms + plan.sms_left, _LINKS[link]
    if needed > plan.num_sms:
        text = f"SMs bind: {plan.num_sms} move less than {name} carries, and {needed} would keep up with it"
        return (f"{text} (the device has {device}).",)
    rates = f"{rules.sm_read_gbs:g} GB/s read and {rules.sm_write_gbs:g} GB/s written an SM"
    doubt = "those rates are the rules' own for every GPU, so measure before you take fewer"
    spare = plan.num_sms - needed
    if not overlap:
        # Nothing runs beside the call: spare SMs are free.
        return ()
    if spare > needed * (rules.margin - 1) + rules.sm_step:
        tail = f"the other {spare} of the planned {plan.num_sms} wait for it and could go to GEMMs"
    else:
        tail = f"more than the planned {plan.num_sms} would wait for it"
    return (f"{needed} SMs would keep {name} fed at {rates}; {tail}; {doubt}.",)


def _blind(plan: EpPlan) -> tuple[str, ...]:
    """Where the release plans for a link that is not the slowest."""
    found = []
    if plan.bound_link != plan.slowest_link and plan.slowest_link != "none":
        planned = _LINKS.get(plan.bound_link, "no link")
        found.append(
            f"The rules {plan.rules} plan for {planned}, but {_LINKS[plan.slowest_link]} takes longer: their SM count is not made for it."
        )
    found.extend(f"These kernels cannot run this plan: {KERNEL_LIMITS[code][0]}." for code in plan.kernel_limits_broken)
    return tuple(found)
