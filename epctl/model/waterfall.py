"""The steps of a plan, one term each: what went in, by which formula, what came out, and which one decided."""

from __future__ import annotations

from typing import NamedTuple

from epctl.model.ep_types import ByAtomics, EpInputs, Link, Term
from epctl.model.rules import Rules

_DEMAND_TEXT = "{link}_gbs / {link} x {stage}.sm_{way} / sm_{way}_gbs"


class Steps(NamedTuple):
    """Values along the way from demand to counts."""

    demand: float
    padded: float
    uncapped: int
    num_sms: int
    qps: ByAtomics


def ep_terms(inputs: EpInputs, rules: Rules, bound: Link, demands: dict[str, float], steps: Steps) -> tuple[Term, ...]:
    """The terms of `plan_ep`, in the order they are computed. Units are on the terms; traffic is in copies (see `traffic`)."""
    return (
        *_gate_terms(inputs),
        *_traffic_terms(inputs),
        *_link_terms(inputs, bound),
        *_demand_terms(inputs, rules, bound, demands),
        *_count_terms(inputs, rules, steps),
    )


def _gate_terms(inputs: EpInputs) -> list[Term]:
    request, domain = inputs.request, inputs.domain
    terms = []
    for name, groups, value, given in (
        ("distinct_ranks", domain.num_ranks, inputs.ranks, request.distinct_ranks),
        ("distinct_nodes", domain.num_nodes, inputs.nodes, request.distinct_nodes),
    ):
        if given is None:
            formula = "g (1 - C(E - E/g, k) / C(E, k))"
            terms.append(Term(name, formula, {"E": request.num_experts, "g": groups, "k": request.num_topk}, value))
        else:
            terms.append(Term(name, "given", {"given": given}, value))
    return terms


_TWO_LEVEL = {
    "sm_read": "1/ranks + nodes/ranks",
    "sm_write": "1/ranks + nodes/(ranks N) + 1",
    "rdma": "nodes/ranks (1 - 1/N)",
    "nvlink": "1 - 1/G",
}
_ONE_NODE = {"sm_read": "1/ranks", "sm_write": "1", "rdma": "0", "nvlink": "1 - 1/G"}
_DIRECT = {"sm_read": "1/ranks", "sm_write": "1/ranks + 1/N", "rdma": "1 - 1/N", "nvlink": "(1 - 1/G) / N"}


def _traffic_terms(inputs: EpInputs) -> list[Term]:
    domain = inputs.domain
    formulas = _TWO_LEVEL if domain.two_level else _DIRECT if domain.num_nodes > 1 else _ONE_NODE
    values: dict[str, float | int | str] = {"ranks": inputs.ranks, "nodes": inputs.nodes, "N": domain.num_nodes}
    values["G"] = domain.gpus_per_node
    return [
        Term(f"dispatch.{name}", formula, values, float(getattr(inputs.traffic, name)), "copies")
        for name, formula in formulas.items()
    ]


def _link_terms(inputs: EpInputs, bound: Link) -> list[Term]:
    """Time that each link takes for one copy; 1 copy / 1 GB/s is a nanosecond a byte."""
    terms = []
    for link, traffic, gbs in (
        ("nvlink", float(inputs.traffic.nvlink), inputs.request.nvlink_gbs),
        ("rdma", float(inputs.traffic.rdma), inputs.request.rdma_gbs),
    ):
        value = traffic / gbs if traffic else 0.0
        found: dict[str, float | int | str] = {link: traffic, f"{link}_gbs": gbs}
        terms.append(Term(f"{link}_time", f"{link} / {link}_gbs", found, value, "ns per byte of a copy", link == bound))
    return terms


def _demand_terms(inputs: EpInputs, rules: Rules, bound: Link, demands: dict[str, float]) -> list[Term]:
    request = inputs.request
    if bound == "none":
        what = (
            "all SMs of the device: the bound link carries nothing"
            if rules.idle_takes_device
            else "none: no link carries anything"
        )
        value = float(request.device_sms) if rules.idle_takes_device else 0.0
        return [Term("idle", what, {"device_sms": request.device_sms}, value, "SMs", True)]
    most = max(demands.values())
    rates = {
        "read": rules.sm_read_gbs if request.sm_read_gbs is None else request.sm_read_gbs,
        "write": rules.sm_write_gbs if request.sm_write_gbs is None else request.sm_write_gbs,
    }
    gbs = request.rdma_gbs if bound == "rdma" else request.nvlink_gbs
    carried = float(inputs.traffic.rdma if bound == "rdma" else inputs.traffic.nvlink)
    terms = []
    for name, value in demands.items():
        stage, way = name.split("_")
        volume = value * rates[way] * carried / gbs
        found: dict[str, float | int | str] = {f"{bound}_gbs": gbs, bound: carried}
        found |= {f"{stage}.sm_{way}": volume, f"sm_{way}_gbs": rates[way]}
        formula = _DEMAND_TEXT.format(link=bound, stage=stage, way=way)
        terms.append(Term(name, formula, found, value, "SMs", value == most))
    return terms


def _count_terms(inputs: EpInputs, rules: Rules, steps: Steps) -> list[Term]:
    request = inputs.request
    floor = 0 if request.prefer_overlap else rules.no_overlap_sms
    rounding: dict[str, float | int | str] = {
        "padded": steps.padded,
        "min_sms": rules.min_sms,
        "step": rules.sm_step,
        "floor": floor,
    }
    cap = "min(uncapped, device rounded down to even)" if rules.even_device_cap else "min(uncapped, device)"
    if request.mode == "hybrid":
        qps = "min(num_sms x per_sm + 1, allocated)"
        counts: dict[str, float | int | str] = {"num_sms": steps.num_sms, "per_sm": rules.hybrid_qps_per_sm}
        counts["allocated"] = rules.hybrid_qps_slow
    else:
        qps = "min(num_sms, cap, allocated)"
        counts = {"num_sms": steps.num_sms, "cap": rules.direct_qp_cap, "allocated": rules.direct_qps}
    return [
        Term("padded", "demand x margin", {"demand": steps.demand, "margin": rules.margin}, steps.padded, "SMs"),
        Term("uncapped", "max(floor, ceil to step of max(min_sms, padded))", rounding, steps.uncapped, "SMs"),
        Term("num_sms", cap, {"uncapped": steps.uncapped, "device": request.device_sms}, steps.num_sms, "SMs"),
        Term("num_qps", qps, counts, steps.qps.slow_atomics, "QPs (slow atomics)"),
    ]
