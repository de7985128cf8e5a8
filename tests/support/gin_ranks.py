"""One rank of the GIN tests on GPUs, in a process of its own. Arguments: rank, ranks, nodes, port, what. Prints JSON lines."""

from __future__ import annotations

import faulthandler
import json
import statistics
import sys
import time
from datetime import timedelta
from types import ModuleType
from typing import Any

from msgspec import structs

LIMIT_S = 150.0
SETTLE_S = 40.0
BARRIERS = 100


def main() -> None:
    """All of `what`: selftest, speed or lonely."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    rank, size, nodes, port = map(int, sys.argv[1:5])
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank % torch.cuda.device_count())
    limit = timedelta(seconds=60)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=limit)
    world = GpuWorld(torch, rank, size, nodes)
    tell(kind="layout", lsa=world.comm.lsa_size, types=list(world.comm.comm.properties.gin_types))
    {"selftest": selftest, "speed": speed, "lonely": lonely}[sys.argv[5]](world)
    world.comm.close()
    dist.destroy_process_group()
    tell(kind="end")


def tell(**entry: Any) -> None:  # noqa: ANN401
    """One line for the test."""
    print(json.dumps(entry), flush=True)


class GpuWorld:
    """What the op needs of a World."""

    tier = "gpu"

    def __init__(self, torch: ModuleType, rank: int, size: int, nodes: int) -> None:
        import torch.distributed as dist

        from epctl.comm.control import GroupControl
        from epctl.comm.domain import Domain
        from epctl.core.op import Layout

        self.torch, self.rank, self.size, self.group = torch, rank, size, dist.group.WORLD
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.comm = Domain(GroupControl(self.group), rank, size, self.device.index, timeout_s=10.0)
        gpus = min(size, torch.cuda.device_count())
        self.layout = Layout(("here",), size, size, gpus, nodes, size // nodes, "gpu", emulated=True, gin_type="proxy")

    def barrier(self) -> None:
        """Of the hosts: the test looks at kernels one by one."""
        import torch.distributed as dist

        settle(self)
        dist.barrier(self.group)

    def generator(self, seed: int) -> Any:  # noqa: ANN401
        return self.torch.Generator(self.device).manual_seed(seed)


def settle(world: GpuWorld) -> None:
    """Waits for this rank's GPU, not for ever."""
    event = world.torch.cuda.Event()
    event.record()
    begin = time.monotonic()
    while not event.query():
        if time.monotonic() - begin > SETTLE_S:
            raise SystemExit(f"rank {world.rank}: the GPU has not settled in {SETTLE_S:g} s")
        time.sleep(1e-4)


def once(world: GpuWorld, running: Any) -> Any:  # noqa: ANN401 - Outcome
    """A run of all ranks, and what this rank's check says."""
    world.barrier()
    running.run()
    world.barrier()
    outcome = running.check()
    world.barrier()
    return outcome


def selftest(world: GpuWorld) -> None:
    """Each case, each damage of it, and well again; then the barrier of the world."""
    from epctl.ops.gin import OP, gpu

    for case in OP.selftest_cases(world.layout, int(time.time()) // 60, "gpu"):
        running = gpu.make(case, world)  # type: ignore[arg-type]
        outcomes = [("run", once(world, running))]
        for kind in OP.corruptions(case) if case.whole("bytes") <= 1000 else ():
            running.corrupt(kind)
            outcomes += [(kind, once(world, running)), ("again", once(world, running))]
        taken = running.measured_us()
        running.close()
        told = [[name, one.ok, one.message] for name, one in outcomes]
        tell(kind="case", name=case.name, outcomes=told, us=taken)
    barrier(world)


def barrier(world: GpuWorld) -> None:
    """Every rank leaves the n-th barrier after all have entered it: each adds to its own page before, and none sees too little."""
    from epctl.ops.gin import gpu

    shared = gpu._shared[world.comm]
    begin = time.perf_counter()
    for _ in range(BARRIERS):
        shared.gin.barrier()
    settle(world)
    taken = (time.perf_counter() - begin) / BARRIERS * 1e6
    world.comm.check()
    tell(kind="barrier", us=taken, contexts=shared.gin.num_contexts, connections=shared.gin.num_connections)
    delayed(world, shared.gin)


def delayed(world: GpuWorld, gin: Any) -> None:  # noqa: ANN401 - GinDomain
    """The last rank comes half a second late: nobody leaves before."""
    world.barrier()
    if world.rank == world.size - 1:
        time.sleep(0.5)
    begin = time.perf_counter()
    gin.barrier()
    settle(world)
    tell(kind="delayed", seconds=time.perf_counter() - begin, is_late=world.rank == world.size - 1)


def speed(world: GpuWorld) -> None:
    """Figures to look at; over the loopback plugin they are no figures of a network."""
    from epctl.ops.gin import cases, gpu

    for kind, size, more in (
        (cases.ROUND_TRIP, 0, {"messages": 20}),
        (cases.ROUND_TRIP, 8, {"messages": 20}),
        (cases.ROUND_TRIP, 1 << 20, {"messages": 10}),
        (cases.PUT, 64 << 20, {"messages": 4}),
        (cases.PUT, 1 << 20, {"messages": 16, "contexts": 4}),
        (cases.GET, 64 << 20, {"messages": 4}),
        (cases.PUT_SIGNAL, 8, {"messages": 64}),
        (cases.SIGNAL, 0, {"messages": 64, "strong": False}),
    ):
        case = cases.make(kind, size, **more)  # type: ignore[arg-type]
        running = gpu.make(case, world)  # type: ignore[arg-type]
        samples = []
        for _ in range(3):
            world.barrier()
            running.run()
            world.barrier()
            samples.append(running.measured_us() or 0.0)
        ok = running.check().ok
        world.barrier()
        running.close()
        tell(kind="speed", name=case.name, us=statistics.median(samples), ok=ok)


def lonely(world: GpuWorld) -> None:
    """Rank 0 waits in a barrier that the others never enter: it ends by itself and names one of them."""
    from epctl.comm.gin import GinDomain
    from epctl.native.communicator import GinWish

    gin = GinDomain(world.comm, GinWish(num_contexts=1, num_signals=1))
    limits = world.comm.limits(1.0)
    if world.rank == 0:
        where, image = gin._where, gin.image
        gin._kernels["epctl_gin_barrier"].launch(1, gin.stream(), where.pack(image, 1, limits))
    begin = time.perf_counter()
    settle(world)
    told = world.comm.timeout()
    world.barrier()
    tell(kind="lonely", seconds=time.perf_counter() - begin, told="" if told is None else str(structs.replace(told)))


if __name__ == "__main__":
    main()
