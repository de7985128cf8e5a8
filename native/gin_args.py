"""Arguments of the GIN kernels as bytes (native/include/epctl/ops/gin_args.h), and the variants that they are compiled as."""

from __future__ import annotations

import struct
from enum import IntFlag

from msgspec import Struct

from epctl.native.peers import Limits, Peers

KERNELS = (
    "epctl_gin_put",
    "epctl_gin_put_signal",
    "epctl_gin_get",
    "epctl_gin_signal",
    "epctl_gin_ping_pong",
    "epctl_gin_barrier",
    "epctl_gin_describe",
)
BLOCK_THREADS = 32
BARRIER_THREADS = 128
FOUND_BYTES = 40
_MESSAGES = struct.Struct("<11Q6I")
_BARRIER = struct.Struct("<QQII")
_FOUND = struct.Struct("<10I")
_ALIGN_BYTES = 8
"""Of ncclDevComm, which our fields follow."""


class GinFlag(IntFlag):
    """GinFlags of the header."""

    STRONG = 1
    """The signal follows all puts before it, not only the one that it comes with."""
    ADD = 2
    """A signal adds a value, not 1."""
    SERVES = 4
    """Ping-pong: sends first."""
    DROP = 8
    """The last signal is not given."""


class GinArgs(Struct, frozen=True):
    """What a rank sends with one launch, and what it waits for. Each block is a context. Offsets are in the window.

    Raises ValueError where a kernel would never end, or read and write past what the host meant."""

    window: int
    elapsed_ns: int
    """Device address of one uint64 for each block."""
    to: int
    """Rank of the world."""
    limits: Limits
    sender: int = 0
    """Rank of the world whose signals come here."""
    source_offset: int = 0
    target_offset: int = 0
    num_bytes: int = 0
    slot_bytes: int = 0
    num_slots: int = 1
    num_messages: int = 1
    num_expected: int = 0
    begin: int = 0
    """Where the signal stands before the launch: counted by the host."""
    value: int = 1
    signal: int = 0
    flags: GinFlag = GinFlag(0)
    batch: int = 32

    def __post_init__(self) -> None:
        if self.batch < 1 or self.num_slots < 1 or self.num_messages < 0 or self.num_expected < 0:
            raise ValueError(f"a batch of {self.batch}, {self.num_slots} slots, {self.num_messages} messages")
        if self.num_slots > 1 and self.slot_bytes < self.num_bytes:
            raise ValueError(f"messages of {self.num_bytes} bytes overlap in slots of {self.slot_bytes}")

    def pack(self, device_comm: bytes) -> bytes:
        """The struct GinArgs; `device_comm`: of Communicator.add_device_comm."""
        head = (self.window, self.source_offset, self.target_offset, self.num_bytes, self.slot_bytes, self.num_slots)
        counts = (self.num_messages, self.num_expected, self.begin % (1 << 64), self.value, self.elapsed_ns)
        words = (self.to, self.sender, self.signal, int(self.flags), self.batch, 0)
        return _comm(device_comm) + _MESSAGES.pack(*head, *counts, *words) + self.limits.pack()

    def num_bytes_of(self, num_contexts: int) -> int:
        """Bytes of the window from an offset on that a launch with so many blocks touches."""
        return (num_contexts * self.num_slots - 1) * self.slot_bytes + self.num_bytes


class GinFound(Struct, frozen=True):
    """What a device communicator turned out to be (struct GinFound)."""

    num_contexts: int
    types: tuple[int, ...]
    """ncclNetDeviceType of each connection, which is the number of its ncclGinType_t. Each connection is over an adapter."""
    num_signals: int
    connection_stride: int
    """Distance in the world between ranks that are connected: 1, or that of a rail."""
    strong_legacy: bool

    @classmethod
    def read(cls, content: bytes) -> GinFound:
        """Of FOUND_BYTES bytes."""
        contexts, connections, *types, signals, stride, strong, _ = _FOUND.unpack(content)
        return cls(contexts, tuple(types[:connections]), signals, stride, bool(strong))


def pack_describe(device_comm: bytes, found: int) -> bytes:
    """The struct GinDescribeArgs; `found`: device address of FOUND_BYTES bytes."""
    return _comm(device_comm) + struct.pack("<Q", found)


class GinBarrier(Struct, frozen=True):
    """Where a barrier of the world has its flags and signals. The ranks of a load/store domain follow each other."""

    peers: Peers
    flags_offset: int
    signal: int
    """The first of `num_domains`."""
    num_domains: int

    def pack(self, device_comm: bytes, round_idx: int, limits: Limits) -> bytes:
        """The struct GinBarrierArgs; `round_idx` counts from 1. Raises ValueError when the rank is of no such domain."""
        size = len(self.peers.bases)
        if round_idx < 1 or not 0 <= limits.rank < self.num_domains * size or limits.rank % size != self.peers.rank:
            raise ValueError(f"barrier {round_idx} of rank {limits.rank} in {self.num_domains} domains of {size} ranks")
        words = _BARRIER.pack(self.flags_offset, round_idx, self.signal, self.num_domains)
        return _comm(device_comm) + self.peers.pack() + words + limits.pack()


def _comm(device_comm: bytes) -> bytes:
    if not device_comm or len(device_comm) % _ALIGN_BYTES:
        raise ValueError(f"{len(device_comm)} bytes are no device communicator")
    return device_comm
