"""SMs for collectives over contiguous buckets: reduce-scatter, all-reduce, all-gather."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from epctl.model.lb import even
from epctl.model.refusal import RefusalError, rate
from epctl.model.rules import RULES, Rules

Reach = Literal["nvlink", "rdma", "hybrid", "any"]


class BucketPlan(Struct, frozen=True, kw_only=True):
    """The plan. `domain`: the links that the ranks span; any: copy engines and NICs do the work, whatever the links."""

    status: Literal["ok"] = "ok"
    num_sms: int
    domain: Reach
    rate_gbs: float | UnsetType = UNSET
    """Output that the links allow, in GB/s per rank."""
    sm_demand: float | UnsetType = UNSET
    over_device: bool = False
    """Whether the rule asks for more SMs than the device has: the release does not cap."""


class _Rule(NamedTuple):
    reads: float
    """Bytes that SMs read per byte of output."""
    writes: float
    margin: float
    min_sms: int


def plan_bucket(
    op: str,
    rdma_ranks: int,
    nvlink_ranks: int,
    nvlink_gbs: float,
    rdma_gbs: float,
    *,
    device_sms: int = 132,
    rules: Rules = RULES["deepep-2.5"],
) -> BucketPlan:
    """SMs for `op` over rdma_ranks nodes of nvlink_ranks GPUs; rates in GB/s, one way, per GPU.

    Raises RefusalError unknown_op, no_ranks, single_rank_collective, nvlink_bandwidth_missing, rdma_bandwidth_missing.
    Source: deepinfer-ep 2.5.0, deep_ep/buffers/bucket.py, get_theoretical_num_sms: NVLink reduces in the switch (multimem), so one
    GPU's share of the NVLink rate is its output; a ring over n nodes moves (n - 1) / n of the bucket, an all-reduce twice.
    """
    if op not in ("reduce_scatter", "all_reduce", "all_gather"):
        why = "there are reduce_scatter, all_reduce and all_gather"
        raise RefusalError("unknown_op", f"no bucket operation is called {op!r}", why, "give --op all_reduce")
    if rdma_ranks < 1 or nvlink_ranks < 1:
        what = f"{rdma_ranks} nodes of {nvlink_ranks} GPUs make no rank"
        raise RefusalError(
            "no_ranks", what, "a group has at least one rank", "give --nodes 1 --gpus-per-node 8, or more"
        )
    if op == "all_gather":
        return BucketPlan(num_sms=0, domain="any")
    if rdma_ranks == nvlink_ranks == 1:
        why = "with one rank there is nothing to reduce"
        raise RefusalError("single_rank_collective", f"{op} over one rank", why, "give --gpus-per-node 2 or more")
    domain: Reach = "nvlink" if rdma_ranks == 1 else "rdma" if nvlink_ranks == 1 else "hybrid"
    if domain != "rdma":
        rate("the NVLink rate", nvlink_gbs, "nvlink_bandwidth_missing", example="405")
    if domain != "nvlink":
        rate("the RDMA rate", rdma_gbs, "rdma_bandwidth_missing", example="50")
    output_gbs = _output_gbs(op, domain, rdma_ranks, nvlink_gbs / nvlink_ranks, rdma_gbs)
    rule = _rule(op, domain, rdma_ranks)
    demand = (
        max(rule.reads * output_gbs / rules.sm_read_gbs, rule.writes * output_gbs / rules.sm_write_gbs) * rule.margin
    )
    num_sms = even(max(rule.min_sms, math.ceil(demand)))
    return BucketPlan(
        num_sms=num_sms, domain=domain, rate_gbs=output_gbs, sm_demand=demand, over_device=num_sms > device_sms
    )


def _output_gbs(op: str, domain: Reach, rdma_ranks: int, nvlink_share_gbs: float, rdma_gbs: float) -> float:
    """Output per rank in GB/s that the slower of the two links allows."""
    if domain == "nvlink":
        return nvlink_share_gbs
    if domain == "rdma" and op == "all_reduce":
        return rdma_gbs / 2
    rounds = 2 if op == "all_reduce" else 1
    over_rdma = rdma_gbs * rdma_ranks / (rounds * (rdma_ranks - 1))
    return over_rdma if domain == "rdma" else min(nvlink_share_gbs, over_rdma)


def _rule(op: str, domain: Reach, rdma_ranks: int) -> _Rule:
    """Passes over memory: one for each of the multimem, local reduction and broadcast steps of an operation."""
    if op == "reduce_scatter":
        if domain == "hybrid":
            return _Rule(2, 2, 1.2, 8)
        return _Rule(1, 1 / rdma_ranks, 1, 6)
    return _Rule(3, 3, 1, 6) if domain == "hybrid" else _Rule(1, 1, 1, 4 if domain == "nvlink" else 6)
