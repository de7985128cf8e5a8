"""What each rank does for `epctl bench` and `epctl selftest`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from epctl import ops
from epctl.bench import clocks, engine, nominal, timing, worlds
from epctl.bench import selftest as checks
from epctl.bench.clocks import Clocks, RankClocks
from epctl.bench.engine import Bench
from epctl.bench.job import CASE, END, HEADER, PROOF, ROW, Job
from epctl.bench.record import Row, mattering, versions
from epctl.bench.rivals import with_ratios
from epctl.bench.selftest import Reproduction, Selftest
from epctl.bench.together import Together
from epctl.core.errors import CommonError, EpctlError
from epctl.core.op import Case, Op, World
from epctl.core.op_extras import Doubted, Explains, Opinion, Stressed
from epctl.ranks.rank import Rank

OPEN_S = 300.0
"""NCCL's first communicator, and compiling what it needs."""
CASE_S = 240.0
"""For one case beside its budget: its kernels may have to be compiled."""
OPINION_S = 120.0


def bench(rank: Rank, request: dict[str, Any]) -> None:
    """Times the cases of the job."""
    job = msgspec.convert(request, Job)
    with ExitStack() as stack:
        world = _open(rank, job, stack)
        chosen_ops = _ops(job)
        with _alike():
            found = {op.name: tuple(op.cases(job.request, world.layout)) for op in chosen_ops}
        chosen = _chosen(rank, world, chosen_ops, found, job)
        uuid, num_sms = _identity(world)
        before = clocks.read(uuid) if uuid else Clocks()
        tools = Bench(
            world, Together(rank.meeting), timing.timer(world), nominal.hardware(world.layout, num_sms), job.rule
        )
        rows: list[Row] = []
        for op in chosen_ops:
            for case in chosen[op.name]:
                with rank.stage(f"{op.name} {case.name}", CASE_S + job.rule.budget_s):
                    row = with_ratios(engine.measure(op, case, tools), rows)
                rows.append(row)
                _tell(rank, ROW, row=row)
        after = clocks.read(uuid) if uuid else Clocks()
        every = tools.together.all("clocks", RankClocks(world.rank, uuid, before, after), RankClocks)
        every = [one for one in every if one.uuid]
        told = clocks.warnings(every)
        layout = world.layout
        with rank.stage("second opinions", OPINION_S):
            opinions = _second_opinions(rank, world, [op for op in chosen_ops if chosen[op.name]])
            tools.together.all("second opinions", True, bool)
        _tell(
            rank,
            END,
            clocks=every,
            warnings=told,
            versions=versions(layout),
            environment=mattering(),
            opinions=opinions,
        )


def selftest(rank: Rank, request: dict[str, Any]) -> None:
    """Checks the cases of the job."""
    job = msgspec.convert(request, Job)
    with ExitStack() as stack:
        world = _open(rank, job, stack)
        chosen_ops = _ops(job) if not job.num_stress else _stressed(_ops(job), job)
        with _alike():
            found = {op.name: _selftest_cases(op, world, job) for op in chosen_ops}
        chosen = _chosen(rank, world, chosen_ops, found, job)
        again = Reproduction(job.seed, job.tier, job.ranks, job.emulate_nodes, job.num_stress)
        test = Selftest(
            world,
            Together(rank.meeting),
            again,
            lambda proof: _tell(rank, PROOF, proof=proof),
            lambda done: _tell(rank, CASE, case=done),
            lambda name: rank.stage(name, CASE_S),
            job.budget_s,
        )
        checks.run(chosen_ops, chosen, test)
        _tell(rank, END, done=True, num_left=test.num_left)


def _open(rank: Rank, job: Job, stack: ExitStack) -> World:
    with rank.stage("open the communicator", OPEN_S):
        return stack.enter_context(worlds.opened(rank, job))


def _ops(job: Job) -> tuple[Op, ...]:
    """Raises EpctlError when an op that was asked for does not run on this tier."""
    chosen = ops.select(job.ops)
    for op in chosen:
        if job.ops and job.tier not in op.tiers:
            raise CommonError(
                f"{op.name} does not run on the {job.tier} tier", f"it runs on {', '.join(op.tiers)}", "leave it out"
            )
    return tuple(op for op in chosen if job.tier in op.tiers)


def _stressed(chosen: tuple[Op, ...], job: Job) -> tuple[Op, ...]:
    """Those that can be. Raises EpctlError for one that was asked for and cannot."""
    for op in chosen:
        if job.ops and not isinstance(op, Stressed):
            raise CommonError(f"{op.name} has no random shapes", "--stress is for ops that have some", "leave it out")
    return tuple(op for op in chosen if isinstance(op, Stressed))


def _selftest_cases(op: Op, world: World, job: Job) -> tuple[Case, ...]:
    if job.num_stress and isinstance(op, Stressed):
        return tuple(op.stress_cases(world.layout, job.seed, job.tier, job.num_stress))
    return tuple(op.selftest_cases(world.layout, job.seed, job.tier))


@contextmanager
def _alike() -> Iterator[None]:
    """What is wrong with the request is the same on every rank."""
    try:
        yield
    except EpctlError as error:
        raise CommonError.of(error) from None


def _chosen(
    rank: Rank, world: World, chosen_ops: tuple[Op, ...], found: dict[str, tuple[Case, ...]], job: Job
) -> dict[str, tuple[Case, ...]]:
    """The cases that run, after the header was told. Raises EpctlError when there are none."""
    absent = {op.name: _why_none(op, world) for op in chosen_ops if not found[op.name]}
    with _alike():
        chosen = checks.select_all(chosen_ops, found, job.cases, absent)
    _tell(rank, HEADER, layout=world.layout, num_cases=sum(map(len, chosen.values())), absent=absent)
    return chosen


def _why_none(op: Op, world: World) -> str:
    told = op.absence(world.layout) if isinstance(op, Explains) else ""
    return told or "no case fits this number of ranks and this request"


def _second_opinions(rank: Rank, world: World, ran: list[Op]) -> tuple[Opinion, ...]:
    """Of rank 0's node, by rank 0, while the others wait."""
    if rank.placement.rank != 0:
        return ()
    return tuple(one for op in ran if isinstance(op, Doubted) for one in op.second_opinions(world.layout))


def _identity(world: World) -> tuple[str, int]:
    """NVML's name of the GPU, and its SMs; ('', 0) on the CPU."""
    if world.tier == "cpu":
        return "", 0
    found = world.torch.cuda.get_device_properties(world.device)
    return f"GPU-{found.uuid}", int(found.multi_processor_count)


def _tell(rank: Rank, kind: str, **fields: object) -> None:
    """Rank 0 speaks for all: what is told is the same everywhere."""
    if rank.placement.rank == 0:
        rank.emit(kind, **{name: msgspec.to_builtins(value) for name, value in fields.items()})
