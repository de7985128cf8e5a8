"""GIN over the loopback plugin on real GPUs: what arrives, in all layouts, and what happens when something goes wrong. The times that
are printed (-s) are of this machine's copies, not of a network."""

from __future__ import annotations

import pytest

from tests.gpu import loopback_job
from tests.gpu.loopback_job import Programs, Rank

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
# (emulated nodes, ranks of each, GPUs)
LAYOUTS = {"2x1": (2, 1, 2), "2x1-one-gpu": (2, 1, 1), "2x2": (2, 2, 2), "4x1": (4, 1, 2)}
SIZES = (8, 1024, 7168, 1 << 20, 64 << 20)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return loopback_job.build(tmp_path_factory.mktemp("loopback"))


def enough(programs: Programs, layout: str) -> tuple[int, int, int]:
    nodes, each, num_gpus = LAYOUTS[layout]
    if programs.num_gpus < num_gpus:
        pytest.skip(f"{num_gpus} GPUs are needed, there are {programs.num_gpus}")
    return nodes, each, num_gpus


def all_well(ranks: list[Rank]) -> None:
    for i, rank in enumerate(ranks):
        wrong = [one for one in rank.checks if not one["ok"]]
        assert wrong == [], f"rank {i}:\n{rank.log}"
        assert rank.code == 0, f"rank {i} ended with {rank.code} after {rank.checks[-1:]}:\n{rank.log}"
        assert rank.check("end")["ok"]


def show(layout: str, ranks: list[Rank]) -> None:
    print(f"\nEMULATED {layout}, rank 0:")
    for one in ranks[0].checks:
        if one.get("unit", "").startswith(("us", "s", "MiB", "files")):
            print(f"  {one['check']:<32} {one['value']:>12.1f} {one['unit']}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_put_got_and_signalled_arrives(programs: Programs, layout: str) -> None:
    nodes, each, num_gpus = enough(programs, layout)
    ranks = loopback_job.run(programs, "basic", nodes, each, num_gpus, limit_s=100)
    all_well(ranks)
    for rank in ranks:
        assert rank.check("LSA teams")["value"] == nodes
        for size in SIZES:
            assert rank.check(f"put+signal {size} B x 1 data")["value"] == 0
        for name in ("put+weak signal 7168 B x 1 data", "contexts at once 1048576 B x 4 data", "get 67108864 B data"):
            assert rank.check(name)["value"] == 0
        assert rank.check("values data")["ok"]
    show(layout, ranks)


@pytest.mark.parametrize("layout", ["2x1", "2x1-one-gpu"])
def test_destruction_with_requests_in_flight(programs: Programs, layout: str) -> None:
    nodes, each, num_gpus = enough(programs, layout)
    ranks = loopback_job.run(programs, "in_flight", nodes, each, num_gpus, limit_s=60)
    all_well(ranks)
    for rank in ranks:
        assert rank.check("put+signal afterwards 1048576 B x 1 data")["value"] == 0
    show(layout, ranks)


@pytest.mark.parametrize("layout", ["2x1", "2x2"])
def test_a_rank_that_is_killed_is_named_by_the_others(programs: Programs, layout: str) -> None:
    nodes, each, num_gpus = enough(programs, layout)
    ranks = loopback_job.run(programs, "killed", nodes, each, num_gpus, limit_s=80)
    *others, dead = ranks
    assert dead.code == -9
    all_well(others)
    num_ranks = nodes * each
    for rank in others:
        assert f"rank {num_ranks - 1} of {num_ranks} (process {dead.process}) has ended" in rank.log
        assert rank.check("NCCL tells")["value"] < 20
    show(layout, others)


def test_twenty_communicators_leave_nothing(programs: Programs) -> None:
    nodes, each, num_gpus = enough(programs, "2x1" if programs.num_gpus > 1 else "2x1-one-gpu")
    ranks = loopback_job.run(programs, "cycles", nodes, each, num_gpus, limit_s=150)
    all_well(ranks)
    for rank in ranks:
        assert rank.check("files left open")["value"] <= 0
    show("cycles", ranks)
