"""How long each rank waits for each other one in a call."""

from __future__ import annotations

from typing import Any, Protocol

from epctl.core.op import World

NUM_CALLS = 20


class Call(Protocol):
    """A call of the buffer's that tells its waits."""

    def __call__(self, *, waited_ns: Any) -> Any:  # noqa: ANN401 - a tensor, a tuple
        """`waited_ns`: int64 [R]."""


def measured(world: World, call: Call) -> tuple[float, ...]:
    """Mean µs for which this rank waited for each, by rank, over calls that all ranks began together. Not part of what is timed: the
    kernel's own clock is read."""
    torch = world.torch
    each = torch.zeros((NUM_CALLS, world.size), dtype=torch.int64, device=world.device)
    for number in range(NUM_CALLS):
        world.barrier()
        call(waited_ns=each[number])
    means = each.double().mean(0) / 1e3
    return tuple(round(float(one), 3) for one in means.tolist())
