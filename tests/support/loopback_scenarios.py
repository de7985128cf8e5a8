"""What each rank does in a test of the loopback plugin. Run as: python -m tests.support.loopback_scenarios NAME RANK NUM PLUGIN DRIVER."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import Any

from tests.support import loopback_plugin_api as api
from tests.support.loopback_ranks import Rank, num_fds, read64, write64

WAIT_S = 10.0


class World:
    """A collective with data (a window), signals that are never reset, and values of the host, as NCCL sets it up."""

    def __init__(self, rank: Rank, size: int = 1 << 20, num_contexts: int = 2, flags: int = api.NEVER_RESET) -> None:
        self.rank, self.plugin, self.size = rank, rank.plugin, size
        self.collective = rank.connect()
        self.context = rank.plugin.context(self.collective, num_contexts)
        self.signals = rank.alloc(4096, exportable=False)
        self.values = (ctypes.c_uint64 * 64)()
        self.data = rank.alloc(size)
        self.signal_mr = rank.register(self.collective, self.signals, 4096, flags=flags | api.FORCE_STRONG_ORDER)
        self.value_mr = rank.register(self.collective, ctypes.addressof(self.values), 512, api.HOST)
        self.mr = rank.register(self.collective, self.data, size)

    def wait(self, *requests: int) -> None:
        self.plugin.wait(self.collective, self.context, *requests)

    def signalled(self, index: int, least: int) -> int:
        """The value of a signal once it has reached `least`."""
        end = time.monotonic() + WAIT_S
        while (value := read64(self.signals + 8 * index)) < least:
            self.plugin.table.rmaProgress(self.context)
            if time.monotonic() > end:
                raise TimeoutError(f"signal {index} stands at {value}, not {least}")
        return value

    def close(self) -> None:
        for mr in (self.mr, self.value_mr, self.signal_mr):
            self.plugin.call("deregMrSym", self.collective, mr)
        self.plugin.call("destroyContext", self.context)
        self.plugin.call("closeColl", self.collective)
        for data in (self.data, self.signals):
            self.rank.cuda.fake_free(data)


def pattern(rank: int, size: int) -> bytes:
    return bytes((rank * 37 + i * 11) & 255 for i in range(min(size, 1 << 12))) * (size // min(size, 1 << 12))


def ring(rank: Rank) -> dict[str, Any]:
    """Put with a signal to the next rank, sizes from 8 bytes to half the window, on both contexts."""
    world = World(rank)
    half = world.size // 2
    count = 0
    for size in (8, 4096, half):
        ctypes.memmove(world.data, pattern(rank.rank, size), size)
        for index in (0, 1):
            target, source = (world.mr, half), (world.mr, 0)
            request = rank.put_signal(
                world.context, rank.next, target, source, size, (world.signal_mr, 0), 3, index=index
            )
            count += 3
            world.wait(request)
            world.signalled(0, count)
            assert ctypes.string_at(world.data + half, size) == pattern(rank.previous, size)
            rank.gather()
    read = world.signalled(0, count)
    launches = rank.cuda.fake_alive(b"launches")
    world.close()
    return {"signal": read, "expected": count, "alive": rank.alive(), "launches": launches}


def get(rank: Rank) -> dict[str, Any]:
    """Get from the next rank; the flush comes after the get."""
    world = World(rank)
    ctypes.memmove(world.data, pattern(rank.rank, 4096), 4096)
    rank.gather()
    fetched = rank.get(world.context, rank.next, (world.mr, 0), (world.mr, 8192), 4096)
    flushed = rank.flush(world.context, rank.next)
    world.wait(flushed)
    after_flush = ctypes.string_at(world.data + 8192, 4096) == pattern(rank.next, 4096)
    world.wait(fetched)
    rank.gather()
    world.close()
    return {"right": after_flush, "alive": rank.alive()}


def values(rank: Rank) -> dict[str, Any]:
    """Values of the host of 1, 2, 4 and 8 bytes, aligned and not; to the next rank and to this one."""
    world = World(rank)
    world.values[0] = 0x8877665544332211
    found = []
    for target in (rank.next, rank.rank):
        for size, offset in ((1, 17), (2, 34), (4, 52), (8, 64), (8, 77)):
            world.wait(rank.put(world.context, target, (world.mr, offset), (world.value_mr, 0), size))
        rank.gather()
        found.append(ctypes.string_at(world.data, 96).hex())
        rank.gather()
        ctypes.memset(world.data, 0, 96)
        rank.gather()
    world.close()
    return {"found": found, "alive": rank.alive()}


def strong_and_weak(rank: Rank) -> dict[str, Any]:
    """A long put, then short ones with a weak and a strong signal: the weak one overtakes, the strong one does not."""
    world = World(rank)
    half = world.size // 2
    seen: dict[str, Any] = {}
    if rank.rank == 0:
        source = (world.mr, 0)
        long_put = rank.put(world.context, 1, (world.mr, half), source, half)
        strong = rank.put_signal(world.context, 1, (world.mr, 16), source, 8, (world.signal_mr, 0))
        weak = rank.put_signal(world.context, 1, (world.mr, 32), source, 8, (world.signal_mr, 8), strong=False)
        world.wait(long_put, strong, weak)
    else:
        world.signalled(1, 1)
        seen["strong when weak arrived"] = read64(world.signals)
        world.signalled(0, 1)
    rank.gather()
    world.close()
    return {**seen, "alive": rank.alive()}


def resettable(rank: Rank) -> dict[str, Any]:
    """Signals in a window that device code may set to zero: added to, not written."""
    world = World(rank, flags=0)
    places = [(world.mr, 8 * i) for i in range(40)]
    requests = [
        rank.put_signal(world.context, rank.next, (0, 0), (0, 0), 0, place, 1 + i) for i, place in enumerate(places)
    ]
    world.wait(*requests)
    end = time.monotonic() + WAIT_S
    while any(read64(world.data + 8 * i) != 1 + i for i in range(40)) and time.monotonic() < end:
        world.plugin.table.rmaProgress(world.context)
    first = [read64(world.data + 8 * i) for i in range(40)]
    for i in range(40):
        write64(world.data + 8 * i, 0)
    rank.gather()
    world.wait(rank.put_signal(world.context, rank.next, (0, 0), (0, 0), 0, places[0], 5))
    end = time.monotonic() + WAIT_S
    while read64(world.data) == 0 and time.monotonic() < end:
        world.plugin.table.rmaProgress(world.context)
    second = read64(world.data)
    rank.gather()
    world.close()
    return {"first": first, "second": second, "alive": rank.alive(), "launches": rank.cuda.fake_alive(b"launches")}


def nobody_calls(rank: Rank) -> dict[str, Any]:
    """The receiver makes no call at all, as with host-side RMA: its signal arrives nevertheless."""
    world = World(rank)
    if rank.rank == 0:
        request = rank.put_signal(world.context, 1, (world.mr, 0), (world.mr, 64), 8, (world.signal_mr, 8), 7)
        end = time.monotonic() + WAIT_S
        while not world.plugin.done(world.collective, request):  # without progress
            assert time.monotonic() < end
    else:
        end = time.monotonic() + WAIT_S
        while read64(world.signals + 8) != 7 and time.monotonic() < end:
            time.sleep(0.001)
    rank.gather()
    value = read64(world.signals + 8)
    world.close()
    return {"value": value, "alive": rank.alive()}


def many_signals(rank: Rank) -> dict[str, Any]:
    """More than the buffer of a socket takes while the other side does not read for a while."""
    world = World(rank)
    requests = [
        rank.put_signal(world.context, rank.next, (0, 0), (0, 0), 0, (world.signal_mr, 0), 1) for _ in range(5000)
    ]
    rank.gather()
    world.wait(*requests)
    value = world.signalled(0, 5000)
    rank.gather()
    world.close()
    return {"value": value, "alive": rank.alive()}


def destroy_in_flight(rank: Rank) -> dict[str, Any]:
    """The GPU stands still: contexts and memory go away within the limit, with a warning."""
    world = World(rank)
    rank.cuda.fake_freeze(1)
    for _ in range(3):
        rank.put_signal(world.context, rank.next, (world.mr, 0), (world.mr, 512), 512, (world.signal_mr, 0))
    begin = time.monotonic()
    world.plugin.call("destroyContext", world.context)
    took = time.monotonic() - begin
    world.plugin.call("deregMrSym", world.collective, world.mr)
    rank.cuda.fake_freeze(0)
    world.plugin.call("closeColl", world.collective)
    return {"took": took, "warnings": world.plugin.warnings(), "alive": rank.alive()}


def drain(rank: Rank) -> dict[str, Any]:
    """Requests in flight are completed when their context goes: the other side gets its data and signal."""
    world = World(rank)
    half = world.size // 2
    ctypes.memmove(world.data, pattern(rank.rank, half), half)
    rank.put_signal(world.context, rank.next, (world.mr, half), (world.mr, 0), half, (world.signal_mr, 0), 9)
    world.plugin.call("destroyContext", world.context)
    end = time.monotonic() + WAIT_S
    while read64(world.signals) != 9 and time.monotonic() < end:
        time.sleep(0.001)
    right = ctypes.string_at(world.data + half, half) == pattern(rank.previous, half)
    rank.gather()
    world.plugin.call("closeColl", world.collective)
    late = world.plugin.table.deregMrSym(world.collective, world.mr), world.plugin.table.destroyContext(world.context)
    return {
        "right": right,
        "late": late,
        "again": world.plugin.table.closeColl(world.collective),
        "alive": rank.alive(),
    }


def killed(rank: Rank) -> dict[str, Any]:
    """Rank 1 dies; the others learn who it was, and still close."""
    world = World(rank)
    if rank.rank == 1:
        rank.gather()
        os.kill(os.getpid(), signal.SIGKILL)
    rank.gather()
    begin = time.monotonic()
    while not world.plugin.has_error(world.context) and time.monotonic() - begin < WAIT_S:
        world.plugin.table.rmaProgress(world.context)
    noticed = time.monotonic() - begin
    codes = []
    for call in (lambda: rank.put(world.context, 1, (world.mr, 0), (world.mr, 8), 8), lambda: rank.alloc(4096)):
        try:
            call()
        except api.PluginError as error:
            codes.append(error.code)
    begin = time.monotonic()
    world.close()
    return {
        "noticed": noticed,
        "codes": codes,
        "warnings": world.plugin.warnings(),
        "alive": rank.alive(),
        "closed": time.monotonic() - begin,
    }


def killed_at_registration(rank: Rank) -> dict[str, Any]:
    """Rank 1 dies while the others register."""
    collective = rank.connect()
    if rank.rank == 1:
        os._exit(7)
    code = 0
    begin = time.monotonic()
    try:
        rank.register(collective, rank.alloc(4096), 4096)
    except api.PluginError as error:
        code = error.code
    took = time.monotonic() - begin
    rank.plugin.call("closeColl", collective)
    return {"code": code, "took": took, "warnings": rank.plugin.warnings(), "alive": rank.alive()}


def missing(rank: Rank) -> dict[str, Any]:
    """The last rank listens and never connects."""
    listener, handle = rank.plugin.listen()
    handles = rank.gather(handle)
    code = 0
    begin = time.monotonic()
    if rank.rank < rank.num_ranks - 1:
        try:
            rank.plugin.connect(listener, handles, rank.rank)
        except api.PluginError as error:
            code = error.code
    took = time.monotonic() - begin
    rank.gather()
    rank.plugin.call("closeListen", listener)
    return {"code": code, "took": took, "warnings": rank.plugin.warnings()}


def leave_early(rank: Rank) -> dict[str, Any]:
    """Rank 1 closes all while rank 0 still sends: no error, the signals are dropped."""
    world = World(rank)
    rank.gather()
    if rank.rank == 1:
        world.close()
        rank.gather()
        return {"alive": rank.alive()}
    rank.gather()
    requests = [
        rank.put_signal(world.context, 1, (world.mr, 0), (world.mr, 8), 8, (world.signal_mr, 0)) for _ in range(50)
    ]
    world.wait(*requests)
    error = world.plugin.has_error(world.context)
    world.close()
    return {
        "error": error,
        "warnings": world.plugin.warnings(),
        "log": [text for _, text in world.plugin.log],
        "alive": rank.alive(),
    }


def lost_gpu(rank: Rank) -> dict[str, Any]:
    """The GPU of rank 0 fails; rank 1 is told by rank 0's farewell."""
    world = World(rank)
    rank.gather()
    if rank.rank == 0:
        request = rank.put(world.context, 1, (world.mr, 0), (world.mr, 8), 8)
        rank.cuda.fake_break()
        code = api.SUCCESS
        try:
            world.wait(request)
            request = rank.put(world.context, 1, (world.mr, 0), (world.mr, 8), 8)
        except api.PluginError as error:
            code = error.code
        world.close()
        return {"code": code, "warnings": world.plugin.warnings()}
    end = time.monotonic() + WAIT_S
    while not world.plugin.has_error(world.context) and time.monotonic() < end:
        world.plugin.table.rmaProgress(world.context)
    world.close()
    return {"warnings": world.plugin.warnings(), "alive": rank.alive()}


def bad_arguments(rank: Rank) -> dict[str, Any]:
    """Each in a communicator of its own, since a failure of the data path is one of the communicator."""
    found = []
    for kind in ("beyond", "rank", "context", "signal", "unreachable", "withdrawn", "operation"):
        world = World(rank)
        place = (world.mr, 0)
        try:
            if kind == "beyond":
                rank.put(world.context, rank.next, (world.mr, world.size - 4), place, 8)
            elif kind == "rank":
                rank.put(world.context, rank.num_ranks, place, place, 8)
            elif kind == "context":
                rank.put(world.context, rank.next, place, place, 8, index=2)
            elif kind == "signal":
                rank.put_signal(world.context, rank.next, (0, 0), (0, 0), 0, (world.signal_mr, 4))
            elif kind == "withdrawn":
                gone = rank.register(world.collective, world.data, 4096)
                world.plugin.call("deregMrSym", world.collective, gone)
                rank.put(world.context, rank.next, place, (gone, 0), 8)
            elif kind == "unreachable":
                rank.put(world.context, rank.next, (world.signal_mr, 0), place, 8)
            else:
                rank.plugin.made(
                    "iputSignal", world.context, 0, 0, 0, 0, 0, 0, rank.next, 0, world.signal_mr, 1, 7, True
                )
        except api.PluginError as error:
            found.append([kind, error.code, world.plugin.warnings()[-1]])
        rank.gather()
        world.close()
        rank.gather()
    return {"found": found, "alive": rank.alive()}


def unmappable(rank: Rank) -> dict[str, Any]:
    """Rank 0's driver refuses to map: the registration fails there, and nothing of it stays."""
    collective = rank.connect()
    context = rank.plugin.context(collective)
    if rank.rank == 0:
        rank.cuda.fake_refuse(b"cuMemSetAccess")
    code = 0
    try:
        rank.register(collective, rank.alloc(4096), 4096)
    except api.PluginError as error:
        code = error.code
    rank.gather()
    rank.plugin.call("destroyContext", context)
    rank.plugin.call("closeColl", collective)
    return {"code": code, "warnings": rank.plugin.warnings(), "alive": rank.alive()}


def cycles(rank: Rank) -> dict[str, Any]:
    """Twenty times everything: no file, no mapping and no memory is left."""
    fds, maps, peaks = [], [], []
    for _ in range(20):
        world = World(rank, num_contexts=1)
        world.wait(rank.put_signal(world.context, rank.next, (world.mr, 0), (world.mr, 8), 8, (world.signal_mr, 0)))
        world.signalled(0, 1)
        rank.gather()
        world.close()
        fds.append(num_fds())
        with open("/proc/self/maps") as lines:  # noqa: PTH123
            maps.append(sum("memfd:fake" in line for line in lines))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    return {"fds": fds, "maps": maps, "grown_kib": peaks[-1] - peaks[4], "threads": threads, "alive": rank.alive()}


if __name__ == "__main__":
    scenario, own, total, library, driver = sys.argv[1:]
    print(json.dumps({"result": globals()[scenario](Rank(int(own), int(total), library, driver))}), flush=True)
