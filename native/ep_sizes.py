"""Sizes that the expert-parallel kernels and the host share (native/include/epctl/ops/ep_*.h, ep_*.cuh)."""

from __future__ import annotations

from msgspec import Struct

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


def small_slot_bytes(row_bytes: int, scale_bytes: int) -> int:
    """Bytes of the lines of one row, its scales and its selections (Slots of ep_lines.cuh)."""
    groups = -(-(row_bytes // 8) // GROUP_WORDS) + -(-(scale_bytes // 4) // (2 * GROUP_WORDS)) + 1
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
