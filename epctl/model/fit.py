"""Bytes per rank of our own layout, and the other way round: how many tokens fit a memory, in either layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from epctl.model.buffers import TOPK_UNKNOWN, EpBufferRequest, checked_domain, ep_sizes
from epctl.model.refusal import RefusalError
from epctl.model.rules import Layout
from epctl.model.storage import ALLOCATION_BYTES, aligned, plan_workspace
from epctl.model.traffic import Domain

SCALE_HIDDEN = 128
"""Values that share an FP8 scale. Source: deepinfer-ep 2.5.0, deep_ep/utils/math.py, per_token_cast_to_fp8."""
ROW_ALIGN_BYTES = 128
"""Rows of multiples of 128 bytes are written at 350 GB/s, others at 326 (two H200, 64 SMs): arrays start at such a boundary."""


class WriteOncePlan(Struct, frozen=True, kw_only=True):
    """Bytes per rank for kernels that write rows where they end up: the outputs themselves live in symmetric memory."""

    status: Literal["ok"] = "ok"
    capacity_rows: int
    """Rows that a rank can receive at worst: every token of every rank."""
    dispatch_bytes: int
    combine_bytes: int
    buffer_bytes: int
    """Both: a rank computes its experts from one into the other."""


def plan_write_once(request: EpBufferRequest) -> WriteOncePlan:
    """Bytes per rank of our own layout. Raises RefusalError as `buffers.plan_ep_buffer` does.

    Dispatch: for each row that can arrive its values, its scales (one float32 for 128 values, apart from the values so that both stay
    aligned), top-k indices and weights, and where it came from. Combine: the partial rows that peers pull, with their weights. Over
    several nodes also a row to send and one to receive for each token and node. Source: epctl's own kernels; worst case, since the
    outputs are views of this memory.
    """
    return _write_once(request, checked_domain(request), request.num_max_tokens_per_rank)


def _write_once(request: EpBufferRequest, domain: Domain, tokens: int) -> WriteOncePlan:
    topk = request.num_topk or TOPK_UNKNOWN
    rows = domain.num_ranks * tokens
    relay = 2 * domain.num_nodes * tokens if domain.num_nodes > 1 else 0
    scales = -(-request.hidden // SCALE_HIDDEN) * 4 if request.fp8_dispatch else 0
    values = request.hidden * (1 if request.fp8_dispatch else 2)
    arriving = (values, scales, topk * 8, 4 * (topk + 2))
    pulled = rows * (1 if request.multiple_reduction else topk) + relay
    dispatch = sum(aligned((rows + relay) * part, ROW_ALIGN_BYTES) for part in arriving)
    combine = sum(aligned(pulled * part, ROW_ALIGN_BYTES) for part in (request.hidden * 2, topk * 4))
    return WriteOncePlan(
        capacity_rows=rows,
        dispatch_bytes=dispatch,
        combine_bytes=combine,
        buffer_bytes=aligned(dispatch, ALLOCATION_BYTES) + aligned(combine, ALLOCATION_BYTES),
    )


def largest_tokens(memory_bytes: int, request: EpBufferRequest, *, layout: Layout = "staged") -> int:
    """The largest num_max_tokens_per_rank whose buffer and workspace fit `memory_bytes`; the request's own count is not looked at.

    Raises RefusalError memory_too_small where not even one token fits, and as `buffers.plan_ep_buffer` does. Source: bisection over the
    forward formulas, which grow with the tokens.
    """
    domain = checked_domain(request)
    workspace = plan_workspace("ep").allocated_bytes

    def fits(tokens: int) -> bool:
        sizes = _write_once(request, domain, tokens) if layout == "write_once" else ep_sizes(request, domain, tokens)
        return sizes.buffer_bytes + workspace <= memory_bytes

    if not fits(1):
        what = f"{memory_bytes} bytes hold no buffer for even one token per rank"
        why = f"its workspace takes {workspace} bytes, and buffers come in steps of {ALLOCATION_BYTES}"
        raise RefusalError("memory_too_small", what, why, "give more memory, or plan for fewer ranks")
    return _largest(fits)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest count that fits, where 1 does."""
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
