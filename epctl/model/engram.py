"""QPs and memory for Engram: tables of entries spread over ranks and fetched by RDMA reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from epctl.model.refusal import RefusalError, positive
from epctl.model.storage import ALLOCATION_BYTES, RDMA_ALIGN_BYTES, SF_PACK_BYTES, aligned

READ_MRPS_FAST, READ_MRPS_SLOW = 90, 45
"""Million reads a second of a NIC with fast RDMA atomics, and of others. Source: deep_ep/buffers/engram.py."""
READ_ROUND_TRIP_US = 10
DEFAULT_DEPTH, MAX_DEPTH, FLUSH_RESERVE = 1024, 32768, 256
"""QP depths, and the slots that flushing keeps free. Source: common/compiled.cuh and csrc/buffers/engram.hpp."""
MAX_QPS, MAX_PEER_CONTEXTS, MAX_LAYERS = 1024, 2048, 128
"""Source: common/compiled.cuh, layout/engram/workspace.cuh."""
MAX_REQUESTS = 2**31 - 1
"""Requests are counted in 32 bits."""


class EngramPlan(Struct, frozen=True, kw_only=True):
    """QPs for one fetch of all layers."""

    status: Literal["ok"] = "ok"
    num_qps: int
    qp_depth: int
    restrict_rd_atomic: bool
    """Whether reads in flight per QP are to be limited, because the deepest queues do not hold all requests at once."""
    slots_per_qp: int
    """Requests per QP if the NIC's read rate alone set their number."""
    slots_at_num_qps: int
    """Requests per QP with the planned number."""
    usable_depth: int | UnsetType = UNSET
    """Depth without the reserve for flushing; unset where reads are restricted."""
    depth_covers_slots_after_reserve: bool | UnsetType = UNSET
    """False: the sender waits for its own reads before it posts the last ones."""
    fits_1024_qps: bool
    fits_2048_peer_contexts: bool
    kernel_limits_broken: tuple[str, ...]


class EngramStorage(Struct, frozen=True, kw_only=True):
    """Bytes per rank."""

    status: Literal["ok"] = "ok"
    gpu_bytes: int
    """Receive area and this rank's part of the scale table."""
    rdma_storage_bytes: int
    """This rank's shard of the entries, in GPU or host memory."""


def plan_engram(
    num_layers: int,
    num_max_tokens: int,
    num_entries_per_token: int,
    rdma_peers: int,
    *,
    fast_atomics: bool,
    max_reads_per_qp: int = 16,
) -> EngramPlan:
    """QPs that keep the NIC's read rate busy over one round trip, and their depth.

    rdma_peers: ranks reached by RDMA, one a node (the communicator's ranks over NCCL's GIN stride). max_reads_per_qp: reads that one
    QP keeps in flight. Raises RefusalError non_positive_argument, request_count_overflow.
    Source: deepinfer-ep 2.5.0, csrc/buffers/engram.hpp, get_theoretical_config.
    """
    for name, value in (
        ("the number of layers", num_layers),
        ("the number of tokens", num_max_tokens),
        ("the number of entries per token", num_entries_per_token),
        ("the number of RDMA peers", rdma_peers),
        ("the number of reads per QP", max_reads_per_qp),
    ):
        positive(name, value)
    requests = num_layers * num_max_tokens * num_entries_per_token
    if requests > MAX_REQUESTS:
        what = (
            f"{num_layers} layers x {num_max_tokens} tokens x {num_entries_per_token} entries are {requests} requests"
        )
        most = max(1, MAX_REQUESTS // (num_layers * num_entries_per_token))
        raise RefusalError(
            "request_count_overflow",
            what,
            f"they are counted in 32 bits: at most {MAX_REQUESTS}",
            f"give {most} tokens",
        )
    in_flight = (READ_MRPS_FAST if fast_atomics else READ_MRPS_SLOW) * READ_ROUND_TRIP_US
    num_qps = -(-in_flight // (max_reads_per_qp * rdma_peers))
    slots = -(-requests // (num_qps * rdma_peers))
    restrict = slots > MAX_DEPTH
    if restrict:
        # The release multiplies by a binary 1.05 and cuts off; so do we, to land on its side of whole numbers.
        num_qps = math.floor(-(-requests // (MAX_DEPTH * rdma_peers)) * 1.05)
        depth = MAX_DEPTH
    else:
        depth = DEFAULT_DEPTH
        while depth < slots:
            depth *= 2
    broken = {
        "qps_over_1024": num_qps > MAX_QPS,
        "engram_layers_over_128": num_layers > MAX_LAYERS,
        "engram_peer_contexts_over_2048": num_qps * rdma_peers > MAX_PEER_CONTEXTS,
    }
    return EngramPlan(
        num_qps=num_qps,
        qp_depth=depth,
        restrict_rd_atomic=restrict,
        slots_per_qp=slots,
        slots_at_num_qps=-(-requests // (num_qps * rdma_peers)),
        usable_depth=UNSET if restrict else depth - FLUSH_RESERVE,
        depth_covers_slots_after_reserve=UNSET if restrict else depth - FLUSH_RESERVE >= slots,
        fits_1024_qps=num_qps <= MAX_QPS,
        fits_2048_peer_contexts=num_qps * rdma_peers <= MAX_PEER_CONTEXTS,
        kernel_limits_broken=tuple(code for code, over in broken.items() if over),
    )


def engram_storage(
    entries_per_layer: Sequence[int],
    hidden: int,
    elem_size: int,
    num_max_tokens: int,
    num_entries_per_token: int,
    rdma_ranks: int,
    num_sf_packs: int = 0,
) -> EngramStorage:
    """Bytes per rank; entries_per_layer are one rank's. num_sf_packs: 4-byte packs of scales an entry (0: BF16, no scales).

    Raises RefusalError non_positive_argument, entry_not_64_byte_multiple. Source: deepinfer-ep 2.5.0, csrc/buffers/engram.hpp,
    calculate_storage_size.
    """
    for name, value in (
        ("the number of layers", len(entries_per_layer)),
        ("the smallest layer's number of entries", min(entries_per_layer, default=0)),
        ("hidden", hidden),
        ("the element size", elem_size),
        ("the number of tokens", num_max_tokens),
        ("the number of entries per token", num_entries_per_token),
        ("the number of RDMA ranks", rdma_ranks),
        ("the number of scale packs plus 1", num_sf_packs + 1),
    ):
        positive(name, value)
    entry_bytes = hidden * elem_size
    if entry_bytes % RDMA_ALIGN_BYTES:
        what = f"an entry of {hidden} x {elem_size} bytes has {entry_bytes} bytes"
        step = RDMA_ALIGN_BYTES // math.gcd(RDMA_ALIGN_BYTES, elem_size)
        todo = f"give --hidden {-(-hidden // step) * step}"
        raise RefusalError("entry_not_64_byte_multiple", what, "RDMA reads entries in multiples of 64 bytes", todo)
    entries = sum(entries_per_layer)
    received = len(entries_per_layer) * num_max_tokens * num_entries_per_token * entry_bytes
    scales = entries * rdma_ranks * num_sf_packs * SF_PACK_BYTES
    return EngramStorage(
        gpu_bytes=aligned(received, ALLOCATION_BYTES) + aligned(scales, ALLOCATION_BYTES),
        rdma_storage_bytes=aligned(entries * entry_bytes, ALLOCATION_BYTES),
    )
