"""The GIN op without a GPU: the same messages and signals in plain PyTorch over gloo. A signal is a counter, sent behind the data."""

from __future__ import annotations

import time

from epctl.core.op import Case, Corruption, Outcome, Running, World
from epctl.ops.bits import compare
from epctl.ops.gin import cases
from epctl.ops.gin.roles import (
    STALE,
    WRONG_BIT,
    Tensor,
    expected,
    num_signals,
    outbox,
    roles,
    step_of,
    wrong_byte,
)


def make(case: Case, world: World) -> Running:
    """The case on this rank."""
    return _Gin(case, world)


class _Gin:
    """All contexts of a run in one message each way."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self._world = case, world
        self._roles = roles(case, world.layout, world.rank)
        self._outbox = outbox(world, case, world.rank)
        self._inbox = world.torch.full_like(self._outbox, STALE)
        self._stands = 0
        self._wanted = 0
        self._damaged: Corruption | None = None
        self._taken_us = 0.0

    def run(self) -> None:
        begin = time.perf_counter()
        if self._roles.takes_part:
            self._run()
        self._taken_us = (time.perf_counter() - begin) * 1e6

    def _run(self) -> None:
        self._wanted += num_signals(self._case) * step_of(self._case)
        if self._case.word("kind") != cases.ROUND_TRIP:
            self._exchange(self._sent(), self._given())
            return
        for done in range(self._case.whole("messages")):
            is_last = done + 1 == self._case.whole("messages")
            given = self._given() - num_signals(self._case) + 1 if is_last else 1
            if self._roles.serves:
                self._send(self._sent(), given)
                self._receive()
            else:
                self._receive()
                self._send(self._sent(), given)

    def _given(self) -> int:
        """What the signals of a run add up to: one less when one is dropped."""
        return (num_signals(self._case) - (self._damaged == "signal")) * step_of(self._case)

    def _sent(self) -> Tensor:
        if self._damaged != "byte" or self._world.rank != 0:
            return self._outbox
        changed = self._outbox.clone()
        changed[wrong_byte(self._case)] ^= WRONG_BIT
        return changed

    def _exchange(self, data: Tensor, given: int) -> None:
        """A get is a put of the other rank."""
        import torch.distributed as dist

        is_get = self._case.word("kind") == cases.GET
        target, source = self._roles.to, self._roles.sender
        if is_get:
            target, source = source, target
        arrived, count = self._empty(), self._count(0)
        group = self._world.group
        work = [dist.isend(self._count(given), target, group=group), dist.irecv(count, source, group=group)]
        if data.numel():
            work += [dist.isend(data, target, group=group, tag=1), dist.irecv(arrived, source, group=group, tag=1)]
        for one in work:
            if one is not None:
                one.wait()
        self._take(arrived, count)

    def _send(self, data: Tensor, given: int) -> None:
        import torch.distributed as dist

        if data.numel():
            dist.send(data, self._roles.to, group=self._world.group, tag=1)
        dist.send(self._count(given), self._roles.to, group=self._world.group)

    def _receive(self) -> None:
        import torch.distributed as dist

        arrived, count = self._empty(), self._count(0)
        if arrived.numel():
            dist.recv(arrived, self._roles.sender, group=self._world.group, tag=1)
        dist.recv(count, self._roles.sender, group=self._world.group)
        self._take(arrived, count)

    def _empty(self) -> Tensor:
        return self._world.torch.empty_like(self._outbox)

    def _count(self, value: int) -> Tensor:
        return self._world.torch.tensor([value], dtype=self._world.torch.int64)

    def _take(self, arrived: Tensor, count: Tensor) -> None:
        if arrived.numel():
            slots, size = cases.slot_bytes(self._case), self._case.whole("bytes")
            self._inbox.view(-1, slots)[:, :size] = arrived.view(-1, slots)[:, :size]
        self._stands += int(count[0])

    def check(self) -> Outcome:
        stands, wanted = self._stands, self._wanted
        self._stands = self._wanted = 0
        self._damaged = None
        if stands != wanted:
            text = f"the signal of rank {self._roles.sender} stands at {stands} and should be at {wanted}"
            return Outcome(ok=False, message=text)
        outcome = compare(self._inbox, expected(self._world, self._case, self._roles), "the inbox")
        self._inbox.fill_(STALE)
        return outcome

    def corrupt(self, kind: Corruption) -> None:
        self._damaged = kind

    def measured_us(self) -> float | None:
        """Of one message, as on a GPU."""
        return self._taken_us / self._case.whole("messages")

    def close(self) -> None:
        """Nothing is held."""
