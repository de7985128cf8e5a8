"""Where the parts of an expert-parallel buffer lie in symmetric memory. Pure arithmetic: the same on every rank."""

from __future__ import annotations

from msgspec import Struct

from epctl.native.ep_args import CombineOffsets, Offsets, SmallOffsets
from epctl.native.ep_sizes import MAX_EXPERTS, SMALL_BATCHES, SMALL_TOKENS, small_slot_bytes

NUM_SLOTS = 2
"""Outputs of dispatch take turns, so that a view stays valid until the next dispatch but one."""
ALIGN_BYTES = 1024
WORD_BYTES = 8
BF16_BYTES = 2
FLOAT_BYTES = 4
WIDE_INDEX_BYTES = 8
PADDING_ROWS = 128 * 128
"""Of the groups of an expanded layout: 128 experts of one rank, aligned to 128."""
SCALE_BLOCK = 128
"""Elements of a row that share one FP8 scale."""


def _align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


class Rows(Struct, frozen=True):
    """What a buffer must have room for. `max_tokens`: of one rank; `row_bytes`, `scale_bytes`: of the largest row."""

    num_ranks: int
    max_tokens: int
    num_topk: int
    hidden: int
    row_bytes: int
    scale_bytes: int
    every_row: bool = False
    """Room for a combine in which each expanded row travels."""

    @property
    def capacity(self) -> int:
        """Rows that one rank may receive."""
        return self.num_ranks * self.max_tokens


def rows_for(
    num_ranks: int, max_tokens: int, hidden: int, num_topk: int, *, fp8: bool, every_row: bool = False
) -> Rows:
    """Rows of BF16, or of FP8 alone (`fp8`), which need half the room and a scale for each 128 elements."""
    scales = -(-hidden // SCALE_BLOCK) * FLOAT_BYTES
    return Rows(num_ranks, max_tokens, num_topk, hidden, hidden if fp8 else hidden * BF16_BYTES, scales, every_row)


class Layout(Struct, frozen=True):
    """Offsets in bytes."""

    rows: Rows
    slot_begin: int
    slot_bytes: int
    slot_parts: tuple[int, int, int, int, int]
    """Rows, scales, indices, weights, metadata: from the slot's begin."""
    combine: CombineOffsets
    every_row: tuple[int, int, int]
    """Rows [num_every_row, hidden] BF16, weights [num_every_row] float32, metadata [capacity, topk + 2] int32."""
    num_every_row: int
    small: SmallOffsets
    """For calls of few tokens."""
    num_bytes: int

    def offsets(self, slot_idx: int) -> Offsets:
        """For kernels."""
        control = control_parts(self.rows.num_ranks)
        begin = self.slot_begin + slot_idx * self.slot_bytes
        return Offsets(*control[:5], *(begin + part for part in self.slot_parts))


def control_parts(num_ranks: int) -> tuple[int, int, int, int, int, int]:
    """Offsets of ready flags, totals, arrival counters, announcements and read counters, and where they end."""
    columns = num_ranks + -(-MAX_EXPERTS // num_ranks)
    sizes = (num_ranks, 2 * num_ranks * columns, num_ranks, 2 * num_ranks * 2, num_ranks)
    at, found = 0, []
    for size in sizes:
        found.append(at)
        at += _align(size * WORD_BYTES)
    return found[0], found[1], found[2], found[3], found[4], at


def layout_for(rows: Rows) -> Layout:
    """The layout with room for these rows."""
    begin = control_parts(rows.num_ranks)[5]
    parts, at = [], 0
    for row_bytes in (
        rows.row_bytes,
        rows.scale_bytes,
        rows.num_topk * WIDE_INDEX_BYTES,
        rows.num_topk * FLOAT_BYTES,
        (rows.num_topk + 2) * FLOAT_BYTES,
    ):
        parts.append(at)
        at += _align(rows.capacity * row_bytes)
    slot_bytes = at
    combine, at = _combine(rows, begin + NUM_SLOTS * slot_bytes)
    num_every_row = rows.capacity * rows.num_topk + PADDING_ROWS if rows.every_row else 0
    every_row = []
    for num_bytes in (
        num_every_row * rows.hidden * BF16_BYTES,
        num_every_row * FLOAT_BYTES,
        rows.capacity * (rows.num_topk + 2) * FLOAT_BYTES if rows.every_row else 0,
    ):
        every_row.append(at)
        at += _align(num_bytes)
    begins = (every_row[0], every_row[1], every_row[2])
    slots = (parts[0], parts[1], parts[2], parts[3], parts[4])
    small, at = _small(rows, at)
    return Layout(rows, begin, slot_bytes, slots, combine, begins, num_every_row, small, at)


def _combine(rows: Rows, at: int) -> tuple[CombineOffsets, int]:
    """(places, end)."""
    found = []
    table_bytes = _align(rows.num_ranks * (rows.max_tokens + 1) * FLOAT_BYTES)
    for num_bytes in (
        rows.num_ranks * WORD_BYTES,
        2 * table_bytes,
        rows.capacity * WORD_BYTES,
        rows.capacity * rows.hidden * BF16_BYTES,
        rows.capacity * rows.num_topk * FLOAT_BYTES,
    ):
        found.append(at)
        at += _align(num_bytes)
    return CombineOffsets(found[0], found[1], found[2], found[3], found[4], table_bytes), at


def _small(rows: Rows, at: int) -> tuple[SmallOffsets, int]:
    """(places, end)."""
    num_tokens = min(rows.max_tokens, SMALL_TOKENS)
    slots = 2 * rows.num_ranks * num_tokens
    experts = 2 * rows.num_ranks * -(-MAX_EXPERTS // rows.num_ranks)
    found = []
    line_bytes = small_slot_bytes(rows.row_bytes, rows.scale_bytes)
    for num_bytes in (
        2 * rows.num_ranks * SMALL_BATCHES * WORD_BYTES,
        experts * WORD_BYTES,
        slots * line_bytes,
        rows.num_ranks * WORD_BYTES,
        slots * small_slot_bytes(rows.hidden * BF16_BYTES, 0),
    ):
        found.append(at)
        at += _align(num_bytes)
    return SmallOffsets(found[0], found[1], found[2], found[3], found[4], num_tokens, line_bytes), at


def expanded_capacity(num_ranks: int, max_tokens: int, num_topk: int, experts_per_rank: int, alignment: int) -> int:
    """Rows of an expanded output that always suffice: each token of each rank on as many local experts as it can select, and the
    padding of each group, rounded up to the alignment."""
    entries = num_ranks * max_tokens * min(num_topk, experts_per_rank)
    return -(-(entries + (alignment - 1) * experts_per_rank) // alignment) * alignment
