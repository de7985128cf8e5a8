# ruff: noqa: ARG002 - an op is told more than a toy wants to know
"""An op that adds one to each byte, in ways that are right or wrong on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from epctl.core.errors import EpctlError
from epctl.core.op import Case, Corruption, Hardware, Layout, Limit, Outcome, Request, Running, Tier, Traffic, World

SOUND = "sound"
BLIND = "blind"
"""Its check passes everything."""
DEAF = "deaf"
"""Its check does not look at signals."""
STUCK = "stuck"
"""What was damaged once stays so."""
WRONG = "wrong"
REFUSES = "refuses"
BREAKS = "breaks"
NUM_BYTES = 64


class Toy:
    """See Op; `manner` is one of the names above, or that of a case that alone is of that manner."""

    name = "toy"
    summary = "adds one"
    tiers: tuple[Tier, ...] = ("cpu",)

    def __init__(self, manner: str = SOUND, kinds: tuple[Corruption, ...] = ("byte", "signal")) -> None:
        self.manner, self.kinds = manner, kinds
        self.closed = 0
        """Cases that were given back."""

    def cases(self, request: Request, layout: Layout) -> Sequence[Case]:
        return tuple(Case(f"add/{size}", {"bytes": size}) for size in request.sizes or (NUM_BYTES,))

    def selftest_cases(self, layout: Layout, seed: int, tier: Tier) -> Sequence[Case]:
        return tuple(Case(f"add/{size}", {"bytes": size, "seed": seed}) for size in (NUM_BYTES, 3 * NUM_BYTES))

    def corruptions(self, case: Case) -> tuple[Corruption, ...]:
        return self.kinds

    def traffic(self, case: Case, layout: Layout) -> Traffic:
        return Traffic(hbm_bytes=case.whole("bytes"))

    def limit(self, case: Case, layout: Layout, hardware: Hardware) -> Limit | None:
        return Limit(2.0, "gbs", "toy memory", "made up")

    def predict(self, case: Case, layout: Layout, hardware: Hardware) -> float | None:
        return 1.0

    def make(self, case: Case, world: World) -> Running:
        if self.manner == REFUSES and world.rank == world.size - 1:
            raise EpctlError("no room", "the toy box is full", "tidy up")
        return _Running(self, case, world)


class _Running:
    def __init__(self, op: Toy, case: Case, world: World) -> None:
        self._op, self._world = op, world
        self._bytes = bytearray(case.whole("bytes"))
        self._signal = 0
        self._kind: Corruption | None = None
        self._runs = 0

    def run(self) -> None:
        if self._op.manner == BREAKS and self._world.rank == 0:
            raise RuntimeError("CUDA error: an illegal memory access\nmore lines")
        self._runs += 1
        self._bytes = bytearray(byte + 1 for byte in bytearray(len(self._bytes)))
        if self._kind == "byte" or self._op.manner == WRONG:
            self._bytes[5] ^= 2
        self._signal = self._runs - (self._kind == "signal")
        if self._op.manner != STUCK:
            self._kind = None

    def check(self) -> Outcome:
        if self._op.manner == BLIND:
            return Outcome(ok=True)
        if any(byte != 1 for byte in self._bytes):
            return Outcome(ok=False, message="a byte is wrong", first_difference="byte 5")
        if self._signal != self._runs and self._op.manner != DEAF:
            return Outcome(ok=False, message="a signal is missing")
        return Outcome(ok=True)

    def corrupt(self, kind: Corruption) -> None:
        if self._world.rank == 0:
            self._kind = kind

    def measured_us(self) -> float | None:
        return float(self._runs)

    def close(self) -> None:
        self._op.closed += 1
