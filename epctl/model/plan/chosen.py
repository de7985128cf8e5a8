"""The heart of both a plan and a sweep's row: mode, counts, times and size of the EP buffer."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from epctl.model.advice import faster
from epctl.model.budget import Load, buffer_bytes_of
from epctl.model.buffers import EpBufferRequest, plan_ep_buffer
from epctl.model.channels import ChannelPlan, WarpPlan, plan_direct_warps, plan_hybrid_channels
from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpPlan, EpRequest
from epctl.model.limits import KERNEL_LIMITS, hardware_limits
from epctl.model.plan.gates import means
from epctl.model.plan.settle import Settled, value
from epctl.model.refusal import RefusalError
from epctl.model.timing import stage_times
from epctl.model.timing_rows import SCALE_HIDDEN
from epctl.model.timing_types import StageTime, Workload

GDAKI_ALONE = ("deepep-2.5",)
"""Rules of kernels that go between nodes by GDAKI and nothing else; DeepEP 2.0 takes any GIN backend."""


class Chosen(NamedTuple):
    """The plan, what it was asked, and what follows from it."""

    request: EpRequest
    plan: EpPlan
    work: Workload
    times: tuple[StageTime, StageTime]
    buffer: EpBufferRequest
    buffer_bytes: int
    limits_broken: tuple[str, ...]
    """Of the kernels: those of the plan, of the buffer, of warps and channels."""

    @property
    def judged(self) -> EpPlan:
        """The plan with all limits that are broken, as budgets look at it."""
        plan = self.plan
        if self.limits_broken == plan.kernel_limits_broken:
            return plan
        return msgspec.structs.replace(plan, kernel_limits_broken=self.limits_broken)


def chosen(found: Settled, *, explain: bool = True) -> Chosen:
    """The plan in the mode asked for, or in the faster one that the kernels take. explain: with the waterfalls' terms.

    Raises RefusalError as `plan_ep`, `stage_times` and `plan_ep_buffer` do, and kernels_cannot where --mode auto finds no mode that the
    kernels take with this number of ranks.
    """
    gate = means(found)
    modes = _modes(found)
    plans: dict[str, tuple[EpRequest, EpPlan]] = {}
    for mode in modes:
        request = ep_request(found, mode, gate.ranks, gate.nodes)
        plans[mode] = request, _plan(found, request, explain=explain)
    work = Workload(
        tokens=found.tokens,
        hidden=found.hidden,
        topk=found.topk,
        dtype=found.dtype,
        slow_rank=gate.slow_rank,
        slow_node=gate.slow_node,
    )
    times = {mode: times_of(found, plan, work, explain=explain) for mode, (_, plan) in plans.items()}
    best = modes[0] if len(modes) == 1 else faster({mode: plan for mode, (_, plan) in plans.items()}, times)
    request, plan = plans[best][0], _on_node(found, plans[best][1])
    if found.mode == "auto":
        _check_kernels(plan)
    buffer = found.buffer(best)
    return Chosen(
        request, plan, work, times[best], buffer, _buffer_bytes(found, buffer), _limits_broken(found, plan, buffer)
    )


def _on_node(found: Settled, plan: EpPlan) -> EpPlan:
    """The plan with the limits that the node breaks, whatever the mode."""
    node = found.node
    broken = hardware_limits(
        found.nodes,
        float(node.compute_capability.value),
        gdaki=bool(node.gdaki.value) or not node.nics_per_gpu.value,
        gdaki_alone=found.rules.name in GDAKI_ALONE,
    )
    if not broken:
        return plan
    return msgspec.structs.replace(plan, kernel_limits_broken=(*broken, *plan.kernel_limits_broken))


def _modes(found: Settled) -> tuple[str, ...]:
    if found.mode != "auto":
        return (found.mode,)
    return ("direct",) if found.nodes == 1 else ("direct", "hybrid")


def ep_request(found: Settled, mode: str, ranks: float | None, nodes: float | None) -> EpRequest:
    """What `plan_ep` is asked."""
    node, request = found.node, found.request
    return EpRequest(
        num_experts=found.experts,
        num_topk=found.topk,
        num_nodes=found.nodes,
        gpus_per_node=found.gpus_per_node,
        mode=mode,
        nvlink_gbs=float(node.nvlink_gbs.value),
        rdma_gbs=float(node.rdma_gbs.value),
        prefer_overlap=found.overlap,
        device_sms=int(node.device_sms.value),
        sm_read_gbs=request.sm_read_gbs,
        sm_write_gbs=request.sm_write_gbs,
        distinct_ranks=ranks,
        distinct_nodes=nodes,
    )


def _plan(found: Settled, request: EpRequest, *, explain: bool) -> EpPlan:
    if explain:
        return plan_ep(request, found.rules)
    key = (request, found.rules.name, found.request.calibration)
    memo = found.files.memo
    if key not in memo:
        memo[key] = plan_ep(request, found.rules, explain=False)
    return memo[key]  # type: ignore[no-any-return]


def times_of(found: Settled, plan: EpPlan, work: Workload, *, explain: bool = False) -> tuple[StageTime, StageTime]:
    """Times of `plan`."""
    return stage_times(plan, work, found.node, rules=found.rules, overlap=found.overlap, explain=explain)


def _buffer_bytes(found: Settled, buffer: EpBufferRequest) -> int:
    key = (buffer, found.rules.layout)
    memo = found.files.memo
    if key not in memo:
        memo[key] = buffer_bytes_of(buffer, found.rules.layout)
    return memo[key]  # type: ignore[no-any-return]


def _limits_broken(found: Settled, plan: EpPlan, buffer: EpBufferRequest) -> tuple[str, ...]:
    """What the rules' kernels cannot take. Those of buffers, warps and channels are DeepEP's, so of the staged layout."""
    if found.rules.layout != "staged":
        return plan.kernel_limits_broken
    key = ("limits", buffer, found.experts, plan.num_sms, found.overlap, found.node.smem_bytes.value)
    memo = found.files.memo
    if key not in memo:
        channels, warps = channels_and_warps(found, plan)
        more = channels if channels is not None else warps
        memo[key] = (*plan_ep_buffer(buffer).kernel_limits_broken, *(more.kernel_limits_broken if more else ()))
    return tuple(dict.fromkeys((*plan.kernel_limits_broken, *memo[key])))


def channels_and_warps(found: Settled, plan: EpPlan) -> tuple[ChannelPlan | None, WarpPlan | None]:
    """Channels of DeepEP's two-level kernels, or warps of its direct ones."""
    fp8 = found.dtype == "fp8"
    row = (found.hidden, 1 if fp8 else 2, -(-found.hidden // SCALE_HIDDEN) if fp8 else 0, found.topk)
    smem = int(found.node.smem_bytes.value)
    if plan.logical_domain.scaleout_ranks == 1:
        return None, plan_direct_warps(plan.num_ranks, found.experts, *row, smem_bytes=smem)
    sms, overlap = plan.num_sms, found.overlap
    return (
        plan_hybrid_channels(plan.num_ranks, found.experts, *row, sms, prefer_overlap=overlap, smem_bytes=smem),
        None,
    )


def load_of(found: Settled) -> Load:
    """What else counts against the budgets."""
    request = found.request
    return Load(
        reserved_bytes=value(request, "reserved_bytes"),
        counters=value(request, "counters"),
        full_mesh=value(request, "full_mesh"),
    )


GROUP_LIMITS = (
    "ranks_over_1024",
    "hybrid_scaleout_over_32",
    "hybrid_scaleup_over_64",
    "hybrid_scaleup_plus_local_experts_over_128",
)
"""Limits of the kernels that are about the number of GPUs."""


def group_refusal(plan: EpPlan) -> RefusalError | None:
    """Why the kernels do not take this number of GPUs; None where they do."""
    broken = [code for code in plan.kernel_limits_broken if code in GROUP_LIMITS]
    if not broken:
        return None
    size = plan.physical_domain
    what = f"{size.rdma_ranks} x {size.nvlink_ranks} GPUs are {plan.num_ranks} ranks"
    if broken[0] == "ranks_over_1024":
        fewer = 1024 // size.nvlink_ranks
        todo = f"give --nodes {fewer}" if fewer else "give --nodes 1 --gpus-per-node 8"
    elif broken[0] == "hybrid_scaleout_over_32":
        todo = "give --nodes 32, or --mode direct"
    else:
        todo = "give --gpus-per-node 8, or --mode direct"
    return RefusalError("kernels_cannot", what, "; ".join(KERNEL_LIMITS[code][0] for code in broken), todo)


def _check_kernels(plan: EpPlan) -> None:
    refusal = group_refusal(plan)
    if refusal is not None:
        raise refusal
