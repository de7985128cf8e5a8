"""What the plan would be with one thing changed."""

from __future__ import annotations

import msgspec

from epctl.model.inputs import Number
from epctl.model.plan.chosen import Chosen, chosen, times_of
from epctl.model.plan.settle import Settled, replaced
from epctl.model.plan.types import Sensitivity
from epctl.model.refusal import RefusalError
from epctl.model.timing_types import StageTime

MORE_SMS = 4


def sensitivities(found: Settled, best: Chosen) -> tuple[Sensitivity, ...]:
    """4 SMs more, half the RDMA rate, one node more."""
    return _more_sms(found, best), _half_rdma(found, best), _more_nodes(found, best)


def _total(times: tuple[StageTime, ...]) -> float:
    """On the busiest rank, which the group waits for."""
    return sum(time.us_slow_rank for time in times)


def _told(change: str, best: Chosen, other: Chosen, note: str) -> Sensitivity:
    return Sensitivity(
        change=change,
        num_sms=other.plan.num_sms,
        mode=other.request.mode,
        dispatch_us=other.times[0].us_slow_rank,
        combine_us=other.times[1].us_slow_rank,
        ratio=_total(other.times) / _total(best.times),
        note=note,
    )


def _more_sms(found: Settled, best: Chosen) -> Sensitivity:
    change, device = f"+{MORE_SMS} SMs", best.request.device_sms
    if best.plan.num_sms + MORE_SMS > device:
        return Sensitivity(change=change, note=f"the device has {device}, the plan takes {best.plan.num_sms}")
    plan = msgspec.structs.replace(best.plan, num_sms=best.plan.num_sms + MORE_SMS)
    return _told(change, best, best._replace(plan=plan, times=times_of(found, plan, best.work)), "")


def _half_rdma(found: Settled, best: Chosen) -> Sensitivity:
    rdma = found.node.rdma_gbs
    change = "half the RDMA rate"
    if not rdma.value:
        return Sensitivity(change=change, note="there is no RDMA")
    if found.nodes == 1:
        return Sensitivity(change=change, note="one node: no byte crosses RDMA")
    half = msgspec.structs.replace(found.node, rdma_gbs=Number(rdma.value / 2, f"half of {rdma.value:g}"))
    try:
        return _told(change, best, chosen(replaced(found, node=half), explain=False), f"{rdma.value / 2:g} GB/s")
    except RefusalError as error:
        return Sensitivity(change=change, note=f"{error.what}; {error.todo}")


def _more_nodes(found: Settled, best: Chosen) -> Sensitivity:
    nodes = found.nodes + 1
    ranks = nodes * found.gpus_per_node
    experts = -(-found.experts // ranks) * ranks
    change, note = "one more node", f"{nodes} x {found.gpus_per_node} GPUs"
    if experts != found.experts:
        note += f", {experts - found.experts} redundant experts to divide by {ranks}"
    try:
        return _told(change, best, chosen(replaced(found, nodes=nodes, experts=experts), explain=False), note)
    except RefusalError as error:
        return Sensitivity(change=change, note=f"{error.what}; {error.todo}")
