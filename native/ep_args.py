"""Arguments of the expert-parallel kernels as bytes (native/include/epctl/ops/ep_args.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct, structs

from epctl.native.ep_sizes import Ring
from epctl.native.peers import Limits, Peers


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
