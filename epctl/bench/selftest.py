"""Runs ops against their references, after it was proved that the checks can fail."""

from __future__ import annotations

import fnmatch
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from epctl.bench.engine import checked, made
from epctl.bench.together import FailedError, RankFailure, Together, told
from epctl.core.errors import EpctlError
from epctl.core.op import CORRUPTIONS, Case, Corruption, Layout, Op, Tier, World

SCHEMA: dict[str, str | int] = {"name": "epctl.selftest", "version": 1}
NOTHING: Mapping[str, str] = {}
DAMAGE = {"byte": "one byte changed", "signal": "one signal dropped"}


class Proof(Struct, frozen=True):
    """Whether the checks of an op notice a damage."""

    op: str
    kind: Corruption
    case: str
    noticed: bool
    message: str
    """What the checks said, or why they prove nothing."""
    command: str


class Checked(Struct, frozen=True):
    """One case."""

    op: str
    case: str
    ok: bool
    seconds: float
    failures: tuple[RankFailure, ...] = ()
    command: str = ""
    """Runs this case alone."""


class Report(Struct, frozen=True):
    """All of one run of `epctl selftest`."""

    schema: dict[str, str | int]
    command: str
    epctl_version: str
    taken_at: str
    layout: Layout
    cautions: tuple[str, ...]
    seed: int
    proofs: tuple[Proof, ...]
    cases: tuple[Checked, ...]
    num_cases: int
    """As many were to be run; fewer were when checks could not be proved, or the run ended early."""
    complete: bool
    """False when the run ended before all cases had."""
    ok: bool = False
    """Whether everything ran, and well, under checks that were proved."""
    num_left: int = 0
    """Cases that the time budget left out; they are told, and no failure."""
    absent: dict[str, str] = {}
    """Ops without a case on this layout, and why."""
    ended_by: str = ""
    """What ended the run before all cases had."""


def passed(report: Report) -> bool:
    """What `ok` must be."""
    return (
        report.complete
        and 0 < len(report.cases) == report.num_cases - report.num_left
        and bool(report.proofs)
        and all(proof.noticed for proof in report.proofs)
        and all(case.ok for case in report.cases)
    )


def nothing_run(report: Report) -> bool:
    """The time budget was over before the first case: neither right nor wrong."""
    proved = bool(report.proofs) and all(proof.noticed for proof in report.proofs)
    return report.complete and proved and not report.cases and report.num_left > 0


class Reproduction(Struct, frozen=True):
    """What a command that repeats a case must say."""

    seed: int
    tier: Tier
    ranks: int | None
    """None when a launcher starts the ranks."""
    emulate_nodes: int | None
    num_stress: int = 0

    def command(self, op: str, case: str, *, drawn: bool = False) -> str:
        """One command for a shell. `drawn`: the case is one of the random ones."""
        words = ["epctl", "selftest", "--op", op, "--case", case, "--seed", str(self.seed), "--tier", self.tier]
        if self.num_stress and drawn:
            words += ["--stress"]
        if self.ranks is not None:
            words += ["--ranks", str(self.ranks)]
        if self.emulate_nodes is not None:
            words += ["--emulate-nodes", str(self.emulate_nodes)]
        return shlex.join(words)


def selected(cases: Sequence[Case], patterns: tuple[str, ...]) -> tuple[Case, ...]:
    """Cases whose name is one of the patterns, or that a pattern with * or ? fits; all without patterns."""
    return tuple(
        case
        for case in cases
        if not patterns or any(case.name == one or fnmatch.fnmatchcase(case.name, one) for one in patterns)
    )


def select_all(
    ops: tuple[Op, ...],
    found: Mapping[str, Sequence[Case]],
    patterns: tuple[str, ...],
    absent: Mapping[str, str] = NOTHING,
) -> dict[str, tuple[Case, ...]]:
    """The selected cases of each op. Raises EpctlError when there are none, for the reasons of `absent`, or when a pattern fits nothing:
    it is a mistake, not a run without failures."""
    names = [case.name for op in ops for case in found[op.name]]
    if not names:
        raise EpctlError(
            f"there is nothing to run for {', '.join(op.name for op in ops) or 'any op'}",
            "; ".join(f"{name}: {why}" for name, why in absent.items()) or "no op runs on this tier",
            "start more ranks (--ranks), ask for less, or open what is closed",
            exit_code=4,
        )
    for pattern in patterns:
        if not any(pattern == name or fnmatch.fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            raise EpctlError(
                f"--case {pattern!r} fits no case",
                f"there are {shown}",
                "give one of these, or a pattern with *",
            )
    return {op.name: selected(found[op.name], patterns) for op in ops}


def _unwatched(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class Selftest(Struct):
    """What the checks need beside the cases."""

    world: World
    together: Together
    again: Reproduction
    on_proof: Callable[[Proof], None]
    on_case: Callable[[Checked], None]
    stage: Callable[[str], AbstractContextManager[None]] = _unwatched
    """Entered for each proof and case, with its name."""
    budget_s: float = 0.0
    """No case is begun later than so long after the first; 0: no limit."""
    num_left: int = 0
    """Cases that it left out."""


def run(ops: tuple[Op, ...], chosen: dict[str, tuple[Case, ...]], test: Selftest) -> bool:
    """All chosen cases of all ops; the same on all ranks. An op whose checks notice no damage is left out: what they say means
    nothing. True when all went well, as far as the budget let it run."""
    begin, well = time.perf_counter(), True
    for op in ops:
        cases = chosen[op.name]
        if not cases:
            continue
        if not _proved(op, test):
            well = False
            continue
        for number, case in enumerate(cases):
            if _over(begin, test):
                test.num_left += len(cases) - number
                break
            with test.stage(f"{op.name} {case.name}"):
                done = check(op, case, test)
            test.on_case(done)
            well = well and done.ok
    return well


def _over(begin: float, test: Selftest) -> bool:
    """Whether the budget is spent, by the clock of rank 0."""
    if not test.budget_s:
        return False
    return test.together.all("time", time.perf_counter() - begin > test.budget_s, bool)[0]


def _proved(op: Op, test: Selftest) -> bool:
    """Damages a run in each way that a case of the op can be damaged, and sees whether its checks notice."""
    every = op.selftest_cases(test.world.layout, test.again.seed, test.world.tier)
    well = True
    for kind in CORRUPTIONS:
        case = next((case for case in every if kind in op.corruptions(case)), None)
        if case is None and kind == "signal":
            continue  # ranks that are alone have nobody to signal to
        with test.stage(f"{op.name}: proof of the checks, {DAMAGE[kind]}"):
            proof = prove(op, case, kind, test)
        test.on_proof(proof)
        well = well and proof.noticed
    return well


def prove(op: Op, case: Case | None, kind: Corruption, test: Selftest) -> Proof:
    """Runs the case whole, then damaged, then whole again: the checks must find nothing, the damage, and nothing."""
    if case is None:
        return Proof(
            op.name, kind, "", noticed=False, message="no case of the op can be damaged in this way", command=""
        )
    command = test.again.command(op.name, case.name)

    def proof(*, noticed: bool, message: str) -> Proof:
        return Proof(op.name, kind, case.name, noticed=noticed, message=message, command=command)

    world, together = test.world, test.together
    try:
        with made(op, case, world, together) as running:
            before = checked(running, world, together, case.name)
            if before:
                return proof(noticed=False, message=f"a run without damage fails already: {told(before)}")
            together.step("damage", lambda: running.corrupt(kind))
            found = checked(running, world, together, case.name)
            if not found:
                return proof(noticed=False, message="the checks passed a run that was damaged on purpose")
            after = checked(running, world, together, case.name)
            if after:
                return proof(noticed=False, message=f"the run after the damaged one fails, too: {told(after)}")
            return proof(noticed=True, message=told(found))
    except FailedError as error:
        return proof(noticed=False, message=f"the proof could not be run: {error}")


def check(op: Op, case: Case, test: Selftest) -> Checked:
    """One case, twice without a pause: what the first run leaves behind must not help or harm the second."""
    begin = time.perf_counter()
    failures: tuple[RankFailure, ...] = ()
    try:
        with made(op, case, test.world, test.together) as running:
            for _ in range(2):
                failures = failures or checked(running, test.world, test.together, case.name)
    except FailedError as error:
        failures = tuple(RankFailure(one.rank, f"{error.what}: {one.message}") for one in error.failures)
    command = test.again.command(op.name, case.name, drawn=True) if failures else ""
    return Checked(op.name, case.name, not failures, round(time.perf_counter() - begin, 4), failures, command)
