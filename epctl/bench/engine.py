"""Times cases on all ranks: set up, compared with the reference, and only then measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from epctl.bench import timing
from epctl.bench.overlap import hidden_share
from epctl.bench.record import Row
from epctl.bench.statistics import ENOUGH, Rule, median
from epctl.bench.timing import Timer
from epctl.bench.together import FailedError, RankFailure, Together, told
from epctl.bench.verdict import Verdict, functional, judge
from epctl.core.op import Case, Hardware, Op, Outcome, Running, Tells, Told, Traffic, World


class Bench(Struct):
    """What timing needs beside the case."""

    world: World
    together: Together
    timer: Timer
    hardware: Hardware
    rule: Rule


class _Batch(Struct, frozen=True):
    samples_us: tuple[float, ...]
    spent_s: float


def checked(running: Running, world: World, together: Together, what: str) -> tuple[RankFailure, ...]:
    """Runs once and returns what the checks of all ranks found wrong. Raises FailedError when a rank cannot run or check."""

    def run() -> None:
        world.barrier()
        running.run()
        timing.settle(world, what)

    together.step("run", run)
    outcomes: list[Outcome] = []
    together.step("check", lambda: outcomes.append(running.check()))
    found = together.all("outcome", outcomes[0], Outcome)
    return tuple(RankFailure(rank, describe(one)) for rank, one in enumerate(found) if not one.ok)


def describe(outcome: Outcome) -> str:
    """An outcome that is not well, in one line."""
    where = f" ({outcome.first_difference})" if outcome.first_difference else ""
    return (outcome.message or "the check failed and does not say why") + where


@contextmanager
def made(op: Op, case: Case, world: World, together: Together) -> Iterator[Running]:
    """The case, set up on all ranks or on none. Raises FailedError."""
    mine: list[Running] = []
    try:
        together.step("set up", lambda: mine.append(op.make(case, world)))
        yield mine[0]
    finally:
        for running in mine:
            running.close()


def measure(op: Op, case: Case, bench: Bench) -> Row:
    """The row of one case; the same on all ranks."""
    try:
        with made(op, case, bench.world, bench.together) as running:
            failures = checked(running, bench.world, bench.together, case.name)
            if failures:
                return _failed(op, case, f"wrong result: {told(failures)}")
            bench.together.step("warm up", lambda: timing.warm_up(running, bench.world))
            return _timed(op, case, bench, running)
    except FailedError as error:
        return _failed(op, case, str(error))


def _failed(op: Op, case: Case, message: str) -> Row:
    return Row(op.name, case.name, case.params, ok=False, verdict=Verdict("failed", message), message=message)


def _timed(op: Op, case: Case, bench: Bench, running: Running) -> Row:
    slowest: list[float] = []
    by_rank: list[list[float]] = [[] for _ in range(bench.world.size)]
    spent_s = 0.0
    while count := bench.rule.next_batch(slowest, spent_s):
        batches = _batch(bench, running, count)
        for own, batch in zip(by_rank, batches, strict=True):
            own.extend(batch.samples_us)
        slowest += [max(of_ranks) for of_ranks in zip(*(batch.samples_us for batch in batches), strict=True)]
        spent_s += max(batch.spent_s for batch in batches)
    return row_of(op, case, bench, slowest, tuple(median(own).value for own in by_rank), _told(bench, running))


def _told(bench: Bench, running: Running) -> tuple[Told, ...]:
    """What the case tells of itself, by rank."""
    if not isinstance(running, Tells):
        return ()

    def tell() -> Told:
        found = running.told()
        timing.settle(bench.world, "what it tells")
        return found

    return tuple(bench.together.all("told", bench.together.step("tell", tell), Told))


def _batch(bench: Bench, running: Running, count: int) -> list[_Batch]:
    def take() -> _Batch:
        begin = time.perf_counter()
        return _Batch(tuple(bench.timer.take(running, count)), time.perf_counter() - begin)

    mine = bench.together.step("time", take)
    return bench.together.all("samples", mine, _Batch)


def row_of(
    op: Op,
    case: Case,
    bench: Bench,
    samples: list[float],
    rank_medians: tuple[float, ...],
    told: tuple[Told, ...] = (),
) -> Row:
    """The row of a case that was timed; `samples` of the slowest rank."""
    layout, hardware = bench.world.layout, bench.hardware
    found, traffic = median(samples), _traffic(op, case, bench, told)
    because = functional(layout)
    limit = op.limit(case, layout, hardware) if not because else None
    limit_us = limit.us(traffic) if limit is not None else None
    predicted_us = op.predict(case, layout, hardware) if not because else None
    num_bytes, logical = traffic.busiest_bytes(), max((one.logical_bytes for one in told), default=0)
    return Row(
        op=op.name,
        case=case.name,
        params=case.params,
        ok=True,
        verdict=judge(found.value, predicted_us, limit_us, functional_because=because),
        samples_us=tuple(samples),
        median_us=found.value,
        low_us=found.low,
        high_us=found.high,
        rank_medians_us=rank_medians,
        traffic=traffic,
        gbs=num_bytes / found.value / 1e3 if num_bytes and found.value > 0 else None,
        limit=limit,
        limit_us=limit_us,
        limit_share=limit_us / found.value if limit_us is not None and found.value > 0 else None,
        predicted_us=predicted_us,
        logical_gbs=logical / found.value / 1e3 if logical and found.value > 0 else None,
        hidden_share=hidden_share(told),
        told=told,
        settled=bool(bench.rule.num_samples) or found.width < ENOUGH,
    )


def _traffic(op: Op, case: Case, bench: Bench, told: tuple[Told, ...]) -> Traffic:
    """Of the busiest rank: as the ranks tell it, else as the op reckons it."""
    found = [one.traffic for one in told if one.traffic is not None]
    return max(found, key=Traffic.busiest_bytes) if found else op.traffic(case, bench.world.layout)
