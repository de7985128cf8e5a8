"""Takes samples of a run: on GPUs with events, a cold L2 cache and a barrier before each; on the CPU with its clock."""

from __future__ import annotations

import time
from typing import Any, Protocol

from epctl.core.errors import EpctlError
from epctl.core.op import Running, World

WARM_UPS = 3
FLUSH_FACTOR = 2
"""The flush writes so many times the L2 cache: less leaves lines behind, since the cache does not throw out strictly the oldest."""
MIN_FLUSH_BYTES = 128 << 20
SETTLE_S = 60.0
"""Longer than any limit that kernels have for their own waits, and far longer than any run."""
CHUNK = 32
"""Samples that are enqueued at once: a stream holds about a thousand launches before it blocks."""
CYCLES_PER_S = 2e9
"""About an SM's clock (an H200's is 1.98 GHz): what `_sleep` counts."""
AHEAD_S = 1e-4
"""How long the GPU idles for each sample of a chunk, beside the time that the host needs for a call: all of it is to be enqueued before
the first one runs. Otherwise a short kernel is timed with the wait for Python in it."""
AHEAD_FACTOR = 1.5
MAX_AHEAD_S = 2e-3
"""A call that waits for the GPU itself is not enqueued ahead, however long that idles."""


class Timer(Protocol):
    """Takes samples."""

    def take(self, running: Running, count: int) -> list[float]:
        """Times of `count` runs on this rank, in µs. All ranks take as many."""


def settle(world: World, what: str, limit_s: float = SETTLE_S) -> None:
    """Waits until this rank's GPU has done what was enqueued. Raises EpctlError when it has not after the limit."""
    if world.tier == "cpu":
        return
    event = world.torch.cuda.Event()
    event.record()
    begin = time.monotonic()
    while not event.query():
        waited = time.monotonic() - begin
        if waited > limit_s:
            raise EpctlError(
                f"rank {world.rank}'s GPU has not ended {what} after {limit_s:g} s",
                "a kernel hangs, or the GPU has fallen off the bus",
                "look at dmesg for Xid lines, and run epctl doctor",
                exit_code=1,
            )
        if waited > 1e-3:
            time.sleep(1e-4)


class CpuTimer:
    """perf_counter around a run. What it gives is how long plain PyTorch takes, and nothing about a GPU."""

    def __init__(self, world: World) -> None:
        self._world = world

    def take(self, running: Running, count: int) -> list[float]:
        """See Timer."""
        samples = []
        for _ in range(count):
            self._world.barrier()
            begin = time.perf_counter()
            running.run()
            taken = (time.perf_counter() - begin) * 1e6
            own = running.measured_us()
            samples.append(taken if own is None else own)
        return samples


class GpuTimer:
    """Events around a run, in the current stream of the rank's GPU."""

    def __init__(self, world: World) -> None:
        self._world = world
        torch = world.torch
        l2_bytes = torch.cuda.get_device_properties(world.device).L2_cache_size
        self._flush = torch.empty(max(MIN_FLUSH_BYTES, FLUSH_FACTOR * l2_bytes), dtype=torch.uint8, device=world.device)

    def take(self, running: Running, count: int) -> list[float]:
        """See Timer. A run that measures itself is taken one by one; whether it does is known after the warm-up."""
        chunk = CHUNK if running.measured_us() is None else 1
        ahead_s = min(MAX_AHEAD_S, AHEAD_S + AHEAD_FACTOR * self._host_s(running))
        samples: list[float] = []
        while len(samples) < count:
            events = self._enqueue(running, min(chunk, count - len(samples)), ahead_s)
            settle(self._world, "its samples")
            own = running.measured_us()
            samples += [begin.elapsed_time(end) * 1e3 for begin, end in events] if own is None else [own]
        return samples

    def _host_s(self, running: Running) -> float:
        """How long the host needs to enqueue a call: one more, which is no sample."""
        self._world.barrier()
        begin = time.perf_counter()
        running.run()
        taken = time.perf_counter() - begin
        settle(self._world, "a call")
        return taken

    def _enqueue(self, running: Running, count: int, ahead_s: float) -> list[tuple[Any, Any]]:
        cuda = self._world.torch.cuda
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        cuda._sleep(int(ahead_s * CYCLES_PER_S) * count)
        for begin, end in events:
            self._flush.zero_()
            self._world.barrier()
            begin.record()
            running.run()
            end.record()
        return events


def timer(world: World) -> Timer:
    """The one of the world's tier."""
    return GpuTimer(world) if world.tier == "gpu" else CpuTimer(world)


def warm_up(running: Running, world: World) -> None:
    """Runs that do not count: first launches load code, and clocks rise."""
    for _ in range(WARM_UPS):
        world.barrier()
        running.run()
    settle(world, "its warm-up")
