"""How many warps and channels fit a kernel's shared memory."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.model.buffers import token_bytes
from epctl.model.refusal import positive
from epctl.model.storage import aligned

NOTIFY_WARPS, MAX_WARPS, MAX_CHANNELS_PER_SM, NO_OVERLAP_CHANNELS_PER_SM = 4, 32, 8, 4
"""Source: deepinfer-ep 2.5.0, csrc/kernels/ep/dispatch.hpp and csrc/buffers/ep.hpp."""
SMEM_BYTES_SM90 = 232_448
"""227 KiB: shared memory that one block can opt in to on compute capability 9.0 and 10.x. Source: CUDA C++ Programming Guide."""


class ChannelPlan(Struct, frozen=True, kw_only=True):
    """Channels of two-level dispatch and combine: each is a sending and a forwarding warp."""

    status: Literal["ok"] = "ok"
    channels_per_sm: int
    num_channels: int
    rows_in_smem: int
    """Token rows that fit shared memory in both kernels, at most one a warp."""
    kernel_limits_broken: tuple[str, ...]


class WarpPlan(Struct, frozen=True, kw_only=True):
    """Warps of direct dispatch."""

    status: Literal["ok"] = "ok"
    dispatch_warps: int
    num_threads: int
    kernel_limits_broken: tuple[str, ...]


def plan_hybrid_channels(
    num_ranks: int,
    num_experts: int,
    hidden: int,
    elem_size: int,
    num_sf_packs: int,
    num_topk: int,
    num_sms: int,
    *,
    prefer_overlap: bool = True,
    smem_bytes: int = SMEM_BYTES_SM90,
) -> ChannelPlan:
    """Channels per SM and in all. elem_size: bytes of a dispatched value; num_sf_packs: 4-byte packs of scales a token.

    Raises RefusalError non_positive_argument. Source: deepinfer-ep 2.5.0, csrc/buffers/ep.hpp, dispatch.
    """
    _check(num_ranks, num_experts, hidden, elem_size, num_sf_packs, num_topk, smem_bytes)
    positive("the number of SMs", num_sms)
    rows = _dispatch_rows(num_ranks, num_experts, hidden, elem_size, num_sf_packs, num_topk, smem_bytes)
    rows = min(rows, smem_bytes // token_bytes(hidden, 2, 0, num_topk, metadata=False, mbarrier=True))
    most = MAX_CHANNELS_PER_SM if prefer_overlap else NO_OVERLAP_CHANNELS_PER_SM
    per_sm = min(rows // 2, most)
    broken = {"no_channel_fits": per_sm == 0, "hybrid_sms_over_160": num_sms > 160}
    return ChannelPlan(
        channels_per_sm=per_sm,
        num_channels=num_sms * per_sm,
        rows_in_smem=rows,
        kernel_limits_broken=tuple(code for code, over in broken.items() if over),
    )


def plan_direct_warps(
    num_ranks: int,
    num_experts: int,
    hidden: int,
    elem_size: int,
    num_sf_packs: int,
    num_topk: int,
    *,
    smem_bytes: int = SMEM_BYTES_SM90,
) -> WarpPlan:
    """Warps and threads of a block of direct dispatch; arguments as plan_hybrid_channels.

    Raises RefusalError non_positive_argument. Source: deepinfer-ep 2.5.0, csrc/kernels/ep/dispatch.hpp.
    """
    _check(num_ranks, num_experts, hidden, elem_size, num_sf_packs, num_topk, smem_bytes)
    warps = _dispatch_rows(num_ranks, num_experts, hidden, elem_size, num_sf_packs, num_topk, smem_bytes)
    threads = (NOTIFY_WARPS + warps) * 32
    broken = ("direct_threads_below_ranks",) if num_ranks > threads or warps == 0 else ()
    return WarpPlan(dispatch_warps=warps, num_threads=threads, kernel_limits_broken=broken)


def _check(
    num_ranks: int, num_experts: int, hidden: int, elem_size: int, num_sf_packs: int, num_topk: int, smem_bytes: int
) -> None:
    for name, value in (
        ("the number of ranks", num_ranks),
        ("the number of experts", num_experts),
        ("hidden", hidden),
        ("the element size", elem_size),
        ("the number of scale packs plus 1", num_sf_packs + 1),
        ("top-k", num_topk),
        ("the shared memory of a block", smem_bytes),
    ):
        positive(name, value)


def _dispatch_rows(
    num_ranks: int, num_experts: int, hidden: int, elem_size: int, num_sf_packs: int, num_topk: int, smem_bytes: int
) -> int:
    """Token rows beside the counters of the notify warps, at most one for each of the other warps."""
    counters = aligned(num_ranks + num_experts, NOTIFY_WARPS * 32) * 4
    row = token_bytes(hidden, elem_size, num_sf_packs, num_topk, metadata=True, mbarrier=True)
    return max(0, min((smem_bytes - counters) // row, MAX_WARPS - NOTIFY_WARPS))
