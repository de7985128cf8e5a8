"""The link op without a GPU: the same rows and signals in plain PyTorch over gloo."""

from __future__ import annotations

import threading
import time

from epctl.core.errors import EpctlError
from epctl.core.op import Case, Corruption, Outcome, Running, World
from epctl.ops.bits import compare
from epctl.ops.link.cases import LOCAL, ROUND_TRIP
from epctl.ops.link.roles import STALE, WRONG_BIT, Tensor, added, expected, payload, roles, wrong_byte

SIGNAL_S = 5.0
LOST_SIGNAL_S = 0.3
"""How long a side waits for the signal that the self-test drops."""
LATE_S = 10.0


def make(case: Case, world: World) -> Running:
    """The case on this rank."""
    kind = case.word("kind")
    if kind == ROUND_TRIP:
        return _RoundTrip(case, world)
    return _Local(case, world) if kind in LOCAL else _Move(case, world)


class _Move:
    """Rows to and from other ranks."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self._world = case, world
        self._roles = roles(case, world.layout, world.rank)
        torch, num_bytes = world.torch, case.whole("bytes")
        self._outbox = payload(world, case, "rows", world.rank)
        self._inbox = torch.full((num_bytes,), STALE, dtype=torch.uint8)
        self._addend = payload(world, case, "addend", world.rank) if case.word("kind") == "pull-add" else None
        self._damaged = False

    def run(self) -> None:
        outbox = self._damage(self._outbox)
        if self._case.whole("bytes") == 0:
            return
        import torch.distributed as dist

        pending, arrived = [], self._world.torch.empty_like(self._inbox)
        if self._roles.receives_from is not None:
            pending.append(dist.irecv(arrived, self._roles.receives_from, group=self._world.group))
        if self._roles.sends_to is not None:
            pending.append(dist.isend(outbox, self._roles.sends_to, group=self._world.group))
        for work in pending:
            if work is not None:
                work.wait()
        if self._roles.receives_from is not None:
            self._inbox.copy_(arrived if self._addend is None else added(self._world, arrived, self._addend))

    def _damage(self, outbox: Tensor) -> Tensor:
        """What is sent: with one wrong byte after `corrupt`, of the first rank that sends."""
        sender = self._case.params.get("source", 0)
        if not self._damaged or self._world.rank != sender:
            return outbox
        outbox = outbox.clone()
        outbox[wrong_byte(outbox.numel())] ^= WRONG_BIT
        return outbox

    def check(self) -> Outcome:
        self._damaged = False
        source = self._roles.receives_from
        if source is None:
            return compare(self._inbox, self._world.torch.full_like(self._inbox, STALE), "memory that nobody writes to")
        outcome = compare(self._inbox, expected(self._world, self._case, source), f"what rank {source} sent")
        self._inbox.fill_(STALE)
        return outcome

    def corrupt(self, kind: Corruption) -> None:
        if kind != "byte":
            raise ValueError(kind)
        self._damaged = True

    def measured_us(self) -> float | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class _Local:
    """Copies, reads and writes within a rank's own memory."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self._world = case, world
        self._source = payload(world, case, "rows", world.rank)
        self._target = world.torch.full_like(self._source, STALE)
        self._sum = 0
        self._damaged = False

    def run(self) -> None:
        torch, source = self._world.torch, self._source
        if self._damaged and self._world.rank == 0:
            source = source.clone()
            source[wrong_byte(source.numel())] ^= WRONG_BIT
        kind = self._case.word("kind")
        if kind == "sm-read":
            self._sum = int(source.view(torch.int32).sum(dtype=torch.int64))
        else:
            self._target.copy_(source)

    def check(self) -> Outcome:
        self._damaged = False
        wanted = payload(self._world, self._case, "rows", self._world.rank)
        if self._case.word("kind") != "sm-read":
            outcome = compare(self._target, wanted, "local memory")
            self._target.fill_(STALE)
            return outcome
        words = wanted.view(self._world.torch.int32)
        total = sum(int(part.sum(dtype=self._world.torch.int64)) for part in words.split(4096))
        found, self._sum = self._sum, 0
        same = found == total
        return Outcome(same, "" if same else f"the sum of what was read is {found} and should be {total}")

    def corrupt(self, kind: Corruption) -> None:
        if kind != "byte":
            raise ValueError(kind)
        self._damaged = True

    def measured_us(self) -> float | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class _RoundTrip:
    """Rank `source` signals, rank `target` answers, as often as the case says; a signal is a number that grows."""

    def __init__(self, case: Case, world: World) -> None:
        self._world, self._rounds = world, case.whole("rounds")
        source, target = case.whole("source"), case.whole("target")
        self._peer = {source: target, target: source}.get(world.rank)
        self._serves = world.rank == source
        self._begin = 0
        self._drops = False
        self._problem = ""
        self._taken_us = 0.0
        self._waiting: threading.Thread | None = None

    def run(self) -> None:
        if self._peer is None:
            return
        begin = time.perf_counter()
        limit_s = LOST_SIGNAL_S if self._drops else SIGNAL_S
        for done in range(self._rounds):
            value = self._begin + done + 1
            if self._serves:
                self._send(value)
            if not self._receive(value, done, limit_s):
                return
            last = done + 1 == self._rounds
            if not self._serves and not (self._drops and last):
                self._send(value)
        self._taken_us = (time.perf_counter() - begin) * 1e6 / max(1, self._rounds)

    def _send(self, value: int) -> None:
        import torch.distributed as dist

        tensor = self._world.torch.tensor([value], dtype=self._world.torch.int64)
        dist.send(tensor, self._peer, group=self._world.group)

    def _receive(self, value: int, done: int, limit_s: float) -> bool:
        """In a thread: gloo has no limit for one message that leaves its connection usable."""
        import torch.distributed as dist

        tensor = self._world.torch.zeros(1, dtype=self._world.torch.int64)
        failed: list[str] = []

        def receive() -> None:
            try:
                dist.recv(tensor, self._peer, group=self._world.group)
            except (RuntimeError, ValueError) as error:
                failed.append(str(error).splitlines()[0])

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        thread.join(limit_s)
        rank, peer = self._world.rank, self._peer
        if thread.is_alive():
            self._waiting = thread
            self._problem = f"rank {rank} waited {limit_s:g} s for rank {peer}'s signal, after {done} rounds"
        elif failed:
            self._problem = f"rank {rank} could not receive from rank {peer}: {failed[0]}"
        elif int(tensor[0]) != value:
            self._problem = f"rank {peer}'s signal is {int(tensor[0])} and should be {value}, after {done} rounds"
        return not self._problem

    def check(self) -> Outcome:
        """Gives the dropped signal late, so that nobody waits for it any more."""
        if self._drops and self._peer is not None and not self._serves:
            self._send(self._begin + self._rounds)
        if self._waiting is not None:
            self._waiting.join(LATE_S)
            if self._waiting.is_alive():
                raise EpctlError(self._problem, "it has not come later, either", "run it once more", exit_code=1)
        self._begin += self._rounds
        self._drops, self._waiting = False, None
        problem, self._problem = self._problem, ""
        return Outcome(not problem, problem)

    def corrupt(self, kind: Corruption) -> None:
        if kind != "signal":
            raise ValueError(kind)
        self._drops = True

    def measured_us(self) -> float | None:
        return self._taken_us

    def close(self) -> None:
        """Nothing is held."""
