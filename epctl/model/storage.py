"""Alignments, and the bytes per rank of storage and workspaces that do not depend on a routing: pipeline, buckets, counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from epctl.model.refusal import RefusalError, positive

TMA_ALIGN_BYTES, RDMA_ALIGN_BYTES = 32, 64
ALLOCATION_BYTES = 2 * 1024 * 1024
"""Alignments of a bulk copy, of an RDMA message, of an allocation. Source: deepinfer-ep 2.5.0, common/compiled.cuh."""
SF_PACK_BYTES = 4
"""Scales travel in packs: one float32 or four UE8M0. Source: the same."""

_RANKS, _EXPERTS, _CHANNELS, _CONTEXTS = 1024, 2048, 1280, 8
_LAYERS, _PEER_CONTEXTS = 128, 2048

WORKSPACE_PARTS: dict[str, tuple[int, dict[str, int]]] = {
    "ep": (
        0,
        {
            "barrier": 64,
            "reduced counts": 8 * (_RANKS + _EXPERTS),
            "scale-up counts, sent and received": 2 * 8 * (_RANKS + _EXPERTS),
            "slots given out by sender": 4 * _RANKS,
            "scale-out counts, sent and received": 2 * 4 * (_RANKS + _EXPERTS),
            "tails of channels over RDMA": 8 * _CHANNELS * _RANKS,
            "tails of channels over NVLink": 4 * _CHANNELS * _RANKS,
            "chunk counter of load balancing": 4,
        },
    ),
    "engram": (0, {"barrier": 64, "requests issued": 4 * _LAYERS * _PEER_CONTEXTS}),
    "pp": (
        0,
        {"barrier": 64, "sent and received": 2 * 2 * 8, "arrivals by direction and QP": 4 * 8, "releases": 2 * 8},
    ),
    "bucket": (
        256 * 1024 * 1024,
        {
            "barrier": 64 * _CONTEXTS,
            "copy-engine bases": 8 * _RANKS * _CONTEXTS,
            "all-gather tails": 8 * 8 * 8192 * _CONTEXTS,
            "reduce-scatter heads and tails": 2 * 8 * 8192 * _CONTEXTS,
            "all-reduce counters": 8 * 16384 * _CONTEXTS,
        },
    ),
}
"""By buffer: bytes of chunk storage, and of each group of counters. Source: deepinfer-ep 2.5.0, layout/{common,ep,engram,pp,bucket}."""


class WorkspacePlan(Struct, frozen=True, kw_only=True):
    """Bytes of a buffer's workspace, and what is allocated for it."""

    status: Literal["ok"] = "ok"
    bytes: int
    allocated_bytes: int


class StoragePlan(Struct, frozen=True, kw_only=True):
    """Bytes of storage per rank."""

    status: Literal["ok"] = "ok"
    storage_bytes: int


def aligned(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


def plan_workspace(buffer: str) -> WorkspacePlan:
    """Bytes of the workspace of an ep, engram, pp or bucket buffer of DeepEP 2.5.0. Raises RefusalError unknown_buffer."""
    if buffer not in WORKSPACE_PARTS:
        known = ", ".join(WORKSPACE_PARTS)
        raise RefusalError("unknown_buffer", f"no buffer is called {buffer!r}", f"there are {known}", "give ep")
    chunks, counters = WORKSPACE_PARTS[buffer]
    size = chunks + aligned(sum(counters.values()), RDMA_ALIGN_BYTES)
    return WorkspacePlan(bytes=size, allocated_bytes=aligned(size, ALLOCATION_BYTES))


def plan_pp_storage(max_tensor_bytes: int, inflight: int) -> StoragePlan:
    """Bytes for pipeline send and receive: two directions of both, each for `inflight` tensors.

    Raises RefusalError non_positive_argument. Source: deepinfer-ep 2.5.0, csrc/buffers/pp.hpp.
    """
    positive("the largest tensor's size", max_tensor_bytes)
    positive("the number of tensors in flight", inflight)
    slot = aligned(max_tensor_bytes, RDMA_ALIGN_BYTES)
    return StoragePlan(storage_bytes=aligned(4 * slot * inflight, ALLOCATION_BYTES))


def plan_bucket_storage(tensor_bytes: Sequence[int]) -> StoragePlan:
    """Bytes for a bucket plan of tensors of these sizes, each at a 2 MiB boundary.

    Raises RefusalError non_positive_argument. Source: deepinfer-ep 2.5.0, deep_ep/buffers/allocator.py.
    """
    positive("the number of tensors", len(tensor_bytes))
    return StoragePlan(
        storage_bytes=sum(aligned(positive("a tensor's size", size), ALLOCATION_BYTES) for size in tensor_bytes)
    )
