"""The link op between GPUs of one load/store domain, in each other's symmetric memory."""

from __future__ import annotations

from epctl.comm.wait_record import WaitRecord
from epctl.core.errors import EpctlError
from epctl.core.op import Case, Corruption, Memory, Outcome, Running, World
from epctl.native.families import LINK
from epctl.native.link_args import LinkArgs, PingPongArgs
from epctl.ops import launcher
from epctl.ops.bits import compare
from epctl.ops.link import kernels
from epctl.ops.link.cases import ROUND_TRIP, WRITES
from epctl.ops.link.roles import STALE, WRONG_BIT, Tensor, expected, payload, roles, wrong_byte

GUARD_BYTES = 4096
"""Before and after the target; nobody may write there. Rows then begin at multiples of 128 bytes, which bulk copies are fastest with."""
WARP_THREADS = 32
SIGNAL_S = 5.0
LOST_SIGNAL_S = 0.3
"""How long a side waits for the signal that the self-test drops."""
FLAG_BYTES = 8


def make(case: Case, world: World) -> Running:
    """The case on this rank. Raises EpctlError where there is no peer."""
    if world.layout.scale_up < 2:
        raise EpctlError(
            "there is no other rank in the load/store domain", "NVLink joins two", "start more ranks", exit_code=4
        )
    return _RoundTrip(case, world) if case.word("kind") == ROUND_TRIP else _Move(case, world)


def _peer(memory: Memory, world: World, rank: int) -> int:
    """Memory of a rank of this domain; NCCL counts within the domain."""
    return memory.peer_address(rank % world.layout.scale_up)


class _Move:
    """Rows to the memory of a peer, or out of it. Symmetric memory holds the outbox, a guard, the inbox and a guard."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self._world = case, world
        self._roles = roles(case, world.layout, world.rank)
        num_bytes = case.whole("bytes")
        self._at = -(-num_bytes // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        kernel = kernels.prepare(case, world) if case.word("kind") in kernels.FUNCTIONS else None
        self._memory = world.symmetric(self._at + num_bytes + GUARD_BYTES)
        self._launch = kernel
        whole = self._memory.bytes_tensor()
        whole.fill_(STALE)
        self._outbox: Tensor = whole[:num_bytes]
        self._inbox: Tensor = whole[self._at : self._at + num_bytes]
        self._guards = (whole[self._at - GUARD_BYTES : self._at], whole[self._at + num_bytes :][:GUARD_BYTES])
        self._outbox.copy_(payload(world, case, "rows", world.rank))
        self._addend = payload(world, case, "addend", world.rank) if case.word("kind") == "pull-add" else None
        # Kept: asking NCCL for addresses takes microseconds.
        self._target, self._source = self._addresses() if self._roles.runs else (0, 0)
        self._damages = False

    def run(self) -> None:
        if self._roles.runs:
            self._go()

    def _go(self) -> None:
        if self._launch is None:
            launcher.copy(self._world, self._target, self._source, self._case.whole("bytes"))
            return
        addend = 0 if self._addend is None else int(self._addend.data_ptr())
        rows = kernels.num_rows(self._case)
        self._launch(LinkArgs(rows, target=self._target, source=self._source, addend=addend))

    def _addresses(self) -> tuple[int, int]:
        """(target, source) of what this rank moves."""
        mine, way = self._memory.address, self._roles
        if self._case.word("kind") in WRITES:
            if way.sends_to is None:
                raise ValueError("this rank sends nothing")
            return _peer(self._memory, self._world, way.sends_to) + self._at, mine
        if way.receives_from is None:
            raise ValueError("this rank receives nothing")
        return mine + self._at, _peer(self._memory, self._world, way.receives_from)

    def _flip(self) -> None:
        self._outbox[wrong_byte(self._outbox.numel())] ^= WRONG_BIT

    def check(self) -> Outcome:
        self._restore()
        for guard, where in zip(self._guards, ("before", "after"), strict=True):
            outcome = compare(guard, self._world.torch.full_like(guard, STALE), f"the memory {where} the rows")
            if not outcome.ok:
                return outcome
        source = self._roles.receives_from
        if source is None:
            wanted = self._world.torch.full_like(self._inbox, STALE)
            return compare(self._inbox, wanted, "memory that nobody writes to")
        outcome = compare(self._inbox, expected(self._world, self._case, source), f"what rank {source} sent")
        self._inbox.fill_(STALE)
        return outcome

    def _restore(self) -> None:
        if self._damages:
            self._flip()
        self._damages = False

    def corrupt(self, kind: Corruption) -> None:
        if kind != "byte":
            raise ValueError(kind)
        # Now, and not in the run: a peer that reads starts its run at the same time.
        self._damages = self._world.rank == self._case.params.get("source", 0)
        if self._damages:
            self._flip()

    def measured_us(self) -> float | None:
        return None

    def close(self) -> None:
        self._memory.close()


class _RoundTrip:
    """One thread on each of two GPUs; the kernel of the side that begins takes the time."""

    def __init__(self, case: Case, world: World) -> None:
        self._world, self._rounds = world, case.whole("rounds")
        source, target = case.whole("source"), case.whole("target")
        self._peer = {source: target, target: source}.get(world.rank)
        self._serves = world.rank == source
        self._kernel = launcher.launcher(world).kernel(LINK, LINK.variants[0], "epctl_link_ping_pong", WARP_THREADS)
        self._record = WaitRecord(world.device)
        self._elapsed = world.torch.full((1,), -1, dtype=world.torch.int64, device=world.device)
        self._memory = world.symmetric(FLAG_BYTES)
        self._flag = self._memory.bytes_tensor()[:FLAG_BYTES].view(world.torch.int64)
        self._begin = 0
        self._drops = False

    def run(self) -> None:
        if self._peer is None:
            return
        self._elapsed.fill_(-1)
        # The side that answers ends one round early: its last signal never comes.
        num_rounds = self._rounds - (1 if self._drops and not self._serves else 0)
        arguments = PingPongArgs(
            mine=self._memory.address,
            theirs=_peer(self._memory, self._world, self._peer),
            begin=self._begin,
            num_rounds=num_rounds,
            elapsed_ns=int(self._elapsed.data_ptr()),
            peer=self._peer,
            serves=self._serves,
            limits=self._record.limits(LOST_SIGNAL_S if self._drops else SIGNAL_S, self._world.rank),
        )
        self._kernel.launch(1, launcher.stream(self._world), arguments.pack())
        self._begin += self._rounds

    def check(self) -> Outcome:
        """Also puts the flag where the next run expects it, since the other side of a dropped signal has not."""
        outcome = self._outcome()
        self._drops = False
        self._record.clear()
        if self._peer is not None:
            self._flag.fill_(self._begin)
        return outcome

    def _outcome(self) -> Outcome:
        if self._peer is None:
            return Outcome(ok=True)
        told = self._record.timeout()
        if told is not None:
            return Outcome(ok=False, message=str(told))
        if int(self._flag) != self._begin:
            return Outcome(False, f"the flag stands at {int(self._flag)} and should be at {self._begin}")
        ended = int(self._elapsed) >= 0
        return Outcome(ended, "" if ended else "the kernel did not end its last round")

    def corrupt(self, kind: Corruption) -> None:
        if kind != "signal":
            raise ValueError(kind)
        self._drops = True

    def measured_us(self) -> float | None:
        """Of one round, after the GPU has settled; ranks that do not take part take no time."""
        if self._peer is None:
            return 0.0
        elapsed = int(self._elapsed)
        if elapsed < 0:
            told = self._record.timeout()
            raise EpctlError(
                str(told) if told is not None else "a round trip has not ended",
                "the peer's kernel did not run in time",
                "run it once more; look at the peer's GPU",
                exit_code=1,
            )
        return elapsed / 1e3 / self._rounds

    def close(self) -> None:
        self._memory.close()
