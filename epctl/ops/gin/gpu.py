"""The GIN op on GPUs: kernels that put, get and signal over NCCL's device API, one context for each block."""

from __future__ import annotations

from epctl.comm.domain import Domain, of_world
from epctl.comm.gin import GinDomain
from epctl.comm.wait_record import WaitRecord
from epctl.core.errors import EpctlError
from epctl.core.op import Case, Corruption, Outcome, Running, Told, World
from epctl.core.views.gates import Gate
from epctl.native.communicator import GinWish
from epctl.native.gin_args import GinArgs, GinFlag
from epctl.ops.bits import compare
from epctl.ops.gin import carriers, cases
from epctl.ops.gin.roles import STALE, WRONG_BIT, expected, num_signals, outbox, roles, step_of, wrong_byte

SIGNAL_S = 10.0
LOST_SIGNAL_S = 0.5
"""How long a context waits for the signal that the self-test drops."""
GUARD_BYTES = 4096
NUM_SIGNALS = 16
KERNELS = {
    cases.PUT: "epctl_gin_put",
    cases.PUT_SIGNAL: "epctl_gin_put_signal",
    cases.GET: "epctl_gin_get",
    cases.SIGNAL: "epctl_gin_signal",
    cases.ROUND_TRIP: "epctl_gin_ping_pong",
}


class Counter:
    """A signal, and where it stands at this rank in each of the contexts that share its use."""

    def __init__(self, signal: int) -> None:
        self.signal = signal
        self.stands = 0


class Shared:
    """GIN of a domain, and its signals: those with another number of contexts, or that add, are others."""

    def __init__(self, domain: Domain, node_gates: tuple[Gate, ...]) -> None:
        self.gin = GinDomain(domain, GinWish(num_contexts=cases.MAX_CONTEXTS, num_signals=NUM_SIGNALS), node_gates)
        self._counters: dict[tuple[int, bool], Counter] = {}

    def counter(self, contexts: int, *, adds: bool) -> Counter:
        """The same for equal uses; all ranks ask in the same order."""
        return self._counters.setdefault((contexts, adds), Counter(len(self._counters)))


_shared: dict[Domain, Shared] = {}
"""Until the process ends: a rank has one world. NCCL's objects go with the domain's communicator."""


def make(case: Case, world: World) -> Running:
    """The case on this rank. Raises EpctlError with exit code 4, gate by gate, where there is no GIN."""
    domain = of_world(world)
    if domain not in _shared:
        _shared[domain] = Shared(domain, getattr(world, "gin_gates", ()))
    return _Gin(case, world, _shared[domain])


class _Gin:
    """Symmetric memory holds the outbox, a guard, the inbox and a guard."""

    def __init__(self, case: Case, world: World, shared: Shared) -> None:
        self._case, self._world, self._gin = case, world, shared.gin
        self._contexts = case.whole("contexts")
        if self._contexts > self._gin.num_contexts:
            raise EpctlError(
                f"NCCL gives {self._gin.num_contexts} GIN contexts",
                f"{case.name} uses {self._contexts}",
                "run the cases with fewer contexts",
                exit_code=4,
            )
        self._roles = roles(case, world.layout, world.rank)
        self._counter = shared.counter(self._contexts, adds=case.params.get("adds") is True)
        region = cases.region_bytes(case)
        self._at = region + GUARD_BYTES
        self._memory = self._gin.domain.symmetric(2 * self._at)
        whole = self._memory.bytes_tensor()
        whole.fill_(STALE)
        self._outbox = whole[:region]
        self._outbox.copy_(outbox(world, case, world.rank))
        self._inbox = whole[self._at : self._at + region]
        self._guards = (whole[region : self._at], whole[self._at + region : 2 * self._at])
        self._record = WaitRecord(world.device)
        torch = world.torch
        self._elapsed = torch.full((self._contexts,), -1, dtype=torch.int64, device=world.device)
        self._drops = self._flipped = False
        self._sent_bytes = 0
        self._counters = carriers.read()

    def run(self) -> None:
        if not self._roles.takes_part:
            return
        self._elapsed.fill_(-1)
        self._gin.launch(KERNELS[self._case.word("kind")], self._contexts, self._args())
        self._sent_bytes += self._case.whole("bytes") * self._case.whole("messages") * self._contexts
        self._counter.stands += (num_signals(self._case) - self._drops) * step_of(self._case)

    def _args(self) -> GinArgs:
        case = self._case
        return GinArgs(
            window=self._memory.window,
            elapsed_ns=int(self._elapsed.data_ptr()),
            to=self._roles.to,
            sender=self._roles.sender,
            limits=self._record.limits(LOST_SIGNAL_S if self._drops else SIGNAL_S, self._world.rank),
            target_offset=self._at,
            num_bytes=case.whole("bytes"),
            slot_bytes=cases.slot_bytes(case),
            num_slots=cases.num_slots(case),
            num_messages=case.whole("messages"),
            num_expected=num_signals(case),
            begin=self._counter.stands,
            value=step_of(case),
            signal=self._counter.signal,
            flags=self._flags(),
            batch=cases.BATCH,
        )

    def _flags(self) -> GinFlag:
        chosen = {
            GinFlag.STRONG: self._case.params.get("strong") is True,
            GinFlag.ADD: self._case.params.get("adds") is True,
            GinFlag.SERVES: self._roles.serves,
            GinFlag.DROP: self._drops,
        }
        flags = GinFlag(0)
        for flag, is_set in chosen.items():
            flags |= flag if is_set else GinFlag(0)
        return flags

    def check(self) -> Outcome:
        outcome = self._outcome()
        self._flip(on=False)
        self._drops = False
        self._record.clear()
        self._inbox.fill_(STALE)
        return outcome

    def _outcome(self) -> Outcome:
        told = self._record.timeout()
        if told is not None:
            return Outcome(ok=False, message=str(told))
        if self._roles.takes_part and bool((self._elapsed < 0).any()):
            return Outcome(ok=False, message="a context did not end")
        for guard in self._guards:
            outcome = compare(guard, self._world.torch.full_like(guard, STALE), "the memory beside the inbox")
            if not outcome.ok:
                return outcome
        return compare(self._inbox, expected(self._world, self._case, self._roles), "the inbox")

    def corrupt(self, kind: Corruption) -> None:
        if kind == "signal":
            self._drops = True
        else:
            self._flip(on=self._world.rank == 0)

    def _flip(self, *, on: bool) -> None:
        """Now, and not in the run: a peer that reads starts its run at the same time."""
        if on != self._flipped:
            self._outbox[wrong_byte(self._case)] ^= WRONG_BIT
            self._flipped = on

    def measured_us(self) -> float | None:
        """Of one message of each context, or of one round; the slowest context counts. Ranks that are idle take no time."""
        if not self._roles.takes_part:
            return 0.0
        elapsed = [int(one) for one in self._elapsed.tolist()]
        if min(elapsed) < 0:
            told = self._record.timeout()
            raise EpctlError(
                str(told) if told is not None else f"{self._case.name} has not ended",
                "the peer's kernel did not run in time, or its signal was lost",
                "run it once more with NCCL_DEBUG=INFO; epctl doctor runs the GIN canary",
                exit_code=1,
            )
        return max(elapsed) / 1e3 / self._case.whole("messages")

    def carried_by(self) -> tuple[str, ...]:
        """The adapters of this rank's node that sent its messages, by the ports' counters; none over the loopback plugin."""
        return carriers.carried(self._counters, carriers.read(), self._sent_bytes)

    def told(self) -> Told:
        """After the samples."""
        return Told(carried_by=self.carried_by())

    def close(self) -> None:
        self._gin.domain.release(self._memory)
