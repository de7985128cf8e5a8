"""What a wait that ran out of time left behind, in words (native/include/epctl/common/wait_record.h)."""

from __future__ import annotations

import struct

from msgspec import Struct

RECORD_BYTES = 64
_RECORD = struct.Struct("<IIIIQQQQIIQ")
_COMPLETE = 1
STAGES = {
    1: ("ping", "link latency"),
    2: ("pong", "link latency"),
    3: ("arrival", "the barrier"),
    4: ("arrival", "the barrier over GIN"),
    5: ("put", "GIN put"),
    6: ("get", "GIN get"),
    7: ("signal", "GIN signal"),
    8: ("flush", "GIN flush"),
    16: ("chunk count", "dispatch"),
    17: ("ready", "dispatch"),
    18: ("count", "dispatch"),
    19: ("row", "dispatch"),
    20: ("ready", "combine"),
    21: ("row", "combine"),
    22: ("done", "combine"),
}
"""Stage → (what was awaited, in which part)."""


class Timeout(Struct, frozen=True):
    """Who waited for whom, for what, and how far it got."""

    waiter: int
    peer: int
    stage: int
    expected: int
    seen: int
    progress: int
    waited_s: float
    block_idx: int
    thread_idx: int

    def __str__(self) -> str:
        what, part = STAGES.get(self.stage, (f"signal {self.stage}", "an unknown stage"))
        return (
            f"rank {self.waiter} waited {self.waited_s:.3g} s for rank {self.peer}'s {what} signal in {part}, after {self.progress} "
            f"rounds: it stood at {self.seen} and should have reached {self.expected}"
        )


def read(record: bytes) -> Timeout | None:
    """The timeout in a record of RECORD_BYTES; None when no wait has given up, or its record is still being written."""
    state, waiter, peer, stage, expected, seen, progress, waited_ns, block, thread, _ = _RECORD.unpack(record)
    if state != _COMPLETE:
        return None
    return Timeout(waiter, peer, stage, expected, seen, progress, waited_ns / 1e9, block, thread)
