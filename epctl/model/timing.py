"""How long dispatch and combine take, and at what bandwidth: bytes over rate for whatever is slowest, plus latencies that add up.

    us = max(NVLink, RDMA, SM reads, SM writes, HBM) + launches + flag hops + fixed cost + second kernel (staged layout)

Bytes come from the plan's traffic (`traffic`), rates from the node, shares and fixed costs from `timing_bands`. Times in us (1e-6 s), rates
in GB/s (1e9 bytes/s), so bytes / rate / 1000 are us.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from epctl.model.ep_types import EpPlan
from epctl.model.inputs import Node
from epctl.model.refusal import RefusalError, rate
from epctl.model.rules import Rules, rules_named
from epctl.model.timing_bands import BEST_WRITE, KERNEL_US, NVLINK_SHARE, RDMA_SHARE, rdma_bytes, write_share
from epctl.model.timing_latency import latency_terms
from epctl.model.timing_rows import check_workload, copy_bytes, row_bytes
from epctl.model.timing_types import Band, Stage, StageTime, Term, Workload
from epctl.model.traffic import Domain, Traffic, stages

_LATENCIES = frozenset(("launch", "hops", "kernel"))


class _Part(NamedTuple):
    """Something that moves bytes at a limit, of which kernels reach a share; times by the best, expected and worst share."""

    name: str
    bytes: float
    rate_gbs: float
    """Expected."""
    us_low: float
    us: float
    us_high: float
    formula: str


def _part(name: str, moved: float, limit_gbs: float, share: Band, formula: str) -> _Part:
    expected = limit_gbs * share.expected
    low, high = moved / (limit_gbs * share.high) / 1e3, moved / (limit_gbs * share.low) / 1e3
    return _Part(name, moved, expected, low, moved / expected / 1e3, high, formula)


def _whole(name: str, moved: float, rate_gbs: float, formula: str) -> _Part:
    """At a rate that is taken as it is."""
    us = moved / rate_gbs / 1e3
    return _Part(name, moved, rate_gbs, us, us, us, formula)


_US = attrgetter("us")


class _Call(NamedTuple):
    """What both stages share."""

    work: Workload
    node: Node
    rules: Rules
    domain: Domain
    num_sms: int
    copies: float
    """Delivered per rank and call."""
    node_copies: float
    traffic: dict[str, Traffic]
    explain: bool


def stage_times(
    plan: EpPlan,
    work: Workload,
    node: Node,
    *,
    rules: Rules | None = None,
    overlap: bool = True,
    explain: bool = True,
) -> tuple[StageTime, StageTime]:
    """Dispatch and combine of one call on every rank, as the rules' kernels do it.

    rules: those of the plan's name where not given (give calibrated ones here). overlap: whether other kernels use HBM meanwhile, which
    only widens the range. explain: with the terms (a sweep goes without).
    Raises RefusalError unknown_dtype, unknown_sends, non_positive_argument, absurd_argument, topk_mismatch, slow_rank_out_of_range,
    low_latency_not_direct, nvlink_bandwidth_missing, rdma_bandwidth_missing, hbm_bandwidth_missing, latency_out_of_range.
    """
    check_workload(plan, work)
    call = _call(plan, work, node, rules or rules_named(plan.rules), explain=explain)
    return _stage(call, "dispatch", overlap=overlap), _stage(call, "combine", overlap=overlap)


def _call(plan: EpPlan, work: Workload, node: Node, rules: Rules, *, explain: bool) -> _Call:
    size = plan.physical_domain
    domain = Domain(size.rdma_ranks, size.nvlink_ranks, plan.logical_domain.scaleout_ranks > 1)
    rate("the HBM copy rate", node.hbm_gbs.value, "hbm_bandwidth_missing", example="1800")
    for name in ("launch_us", "nvlink_hop_us", "rdma_hop_us"):
        _latency(name, getattr(node, name).value)
    per_token, traffic = plan.expected_distinct_ranks, plan.stages
    if work.sends == "selection":
        per_token = float(work.topk)
        traffic = stages(domain, per_token, plan.expected_distinct_nodes, rules.layout)
    elif (rules.layout == "staged") != ("dispatch_epilogue" in traffic):
        traffic = stages(domain, per_token, plan.expected_distinct_nodes, rules.layout)
    copies = work.tokens * per_token
    node_copies = work.tokens * plan.expected_distinct_nodes
    return _Call(work, node, rules, domain, plan.num_sms, copies, node_copies, traffic, explain)


def _latency(name: str, value: float) -> None:
    if not 0 <= value <= 1e6:
        what, why = f"{name} is {value}", "a latency is in us, not negative and below a second"
        raise RefusalError("latency_out_of_range", what, why, f"give {name} 1.0")


def _stage(call: _Call, stage: Stage, *, overlap: bool) -> StageTime:
    row = row_bytes(call.work, stage, call.rules.layout)
    parts = _parts(call, stage, row)
    latencies = _latency_terms(call, stage)
    copy = _second_kernel(call, stage, row)
    slowest = max(parts, key=_US, default=None)
    hottest = max(parts, key=lambda part: part.us * _load(call, stage, part), default=None)
    busiest = hottest.us * _load(call, stage, hottest) if hottest else 0.0
    main = slowest.us if slowest else 0.0
    latency, copy_us = sum(term.us for term in latencies), copy.us if copy else 0.0
    us = main + latency + copy_us
    # The main kernel's own time has no share in the second kernel: its launch is the staged layout's second one.
    main_us = us - copy_us - (call.node.launch_us.value if copy else 0.0)
    binding = _binding(slowest, main, latency, copy_us)
    wire = max((part for part in parts if part.name in ("nvlink", "rdma")), key=_US, default=None)
    logical = call.copies * copy_bytes(call.work, stage)
    return StageTime(
        stage=stage,
        terms=_terms(parts, slowest, latencies, copy, binding) if call.explain else (),
        us=us,
        us_low=_low(call, parts, latencies, copy_us),
        us_high=_high(call, stage, parts, latencies, copy_us, overlap=overlap),
        us_slow_rank=busiest + latency + copy_us * call.work.slow_rank,
        binding_slow_rank=_binding(hottest, busiest, latency, copy_us * call.work.slow_rank),
        binding=binding,
        logical_gbs=_gbs(logical, us),
        wire_gbs=_gbs(wire.bytes if wire else 0.0, us),
        wire_link="none" if wire is None else "rdma" if wire.name == "rdma" else "nvlink",
        main_us=main_us,
        main_logical_gbs=_gbs(logical, main_us),
        main_scaleout_gbs=_gbs(_scaleout(call, stage), main_us),
        copies=call.copies,
        row_bytes=row,
    )


def _load(call: _Call, stage: Stage, part: _Part) -> float:
    """Of the busiest rank, over the mean.

    Two-level kernels: a node's GPUs share what crosses RDMA, whichever of them it is for, and so do the SMs that forward it. Only what
    the expert's rank itself pushes over NVLink in combine takes SMs there.
    """
    rank, node = call.work.slow_rank, call.work.slow_node
    if not call.domain.two_level or part.name in ("nvlink", "hbm"):
        return rank
    if part.name == "rdma" or stage == "dispatch":
        return node
    traffic = call.traffic[stage]
    pushed = min(1.0, traffic.nvlink / (traffic.sm_read if part.name == "sm_read" else traffic.sm_write))
    return node + (rank - node) * pushed


def _gbs(moved: float, us: float) -> float:
    return moved / us / 1e3 if us > 0 else 0.0


def _scaleout(call: _Call, stage: Stage) -> float:
    return call.node_copies * copy_bytes(call.work, stage) if call.domain.two_level else 0.0


def _binding(slowest: _Part | None, main: float, latency: float, copy_us: float) -> str:
    if latency >= max(main, copy_us):
        return "latency"
    return "second_kernel" if copy_us > main or slowest is None else slowest.name


def _parts(call: _Call, stage: Stage, row: int) -> list[_Part]:
    """Links, SMs and HBM of the main kernel: they work at the same time."""
    traffic, node, rules = call.traffic[stage], call.node, call.rules
    explain = call.explain
    size = f"{call.copies:.0f} copies x {row} B" if explain else ""
    parts = []
    if traffic.nvlink:
        told = f"{traffic.nvlink:.4f} x {size}" if explain else ""
        parts.append(_nvlink(call, stage, traffic.nvlink * call.copies * row, told))
    if traffic.rdma:
        line = rate("the RDMA rate", node.rdma_gbs.value, "rdma_bandwidth_missing", example="50")
        moved = rdma_bytes(traffic.rdma * call.copies, row)
        share = f"{RDMA_SHARE.expected}" if call.node.gdaki.value else f"{RDMA_SHARE.expected}, assumed: as InfiniBand"
        told = f"({traffic.rdma:.4f} x {size} + headers) / ({line:g} GB/s line rate x {share})"
        parts.append(_part("rdma", moved, line, RDMA_SHARE, told))
    for name, volume, per_sm in (
        ("sm_read", traffic.sm_read, rules.sm_read_gbs),
        ("sm_write", traffic.sm_write, rules.sm_write_gbs),
    ):
        told = f"{volume:.4f} x {size} / ({call.num_sms} SMs x {per_sm:g} GB/s)" if explain else ""
        parts.append(_whole(name, volume * call.copies * row, call.num_sms * per_sm, told))
    touched = (traffic.sm_read + traffic.sm_write) / 2
    told = f"(reads + writes) / 2 = {touched:.4f} x {size} / {node.hbm_gbs.value:g} GB/s of copy" if explain else ""
    parts.append(_whole("hbm", touched * call.copies * row, node.hbm_gbs.value, told))
    return parts


def _nvlink(call: _Call, stage: Stage, moved: float, size: str) -> _Part:
    """Rows are pushed, except by write-once combine, which pulls and adds."""
    pulls = stage == "combine" and call.rules.layout == "write_once"
    reached = call.node.pull_add_limit_gbs if pulls else call.node.sm_write_limit_gbs
    link = rate("the NVLink rate", call.node.nvlink_gbs.value, "nvlink_bandwidth_missing", example="405")
    limit = min(link, rate("the rate of SMs over NVLink", reached.value, "nvlink_bandwidth_missing", example="356"))
    share = NVLINK_SHARE[call.rules.layout]
    if not pulls:
        by_sms = write_share(call.num_sms)
        share = Band(share.low * by_sms, share.expected * by_sms, share.high * BEST_WRITE, share.source)
    told = ""
    if call.explain:
        what = "pull and add" if pulls else "write"
        told = f"{size} / (min({link:g} GB/s link, {reached.value:g} GB/s that SMs {what}) x {share.expected:.3f})"
    return _part("nvlink", moved, limit, share, told)


def _latency_terms(call: _Call, stage: Stage) -> tuple[Term, Term, Term]:
    node = call.node
    times = (float(node.launch_us.value), float(node.nvlink_hop_us.value), float(node.rdma_hop_us.value))
    return latency_terms(call.domain, stage, call.rules.layout, times)


def _second_kernel(call: _Call, stage: Stage, row: int) -> Term | None:
    traffic = call.traffic.get(f"{stage}_epilogue")
    if traffic is None:
        return None
    copied = (traffic.sm_read + traffic.sm_write) / 2
    moved, hbm = copied * call.copies * row, call.node.hbm_gbs.value
    told = ""
    if call.explain:
        told = f"(reads + writes) / 2 = {copied:.4f} x {call.copies:.0f} copies x {row} B / {hbm:g} GB/s of copy"
    return Term("second_kernel", moved, hbm, moved / hbm / 1e3, told, adds=True)


def _terms(
    parts: list[_Part], slowest: _Part | None, latencies: tuple[Term, Term, Term], copy: Term | None, binding: str
) -> tuple[Term, ...]:
    found = [
        Term(
            part.name,
            part.bytes,
            part.rate_gbs,
            part.us,
            part.formula,
            adds=part is slowest,
            binding=part.name == binding,
        )
        for part in parts
    ]
    for term in (*latencies, *((copy,) if copy else ())):
        bound = term.name == binding or (binding == "latency" and term.name in _LATENCIES)
        found.append(Term(term.name, term.bytes, term.rate_gbs, term.us, term.formula, term.adds, bound))
    return tuple(found)


def _low(call: _Call, parts: list[_Part], latencies: tuple[Term, Term, Term], copy_us: float) -> float:
    main = max((part.us_low for part in parts), default=0.0)
    return main + _fixed(latencies, KERNEL_US[call.rules.layout].low) + copy_us


def _high(
    call: _Call,
    stage: Stage,
    parts: list[_Part],
    latencies: tuple[Term, Term, Term],
    copy_us: float,
    *,
    overlap: bool,
) -> float:
    """Flags take twice as long under load; a second kernel that shares HBM with another gets half of it."""
    times = {part.name: part.us_high * _load(call, stage, part) for part in parts}
    main = max(times.values(), default=0.0)
    if call.domain.two_level:
        main = max(main, times.get("nvlink", 0.0) + times.get("rdma", 0.0))
    _, hops, _ = latencies
    fixed = _fixed(latencies, KERNEL_US[call.rules.layout].high) + hops.us
    return main + copy_us * (2 if overlap else 1) * call.work.slow_rank + fixed


def _fixed(latencies: tuple[Term, Term, Term], kernel_us: float) -> float:
    launch, hops, _ = latencies
    return kernel_us + (launch.us + hops.us)
