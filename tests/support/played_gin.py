"""The GIN kernels on host memory: threads that are ranks, windows that are addresses, and signals that are counters."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from typing import Any

import pytest

from epctl.comm.domain import Domain
from epctl.native import waits
from epctl.native.gin_args import GinArgs, GinFlag
from epctl.ops.gin import gpu
from tests.support.worlds import ThreadWorld

_GIN_STAGE = {"epctl_gin_put": 5, "epctl_gin_put_signal": 5, "epctl_gin_signal": 7, "epctl_gin_ping_pong": 7}


class Network:
    """What all ranks share: signals by (rank, context, signal), and memory by window and rank."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.signals: dict[tuple[int, int, int], int] = {}
        self.windows: dict[tuple[int, int], int] = {}

    def give(self, rank: int, context: int, signal: int, value: int) -> None:
        """A signal for `rank`."""
        with self.changed:
            key = (rank, context, signal)
            self.signals[key] = self.signals.get(key, 0) + value
            self.changed.notify_all()

    def wait(self, rank: int, context: int, args: GinArgs, expected: int, stage: int) -> bool:
        """As wait_until: False when the time is up, and the record then says so."""
        key = (rank, context, args.signal)
        with self.changed:
            if self.changed.wait_for(lambda: self.signals.get(key, 0) >= expected, args.limits.timeout_s):
                return True
            seen = self.signals.get(key, 0)
        nanoseconds = round(args.limits.timeout_s * 1e9)
        record = struct.pack("<IIIIQQQQIIQ", 1, rank, args.sender, stage, expected, seen, 0, nanoseconds, context, 0, 0)
        assert len(record) == waits.RECORD_BYTES
        ctypes.memmove(args.limits.record, record, len(record))
        ctypes.c_uint32.from_address(args.limits.given_up).value = 1
        return False


class PlayedMemory:
    """Host memory of one rank as symmetric memory of a number."""

    def __init__(self, world: ThreadWorld, network: Network, window: int, num_bytes: int) -> None:
        self.window = window
        self._tensor = world.torch.zeros(num_bytes, dtype=world.torch.uint8)
        network.windows[window, world.rank] = int(self._tensor.data_ptr())

    def bytes_tensor(self) -> Any:  # noqa: ANN401
        return self._tensor


class PlayedDomain(Domain):
    """A domain without NCCL."""

    def __init__(self, world: ThreadWorld, network: Network) -> None:
        self._world, self._network, self._next = world, network, 1
        self.released: list[int] = []

    def symmetric(self, num_bytes: int) -> Any:  # noqa: ANN401
        made = PlayedMemory(self._world, self._network, self._next, num_bytes)
        self._next += 1
        self._world.meeting.all_gather("symmetric memory", b"")
        return made

    def release(self, memory: Any) -> None:  # noqa: ANN401
        self.released.append(memory.window)


class PlayedGin:
    """In place of GinDomain: runs what the arguments say."""

    num_contexts = 16

    def __init__(self, domain: PlayedDomain, wish: object, static_gates: object = ()) -> None:  # noqa: ARG002
        self.domain = domain
        self.rank = domain._world.rank
        self.network = domain._network

    def launch(self, name: str, num_contexts: int, args: GinArgs) -> None:
        """All contexts, one after the other; what they send does not wait for what they receive."""
        begin = time.perf_counter_ns()
        alone = name != "epctl_gin_ping_pong"
        for context in range(num_contexts):
            if alone:
                self._post(name, context, args)
        for context in range(num_contexts):
            well = self._arrived(name, context, args) if alone else self._rounds(context, args)
            if well:
                took = time.perf_counter_ns() - begin + 1
                ctypes.c_uint64.from_address(args.elapsed_ns + 8 * context).value = took

    def _move(self, context: int, idx: int, args: GinArgs, *, fetch: bool = False) -> None:
        at = (context * args.num_slots + idx % args.num_slots) * args.slot_bytes
        mine, theirs = (self.network.windows[args.window, rank] for rank in (self.rank, args.to))
        source, target = (theirs, mine) if fetch else (mine, theirs)
        ctypes.memmove(target + args.target_offset + at, source + args.source_offset + at, args.num_bytes)

    def _post(self, name: str, context: int, args: GinArgs) -> None:
        step = args.value if GinFlag.ADD in args.flags else 1
        for idx in range(args.num_messages):
            dropped = GinFlag.DROP in args.flags and idx + 1 == args.num_messages
            if name != "epctl_gin_signal":
                self._move(context, idx, args, fetch=name == "epctl_gin_get")
            if name in ("epctl_gin_signal", "epctl_gin_put_signal") and not dropped:
                self.network.give(args.to, context, args.signal, step)
        if name == "epctl_gin_put" and GinFlag.DROP not in args.flags:
            self.network.give(args.to, context, args.signal, 1)

    def _arrived(self, name: str, context: int, args: GinArgs) -> bool:
        if not args.num_expected:
            return True
        step = args.value if GinFlag.ADD in args.flags else 1
        return self.network.wait(self.rank, context, args, args.begin + args.num_expected * step, _GIN_STAGE[name])

    def _rounds(self, context: int, args: GinArgs) -> bool:
        serves = GinFlag.SERVES in args.flags
        for step in range(2 * args.num_messages):
            done = step // 2
            if (step % 2 == 0) != serves:
                if not self.network.wait(self.rank, context, args, args.begin + done + 1, 7):
                    return False
            elif not (GinFlag.DROP in args.flags and done + 1 == args.num_messages):
                if args.num_bytes:
                    self._move(context, done, args)
                self.network.give(args.to, context, args.signal, 1)
        return True


def play(monkeypatch: pytest.MonkeyPatch) -> Network:
    """From here on the op's GPU side runs on host memory, for worlds that `join` was called for."""
    network = Network()
    monkeypatch.setattr(gpu, "GinDomain", PlayedGin)
    monkeypatch.setattr(gpu, "_shared", {})
    return network


def join(world: ThreadWorld, network: Network) -> PlayedDomain:
    """Gives the world a domain."""
    domain = PlayedDomain(world, network)
    world.comm = domain  # type: ignore[attr-defined]
    return domain
