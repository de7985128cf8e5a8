"""Arguments of the expert-parallel kernels as bytes (native/include/epctl/ops/ep_args.h), and the sizes that both sides share."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct, structs

from epctl.native.peers import Limits, Peers

MAX_TOPK = 16
MAX_EXPERTS = 1024
MAX_BLOCKS = 256
STATE_BYTES = 64
"""The struct EpState, zeroed at the start."""
ARRIVAL_UNIT = 1 << 20
BLOCK_THREADS = 512
NUM_WARPS = BLOCK_THREADS // 32
COUNTED_BY_ALL = 512
"""Up to so many tokens every block counts all of them (ep_count.cuh)."""
BATCH_TOKENS = 32
MAX_SHARED_BYTES = 216 * 1024
"""Dynamic shared memory of a dispatch at most: a block may have 227 KiB on sm_90 and sm_100, 5 KiB are static here."""
ROUTE_ROW_BITS = 24


def _fields(one: Struct) -> Iterator[int]:
    yield from structs.astuple(one)


class Shape(Struct, frozen=True):
    """EpShape: one call, equal on all ranks but for num_tokens."""

    num_tokens: int
    max_tokens: int
    row_bytes: int
    scale_bytes: int
    num_topk: int
    num_experts: int
    experts_per_rank: int
    wide_indices: int

    def pack(self) -> bytes:
        """32 bytes."""
        return struct.pack("<8I", *_fields(self))


class Offsets(Struct, frozen=True):
    """EpOffsets: places in symmetric memory."""

    ready: int
    totals: int
    arrived: int
    announced: int
    pulled: int
    rows: int
    scales: int
    indices: int
    weights: int
    metadata: int

    def pack(self) -> bytes:
        """80 bytes."""
        return struct.pack("<10Q", *_fields(self))


class Ring(Struct, frozen=True):
    """Shared memory of a dispatch block: counts, then a ring of rows for each warp that moves them."""

    num_warps: int
    num_stages: int
    slot_bytes: int
    control_bytes: int

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of the block."""
        return self.control_bytes + self.num_warps * self.num_stages * self.slot_bytes


def ring_for(row_bytes: int, num_tokens: int, num_ranks: int, num_blocks: int, *, num_stages: int = 2) -> Ring:
    """The ring that fits: as many warps as rows allow, the last warp keeps the books. Raises ValueError when two rows do not fit."""
    counted = num_tokens if num_tokens <= COUNTED_BY_ALL else -(-num_tokens // num_blocks)
    batches = -(-counted // BATCH_TOKENS)
    control = -(-2 * 4 * batches * num_ranks // 128) * 128
    slot = -(-row_bytes // 128) * 128
    fitting = (MAX_SHARED_BYTES - control) // slot
    if fitting < 1:
        raise ValueError(f"rows of {row_bytes} bytes do not fit in shared memory")
    stages = min(num_stages, fitting)
    return Ring(min(NUM_WARPS - 1, fitting // stages), stages, slot, control)


class Dispatch(Struct, frozen=True):
    """DispatchArgs; addresses are integers, 0 is null."""

    peers: Peers
    at: Offsets
    shape: Shape
    x: int
    scales: int
    topk_indices: int
    topk_weights: int
    routes: int
    state: int
    chunk_words: int
    expert_counts: int
    tokens_per_rank: int
    expert_sums: int
    expert_tokens: int
    statistics: int
    host_counts: int
    waited_ns: int
    host_call: int
    expert_alignment: int
    expanded: bool
    cached: bool
    receives: bool
    ring: Ring
    limits: Limits

    def pack(self) -> bytes:
        """872 bytes."""
        pointers = list(_fields(self))[3:17]
        flags = (self.expert_alignment, self.expanded, self.cached, self.receives)
        body = struct.pack("<14Qq8I", *pointers, self.host_call, *flags, *_fields(self.ring))
        return self.peers.pack() + self.at.pack() + self.shape.pack() + body + self.limits.pack()


class Finish(Struct, frozen=True):
    """FinishArgs."""

    peers: Peers
    at: Offsets
    state: int
    waited_ns: int
    limits: Limits

    def pack(self) -> bytes:
        """704 bytes."""
        return self.peers.pack() + self.at.pack() + struct.pack("<2Q", self.state, self.waited_ns) + self.limits.pack()


class Expand(Struct, frozen=True):
    """ExpandArgs."""

    shape: Shape
    rows: int
    scales: int
    indices: int
    weights: int
    metadata: int
    tokens_per_rank: int
    expert_sums: int
    expert_tokens: int
    out_rows: int
    out_scales: int
    out_weights: int
    out_metadata: int
    state: int
    chunk_words: int
    num_ranks: int
    expert_alignment: int
    zero_padding: bool
    column_scales: bool
    scale_stride: int
    num_rows_limit: int
    limits: Limits

    def pack(self) -> bytes:
        """192 bytes."""
        inner = list(_fields(self))[1:-1]
        return self.shape.pack() + struct.pack("<14Q6I", *inner) + self.limits.pack()


class Stage(Struct, frozen=True):
    """StageArgs."""

    shape: Shape
    x: int
    weights: int
    metadata: int
    tokens_per_rank: int
    out_rows: int
    out_weights: int
    num_ranks: int
    skipped_rank: int

    def pack(self) -> bytes:
        """88 bytes."""
        return self.shape.pack() + struct.pack("<6Q2I", *list(_fields(self))[1:])


class Combine(Struct, frozen=True):
    """CombineArgs."""

    peers: Peers
    at: Offsets
    shape: Shape
    x_offset: int
    weights_offset: int
    local_x: int
    local_weights: int
    topk_indices: int
    routes: int
    metadata: int
    bias0: int
    bias1: int
    out: int
    out_weights: int
    state: int
    waited_ns: int
    announces: bool
    pulls: bool
    waits_until_read: bool
    expanded_rows: bool
    limits: Limits

    def pack(self) -> bytes:
        """840 bytes."""
        inner = list(_fields(self))[3:-1]
        head = self.peers.pack() + self.at.pack() + self.shape.pack()
        return head + struct.pack("<13Q4I", *inner) + self.limits.pack()
