"""Dispatch and combine in full: the plan, and all that is shown beside it."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from epctl.model.advice import advise
from epctl.model.budget import allocated_contexts, budgets, nearest_plan
from epctl.model.buffers import plan_ep_buffer
from epctl.model.deepinfer import DecodeRate, DecodeRequest, decode_rate
from epctl.model.ep_types import EpPlan
from epctl.model.fit import largest_tokens, plan_write_once
from epctl.model.limits import OF_HARDWARE
from epctl.model.plan.chosen import Chosen, channels_and_warps, chosen, load_of
from epctl.model.plan.gates import report as gate_report
from epctl.model.plan.sensitivity import sensitivities
from epctl.model.plan.settle import Settled, value
from epctl.model.plan.types import EpFamily, Nearest, Qps, ReferenceRow
from epctl.model.reference import matching, predicted
from epctl.model.refusal import RefusalError
from epctl.model.storage import plan_workspace


def plan_dispatch_combine(found: Settled) -> EpFamily:
    """Raises RefusalError as `chosen` does."""
    best = chosen(found)
    plan, request = best.plan, best.request
    entries = budgets(best.judged, found.node, request, best.buffer_bytes, found.request.contexts, load_of(found))
    broken = tuple(entry.name for entry in entries if not entry.fits)
    channels, warps = channels_and_warps(found, plan)
    return EpFamily(
        **{name: getattr(plan, name) for name in plan.__struct_fields__},
        mode=request.mode,
        qps=qps_of(found, plan),
        times={time.stage: time for time in best.times},
        floor=found.rules.layout == "write_once",
        buffer=plan_ep_buffer(best.buffer),
        buffer_write_once=plan_write_once(best.buffer),
        workspace=plan_workspace("ep"),
        buffer_bytes=best.buffer_bytes,
        largest_tokens=_largest(found, best),
        channels=UNSET if channels is None else channels,
        warps=UNSET if warps is None else warps,
        gate=gate_report(found),
        budgets=entries,
        fits=not broken,
        budgets_broken=broken,
        nearest=_nearest(found, best) if broken else UNSET,
        sensitivities=sensitivities(found, best),
        advice=advise(request, best.work, found.node, found.rules, overlap=found.overlap),
        reference=_reference(found, best),
        layout=UNSET if found.layout is None else found.layout,
        decode_rate=_decode_rate(found),
    )


def qps_of(found: Settled, plan: EpPlan) -> Qps:
    """Queue pairs per peer on this node's adapter."""
    used = plan.num_qps.fast_atomics if found.node.fast_atomics.value else plan.num_qps.slow_atomics
    given = found.request.contexts
    allocated = allocated_contexts(plan, found.node) if given is None else given
    return Qps(allocated, min(used, allocated))


def _largest(found: Settled, best: Chosen) -> int:
    free = int(found.node.memory_bytes.value) - load_of(found).reserved_bytes
    try:
        return largest_tokens(free, best.buffer, layout=found.rules.layout)
    except RefusalError:
        return 0


def _nearest(found: Settled, best: Chosen) -> Nearest | UnsetType:
    if any(code in OF_HARDWARE for code in best.plan.kernel_limits_broken):
        return UNSET
    near = nearest_plan(best.request, found.node, found.rules, best.buffer, found.request.contexts, load_of(found))
    if near is None or not near[1].changes:
        return UNSET
    plan, moved = near
    return Nearest(
        text=moved.text,
        constraints=moved.constraints,
        changes=moved.changes,
        num_nodes=moved.request.num_nodes,
        mode=moved.request.mode,
        prefer_overlap=moved.request.prefer_overlap,
        num_max_tokens_per_rank=moved.buffer.num_max_tokens_per_rank,
        num_contexts=moved.num_contexts,
        num_sms=plan.num_sms,
    )


def _reference(found: Settled, best: Chosen) -> tuple[ReferenceRow, ...]:
    rows = []
    for row in matching(best.plan, best.work, found.node):
        mine = predicted(row, best.times)
        ratio = mine / row.value if mine is not None and row.value else None
        fields = {name: getattr(row, name) for name in row.__struct_fields__}
        rows.append(ReferenceRow(**fields, predicted=mine, ratio=ratio))
    return tuple(rows)


def _decode_rate(found: Settled) -> DecodeRate | UnsetType:
    request = found.request
    if request.steps_per_second is None:
        return UNSET
    return decode_rate(
        DecodeRequest(
            steps_per_second=request.steps_per_second,
            requests=value(request, "requests"),
            draft_length=value(request, "draft_length"),
            cp=value(request, "cp"),
            acceptance=request.acceptance,
        )
    )
