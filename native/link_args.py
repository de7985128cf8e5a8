"""Arguments of the link kernels as bytes, and the sizes that they share with native/include/epctl/ops/link.cuh."""

from __future__ import annotations

import struct

from msgspec import Struct

from epctl.native.peers import Limits

VECTOR_BYTES = 16
STAGES = 2
MAX_SHARED_BYTES = 220 * 1024
"""Dynamic shared memory that a block asks for at most; a block may have 227 KiB on sm_90 and sm_100 (CUDA programming guide,
technical specifications per compute capability)."""
_ALIGN_BYTES = 128
_WARP_THREADS = 32
_LINK = struct.Struct("<QQQQQII")
_PING_PONG = struct.Struct("<QQQQQII")


def bulk_shared_bytes(row_bytes: int, block_threads: int) -> int:
    """Dynamic shared memory of epctl_link_bulk_copy. The kernel does not compile when it counts otherwise."""
    slot = -(-row_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    warps = min(block_threads // _WARP_THREADS, MAX_SHARED_BYTES // (STAGES * slot)) if row_bytes > 0 else 0
    if row_bytes % VECTOR_BYTES or warps < 1:
        raise ValueError(f"rows of {row_bytes} bytes: a multiple of {VECTOR_BYTES}, two of them in shared memory")
    return warps * STAGES * slot


class LinkArgs(Struct, frozen=True):
    """Device addresses as integers; `num_rows` rows of the variant's size."""

    num_rows: int
    target: int = 0
    source: int = 0
    addend: int = 0
    sums: int = 0
    pattern: int = 0

    def pack(self) -> bytes:
        """The struct LinkArgs."""
        return _LINK.pack(self.target, self.source, self.addend, self.num_rows, self.sums, self.pattern, 0)


class PingPongArgs(Struct, frozen=True):
    """One side of a ping-pong."""

    mine: int
    theirs: int
    begin: int
    num_rounds: int
    elapsed_ns: int
    peer: int
    serves: bool
    limits: Limits

    def pack(self) -> bytes:
        """The struct PingPongArgs."""
        head = (self.mine, self.theirs, self.begin, self.num_rounds, self.elapsed_ns, self.peer, int(self.serves))
        return _PING_PONG.pack(*head) + self.limits.pack()
