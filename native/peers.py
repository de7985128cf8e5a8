"""The structs of native/include/epctl/comm/peers.h and ops/barrier_args.h as bytes."""

from __future__ import annotations

import math
import struct
from functools import lru_cache

from msgspec import Struct

MAX_PEERS = 72
"""Largest load/store domain: NVL72."""
_PEERS = struct.Struct(f"<{MAX_PEERS}QII")
_BARRIER = struct.Struct("<QQ")
_LIMITS = struct.Struct("<QQII")
_MAX_TIMEOUT_MS = 2**32 - 1


class Peers(Struct, frozen=True):
    """Addresses of the symmetric memory of all ranks of the domain, in their order."""

    bases: tuple[int, ...]
    rank: int
    """Index of this rank in `bases`."""

    def pack(self) -> bytes:
        """The struct Peers. Raises ValueError for more than MAX_PEERS."""
        if not 0 <= self.rank < len(self.bases) <= MAX_PEERS:
            raise ValueError(f"rank {self.rank} of {len(self.bases)} in a load/store domain of at most {MAX_PEERS}")
        return _pack_peers(self.bases, self.rank)


@lru_cache(64)
def _pack_peers(bases: tuple[int, ...], rank: int) -> bytes:
    """Kept: every call of every kernel needs the same few."""
    padded = (*bases, *([0] * (MAX_PEERS - len(bases))))
    return _PEERS.pack(*padded, len(bases), rank)


class Limits(Struct, frozen=True):
    """How a kernel waits. `record`: address of a WaitRecord in host memory that the device maps; `given_up`: of 4 bytes, best in memory
    of the device, which tell that a wait has given up; `rank`: in the world."""

    record: int
    given_up: int
    timeout_s: float
    rank: int

    def pack(self) -> bytes:
        """The struct WaitLimits. Raises ValueError for a time that is not positive, or above 49 days."""
        if not 0 < self.timeout_s <= _MAX_TIMEOUT_MS / 1e3:
            raise ValueError(
                f"kernels wait for a positive time of at most {_MAX_TIMEOUT_MS / 1e3:.0f} s, not {self.timeout_s} s"
            )
        return _LIMITS.pack(self.record, self.given_up, self.rank, math.ceil(self.timeout_s * 1e3))


def pack_barrier(peers: Peers, flags_offset: int, round_idx: int, limits: Limits) -> bytes:
    """The struct BarrierArgs; `round_idx` counts from 1."""
    return peers.pack() + _BARRIER.pack(flags_offset, round_idx) + limits.pack()
