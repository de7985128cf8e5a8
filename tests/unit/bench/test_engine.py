from __future__ import annotations

import pytest

from epctl.bench import engine, timing
from epctl.bench.engine import Bench
from epctl.bench.record import Row, environment
from epctl.bench.statistics import Rule
from epctl.bench.together import FailedError, RankFailure, Together, told
from epctl.core.op import Case, Hardware, Limit, Traffic
from tests.support import toy_op
from tests.support.toy_op import Toy
from tests.support.worlds import ThreadWorld, layout, on_ranks


def tools(world: ThreadWorld, rule: Rule) -> Bench:
    return Bench(world, Together(world.meeting), timing.timer(world), Hardware(), rule)


def timed(op: Toy, ranks: int, rule: Rule) -> list[Row]:
    def work(world: ThreadWorld) -> Row:
        return engine.measure(op, Case("add/64", {"bytes": 64}), tools(world, rule))

    return on_ranks(ranks, work)


def test_a_row_is_the_same_on_all_ranks_and_counts_the_slowest() -> None:
    op = Toy()
    rows = timed(op, 3, Rule(num_samples=10))
    assert rows[0] == rows[1] == rows[2]
    # The toy says that run n takes n µs; one run was checked, three were warm-up.
    assert rows[0].samples_us == tuple(float(run) for run in range(5, 15))
    assert (rows[0].median_us, rows[0].low_us, rows[0].high_us) == (9.5, 6.0, 13.0)
    assert rows[0].rank_medians_us == (9.5, 9.5, 9.5)
    assert rows[0].gbs == pytest.approx(64 / 9.5 / 1e3)
    assert rows[0].settled
    assert op.closed == 3


def test_on_the_cpu_there_is_no_verdict_on_speed() -> None:
    row = timed(Toy(), 1, Rule(num_samples=6))[0]
    assert (row.verdict.word, row.limit, row.predicted_us, row.limit_share) == ("functional", None, None, None)


def test_a_wrong_result_is_not_timed() -> None:
    row = timed(Toy(toy_op.WRONG), 2, Rule(num_samples=6))[0]
    assert (row.ok, row.verdict.word, row.samples_us, row.median_us) == (False, "failed", (), None)
    assert row.message == "wrong result: ranks 0, 1: a byte is wrong (byte 5)"


def test_a_rank_that_cannot_run_makes_a_row_that_failed() -> None:
    rows = timed(Toy(toy_op.REFUSES), 2, Rule(num_samples=6))
    assert [row.message for row in rows] == ["set up: rank 1: no room (the toy box is full)"] * 2


def test_a_budget_that_is_over_is_told() -> None:
    row = timed(Toy(), 1, Rule(budget_s=1e-6))[0]
    assert len(row.samples_us) == 10
    assert not row.settled


def test_on_a_gpu_limit_and_plan_stand_beside() -> None:
    def work(world: ThreadWorld) -> Row:
        return engine.row_of(Toy(), Case("add/64", {"bytes": 6400}), tools(world, Rule()), [3.3] * 6, (3.3,))

    row = on_ranks(1, work, tier="gpu")[0]
    assert row.limit_us == pytest.approx(3.2)
    assert row.limit_share == pytest.approx(3.2 / 3.3)
    assert row.predicted_us == 1.0
    assert row.verdict.word == "slower"


def test_a_limit_is_a_rate_of_the_busiest_direction_or_a_time() -> None:
    traffic = Traffic(nvlink_out_bytes=1000, nvlink_in_bytes=4000, hbm_bytes=9000)
    assert traffic.busiest_bytes() == 4000
    assert Limit(2.0, "gbs", "", "").us(traffic) == pytest.approx(2.0)
    assert Limit(1.27, "us", "", "").us(traffic) == 1.27
    assert Traffic(hbm_bytes=9000).busiest_bytes() == 9000


def test_a_failure_of_one_rank_is_raised_on_all() -> None:
    def work(world: ThreadWorld) -> str:
        together = Together(world.meeting)

        def fails() -> int:
            if world.rank == 1:
                raise ValueError("")
            return world.rank

        assert together.step("well", lambda: world.rank) == world.rank
        with pytest.raises(FailedError) as caught:
            together.step("badly", fails)
        assert together.all("after", world.rank, int) == [0, 1, 2]
        return str(caught.value)

    assert on_ranks(3, work) == ["badly: rank 1: ValueError"] * 3


def test_messages_of_ranks_are_told_once() -> None:
    failures = (RankFailure(0, "x"), RankFailure(1, "rank 1 waited"), RankFailure(2, "x"))
    assert told(failures) == "ranks 0, 2: x; rank 1 waited"
    assert told(()) == ""


def test_variables_that_matter() -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "HOME": "/root",
        "CUDA_VISIBLE_DEVICES": "0",
        "SECRET_NCCL_": "x",
        "EPCTL_CACHE_DIR": "/c",
    }
    assert list(environment(given)) == ["CUDA_VISIBLE_DEVICES", "EPCTL_CACHE_DIR", "NCCL_DEBUG"]


def test_layouts_tell_neighbours() -> None:
    where = layout(6, scale_out=2, scale_up=3)
    assert [where.scale_up_peer(rank) for rank in range(6)] == [1, 2, 0, 4, 5, 3]
    assert [where.scale_up_peer(rank, -1) for rank in range(6)] == [2, 0, 1, 5, 3, 4]
