"""Bytes of DeepEP's EP buffer in symmetric memory, per rank."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct

from epctl.model.refusal import RefusalError, positive
from epctl.model.storage import (
    ALLOCATION_BYTES,
    RDMA_ALIGN_BYTES,
    SF_PACK_BYTES,
    TMA_ALIGN_BYTES,
    aligned,
    plan_workspace,
)
from epctl.model.traffic import Domain, domain_of

MAX_CHANNELS = 8 * 160
"""Channels of two-level kernels, each of which may leave a slot unused. Source: csrc/buffers/ep.hpp."""
TOPK_UNKNOWN = 32
"""Stands for a top-k that is not given. Source: csrc/buffers/ep.hpp, calculate_buffer_size."""
INT32_MAX = 2**31 - 1


class EpBufferRequest(Struct, frozen=True, kw_only=True):
    """What the buffer is for."""

    num_nodes: int
    gpus_per_node: int
    mode: str
    """direct or hybrid."""
    num_max_tokens_per_rank: int
    hidden: int
    num_topk: int
    """0: not known, taken as 32."""
    fp8_dispatch: bool = False
    multiple_reduction: bool = True
    """Whether combine may sum (and round) on the way; if not, every expert's row travels."""


class EpBufferPlan(Struct, frozen=True, kw_only=True):
    """Slots by use and bytes per rank; dispatch and combine share one buffer, the larger counts."""

    status: Literal["ok"] = "ok"
    dispatch_token_bytes: int
    combine_token_bytes: int
    dispatch_slots: dict[str, int]
    combine_slots: dict[str, int]
    dispatch_bytes: int
    combine_bytes: int
    larger: Literal["dispatch", "combine"]
    buffer_bytes: int
    workspace_bytes: int
    """What a rank allocates beside the buffer."""
    total_bytes: int
    kernel_limits_broken: tuple[str, ...]


@lru_cache(maxsize=4096)
def token_bytes(
    hidden: int, elem_size: int, num_sf_packs: int, num_topk: int, *, metadata: bool, mbarrier: bool = False
) -> int:
    """Bytes of one token's row: values, scales, 4-byte indices and weights of its top-k, with `metadata` also where it came from and
    its list links; with `mbarrier` the barrier that a row in shared memory has. Source: deepinfer-ep 2.5.0, layout/ep/token.cuh."""
    tail = num_topk * 8 + (4 * (1 + num_topk) if metadata else 0)
    parts = (hidden * elem_size, num_sf_packs * SF_PACK_BYTES, tail)
    row = aligned(sum(aligned(part, TMA_ALIGN_BYTES) for part in parts), RDMA_ALIGN_BYTES)
    return row + (TMA_ALIGN_BYTES if mbarrier else 0)


def plan_ep_buffer(request: EpBufferRequest) -> EpBufferPlan:
    """Bytes of DeepEP 2.5.0's EP buffer per rank.

    Raises RefusalError unknown_mode, no_ranks, non_positive_argument, scales_larger_than_payload, hidden_not_32_byte_multiple.
    Source: deepinfer-ep 2.5.0, csrc/buffers/ep.hpp, calculate_buffer_size and the two functions it calls.
    """
    domain = checked_domain(request)
    sizes = ep_sizes(request, domain, request.num_max_tokens_per_rank)
    workspace = plan_workspace("ep").allocated_bytes
    broken = {
        "topk_over_32": request.num_topk > 32,
        "hidden_not_256_multiple": request.hidden % 256 != 0,
        "slots_over_int32": max(*sizes.dispatch_slots.values(), *sizes.combine_slots.values()) > INT32_MAX,
        "hybrid_scaleout_over_32": domain.two_level and domain.scaleout_ranks > 32,
        "hybrid_scaleup_over_64": domain.two_level and domain.scaleup_ranks > 64,
    }
    return EpBufferPlan(
        dispatch_token_bytes=sizes.dispatch_token,
        combine_token_bytes=sizes.combine_token,
        dispatch_slots=sizes.dispatch_slots,
        combine_slots=sizes.combine_slots,
        dispatch_bytes=sizes.dispatch_bytes,
        combine_bytes=sizes.combine_bytes,
        larger="combine" if sizes.combine_bytes > sizes.dispatch_bytes else "dispatch",
        buffer_bytes=sizes.buffer_bytes,
        workspace_bytes=workspace,
        total_bytes=sizes.buffer_bytes + workspace,
        kernel_limits_broken=tuple(code for code, over in broken.items() if over),
    )


class EpSizes(NamedTuple):
    """Bytes of a row and slots by use."""

    dispatch_token: int
    combine_token: int
    dispatch_slots: dict[str, int]
    combine_slots: dict[str, int]

    @property
    def dispatch_bytes(self) -> int:
        return self.dispatch_token * sum(self.dispatch_slots.values())

    @property
    def combine_bytes(self) -> int:
        return self.combine_token * sum(self.combine_slots.values())

    @property
    def buffer_bytes(self) -> int:
        return aligned(max(self.dispatch_bytes, self.combine_bytes), ALLOCATION_BYTES)


def checked_domain(request: EpBufferRequest) -> Domain:
    """The request's domain. Raises RefusalError as plan_ep_buffer does."""
    domain = domain_of(request.num_nodes, request.gpus_per_node, request.mode)
    positive("the number of tokens per rank", request.num_max_tokens_per_rank)
    positive("hidden", request.hidden)
    positive("top-k plus 1 (0 stands for not known)", request.num_topk + 1)
    if -(-request.hidden // 32) * SF_PACK_BYTES > request.hidden:
        why = "room is kept for one 4-byte scale for 32 values, and that must not exceed the FP8 values"
        raise RefusalError(
            "scales_larger_than_payload", f"hidden is {request.hidden}", why, "give --hidden 256 or more"
        )
    elem_size = 1 if request.fp8_dispatch else 2
    if request.hidden * elem_size % TMA_ALIGN_BYTES:
        what = f"a row of hidden {request.hidden} has {request.hidden * elem_size} bytes"
        todo = f"give --hidden {aligned(request.hidden, 256)}"
        raise RefusalError("hidden_not_32_byte_multiple", what, "bulk copies move multiples of 32 bytes", todo)
    return domain


def ep_sizes(request: EpBufferRequest, domain: Domain, tokens: int) -> EpSizes:
    """Rows and slots for `tokens` tokens per rank of a request that was checked."""
    topk = request.num_topk or TOPK_UNKNOWN
    hidden, fp8 = request.hidden, request.fp8_dispatch
    return EpSizes(
        token_bytes(hidden, 1 if fp8 else 2, -(-hidden // 32) if fp8 else 0, topk, metadata=True),
        token_bytes(hidden, 2, 0, topk, metadata=False),
        _dispatch_slots(domain, tokens),
        _combine_slots(domain, tokens, topk, multiple_reduction=request.multiple_reduction),
    )


def _dispatch_slots(domain: Domain, tokens: int) -> dict[str, int]:
    if domain.two_level:
        return {
            "scaleup_recv": domain.num_ranks * tokens,
            "scaleout_send": tokens,
            "scaleout_recv": domain.scaleout_ranks * (tokens + MAX_CHANNELS),
        }
    return {"send": _send_ranks(domain, 1) * tokens, "recv": domain.num_ranks * tokens}


def _send_ranks(domain: Domain, ranks: int) -> int:
    """Direct kernels need send slots only where not every rank is reached over NVLink."""
    return ranks if domain.num_nodes > 1 else 0


def _combine_slots(domain: Domain, tokens: int, topk: int, *, multiple_reduction: bool) -> dict[str, int]:
    """Summing on the way leaves one row a rank (node); otherwise there is one an expert."""

    def rows(ranks: int) -> int:
        return min(ranks, topk) if multiple_reduction else topk

    per_slot = 1 if multiple_reduction else topk
    if domain.two_level:
        return {
            "scaleup_recv": rows(domain.scaleup_ranks) * domain.scaleout_ranks * tokens,
            "scaleout_recv": rows(domain.scaleout_ranks) * tokens,
            "scaleout_send": per_slot * domain.scaleout_ranks * (tokens + MAX_CHANNELS),
        }
    return {"send": _send_ranks(domain, domain.num_ranks) * per_slot * tokens, "recv": rows(domain.num_ranks) * tokens}
