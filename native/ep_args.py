"""Arguments of the expert-parallel kernels as bytes (native/include/epctl/ops/ep_args.h), and the sizes that both sides share."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct, structs

from epctl.native.peers import Limits, Peers

MAX_TOPK = 16
MAX_EXPERTS = 1024
MAX_BLOCKS = 256
STATE_BYTES = 128
"""The struct EpState, zeroed at the start."""
ARRIVAL_UNIT = 1 << 20
SMALL_TOKENS = 256
"""Up to so many tokens of each rank rows travel in lines that carry their own numbers (ep_small.cuh)."""
SMALL_BATCHES = SMALL_TOKENS // 32
GROUP_BYTES = 512
GROUP_WORDS = 60
"""Words of 8 bytes that a group of lines carries."""
BLOCK_THREADS = 512
NUM_WARPS = BLOCK_THREADS // 32
MAX_MOVERS = 12
"""Warps that move rows at most: three are left for the details, one keeps the books (ep_dispatch.cuh)."""
MAX_PUSHERS = 7
"""Warps that push rows in a combine at most (two rows of 14 KiB for each fill the shared memory)."""
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


class SmallOffsets(Struct, frozen=True):
    """SmallOffsets: places in symmetric memory, the number of slots of each source, and the bytes of those for dispatch."""

    masks: int
    experts: int
    lines: int
    here: int
    returned: int
    num_tokens: int
    line_bytes: int

    def pack(self) -> bytes:
        """56 bytes."""
        return struct.pack("<7Q", *_fields(self))


def small_slot_bytes(row_bytes: int, num_details: int) -> int:
    """Bytes of the lines of one row and its details (words of 4 bytes)."""
    groups = -(-(row_bytes // 8) // GROUP_WORDS) + -(-num_details // (2 * GROUP_WORDS))
    return groups * GROUP_BYTES


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


def push_ring_for(row_bytes: int) -> Ring:
    """The ring of a combine: about half of the warps push, the others add up."""
    slot = -(-row_bytes // 128) * 128
    fitting = MAX_SHARED_BYTES // slot
    if fitting < 1:
        raise ValueError(f"rows of {row_bytes} bytes do not fit in shared memory")
    stages = min(2, fitting)
    return Ring(min(MAX_PUSHERS, fitting // stages), stages, slot, 0)


def ring_for(row_bytes: int, num_tokens: int, num_ranks: int, num_blocks: int, *, num_stages: int = 2) -> Ring:
    """The ring that fits: as many warps as rows allow, MAX_MOVERS at most. Raises ValueError when two rows do not fit."""
    counted = num_tokens if num_tokens <= COUNTED_BY_ALL else -(-num_tokens // num_blocks)
    batches = -(-counted // BATCH_TOKENS)
    control = -(-2 * 4 * batches * num_ranks // 128) * 128
    slot = -(-row_bytes // 128) * 128
    fitting = (MAX_SHARED_BYTES - control) // slot
    if fitting < 1:
        raise ValueError(f"rows of {row_bytes} bytes do not fit in shared memory")
    stages = min(num_stages, fitting)
    return Ring(min(MAX_MOVERS, fitting // stages), stages, slot, control)


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


class CombineOffsets(Struct, frozen=True):
    """CombineOffsets: places in symmetric memory, and the bytes of one of the two tables."""

    told: int
    table: int
    landed: int
    partials: int
    weights: int
    table_bytes: int

    def pack(self) -> bytes:
        """48 bytes."""
        return struct.pack("<6Q", *_fields(self))


class Combine(Struct, frozen=True):
    """CombineArgs."""

    peers: Peers
    at: CombineOffsets
    shape: Shape
    x: int
    weights: int
    topk_indices: int
    routes: int
    metadata: int
    bias0: int
    bias1: int
    out: int
    out_weights: int
    state: int
    waited_ns: int
    expanded: bool
    sends: bool
    receives: bool
    ring: Ring
    limits: Limits

    def pack(self) -> bytes:
        """800 bytes."""
        inner = list(_fields(self))[3:-2]
        ring = (self.ring.num_warps, self.ring.num_stages, self.ring.slot_bytes)
        head = self.peers.pack() + self.at.pack() + self.shape.pack()
        return head + struct.pack("<11Q6I", *inner, *ring) + self.limits.pack()


class Pull(Struct, frozen=True):
    """PullArgs."""

    peers: Peers
    at: Offsets
    shape: Shape
    x_offset: int
    weights_offset: int
    local_x: int
    local_weights: int
    topk_indices: int
    routes: int
    bias0: int
    bias1: int
    out: int
    out_weights: int
    state: int
    waited_ns: int
    announces: bool
    pulls: bool
    limits: Limits

    def pack(self) -> bytes:
        """824 bytes."""
        inner = list(_fields(self))[3:-1]
        head = self.peers.pack() + self.at.pack() + self.shape.pack()
        return head + struct.pack("<12Q2I", *inner) + self.limits.pack()


class SmallDispatch(Struct, frozen=True):
    """SmallDispatchArgs."""

    peers: Peers
    small: SmallOffsets
    shape: Shape
    x: int
    scales: int
    topk_indices: int
    topk_weights: int
    out_rows: int
    out_scales: int
    out_indices: int
    out_weights: int
    out_metadata: int
    own_rows: int
    state: int
    tokens_per_rank: int
    expert_sums: int
    expert_tokens: int
    statistics: int
    host_counts: int
    waited_ns: int
    host_call: int
    expert_alignment: int
    expanded: bool
    sends: bool
    receives: bool
    limits: Limits

    def pack(self) -> bytes:
        """856 bytes."""
        inner = list(_fields(self))[3:-1]
        head = self.peers.pack() + self.small.pack() + self.shape.pack()
        return head + struct.pack("<17Qq4I", *inner) + self.limits.pack()


class SmallCombine(Struct, frozen=True):
    """SmallCombineArgs."""

    peers: Peers
    small: SmallOffsets
    shape: Shape
    x: int
    weights: int
    topk_indices: int
    own_rows: int
    metadata: int
    tokens_per_rank: int
    bias0: int
    bias1: int
    out: int
    out_weights: int
    state: int
    waited_ns: int
    expanded: bool
    sends: bool
    receives: bool
    num_rows: int
    limits: Limits

    def pack(self) -> bytes:
        """808 bytes."""
        inner = list(_fields(self))[3:-1]
        head = self.peers.pack() + self.small.pack() + self.shape.pack()
        return head + struct.pack("<12Q4I", *inner) + self.limits.pack()
