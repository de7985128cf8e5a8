"""`epctl selftest` and `epctl bench` of expert parallelism with real processes on the CPU."""

from __future__ import annotations

import csv
import json
import shlex

import pytest

from tests.support.cli import Run, three_lines
from tests.support.worlds import torch_or_skip

pytestmark = pytest.mark.slow
SELFTEST = ("selftest", "--op", "ep", "--tier", "cpu")
BENCH = ("bench", "--device", "cpu", "--tokens", "8", "--samples", "6")


@pytest.fixture(autouse=True)
def torch() -> None:
    torch_or_skip()


def test_loops_over_gloo_are_what_the_reference_says(run: Run) -> None:
    ran = run(*SELFTEST, "--case", "*expand128*bias2*", "--case", "*/masked90/*", "--ranks", "2")
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert lines[0].startswith("NO KERNEL RAN")
    assert "proved  ep: one byte changed on purpose" in lines
    assert sum(line.startswith("ok      ep ") for line in lines) > 10
    assert "FAILED" not in ran.out


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_any_number_of_ranks(run: Run, ranks: str) -> None:
    ran = run(
        *SELFTEST, "--ranks", ranks, "--case", "bf16-rows/*/bias1*", "--case", "fp8-expand16/*", "--format", "json"
    )
    found = json.loads(ran.out)
    assert (ran.code, found["ok"], found["layout"]["num_ranks"]) == (0, True, int(ranks)), found
    assert found["num_cases"] > 3


def test_random_shapes_within_a_budget(run: Run) -> None:
    ran = run(*SELFTEST, "--stress", "--budget", "3", "--seed", "5", "--format", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["ok"], found["complete"], found["num_cases"]) == (0, True, True, 1000), found
    assert 5 < len(found["cases"]) == 1000 - found["num_left"]
    again = run(*SELFTEST, "--stress", "--seed", "5", "--case", found["cases"][3]["case"])
    assert again.code == 0, again
    assert "PASSED: 1 passed, 0 failed" in again.out


def test_what_the_budget_left_out_is_said(run: Run) -> None:
    ran = run(*SELFTEST, "--stress", "--budget", "0.5")
    assert ran.code == 0, ran
    assert "cases left out: the budget was over (--budget)" in ran.out
    assert "INCOMPLETE" not in ran.out


def test_bench_beside_a_rival(run: Run) -> None:
    ran = run(*BENCH, "--dtype", "bf16", "--against", "torch", "--hidden", "256")
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.endswith("  functional")] == [
        "dispatch/bf16/8/torch",
        "dispatch/bf16/8",
        "cached/bf16/8/torch",
        "cached/bf16/8",
        "combine/bf16/8/torch",
        "combine/bf16/8",
    ]
    assert "and the time of each rival over ours: above 1, ours is faster" in lines
    assert sum(" x" in line and line.startswith(("dispatch", "cached", "combine")) for line in lines) == 3
    assert "zero-copy: plain loops over gloo: no kernel ran" in lines


def test_the_record_holds_the_request_and_all_that_is_told(run: Run) -> None:
    ran = run(*BENCH, "--expand", "--gate", "skew:1.5", "--experts", "32", "--topk", "4", "--format", "json")
    found = json.loads(ran.out)
    assert ran.code == 0, ran
    assert found["request"]["more"] == {
        "tokens": "8",
        "experts": "32",
        "topk": "4",
        "expand": "yes",
        "gate": "skew:1.5",
    }
    for row in found["rows"]:
        assert (row["op"], row["params"]["gate"], row["params"]["expand"]) == ("ep", "skew:1.5", True)
        assert len(row["told"]) == 2
        assert row["logical_gbs"] > 0
        assert row["traffic"]["nvlink_out_bytes"] > 0
        assert row["told"][0]["note"] == "plain loops over gloo: no kernel ran"


def test_csv_has_ratios(run: Run) -> None:
    ran = run(*BENCH, "--against", "torch", "--case", "combine/*", "--format", "csv")
    rows = list(csv.DictReader(line for line in ran.out.splitlines() if not line.startswith("#")))
    assert [row["ratios"].partition("=")[0] for row in rows] == ["", "torch"]
    assert float(rows[1]["ratios"].partition("=")[2]) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "--op", "link", "--device", "cpu", "--tokens", "8"), "--tokens is an option of ep"),
        (("bench", "--op", "link", "--device", "cpu", "--waits", "--gate", "balanced"), "are options of ep"),
        (("bench", "--device", "cpu", "--against", "nccl"), "--against nccl cannot be"),
        (("bench", "--device", "cpu", "--overlap"), "--overlap needs kernels"),
        (("bench", "--device", "cpu", "--gate", "skew:99"), "--gate 'skew:99'"),
        (("bench", "--device", "cpu", "--tokens", ""), "--tokens is empty"),
        (("selftest", "--tier", "cpu", "--op", "link", "--stress"), "link has no random shapes"),
        (("selftest", "--tier", "cpu", "--op", "ep", "--budget", "-1"), "--budget -1 is out of range"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    three_lines(ran)
    assert words in ran.err


def test_the_command_of_a_proof_repeats_it(run: Run) -> None:
    found = json.loads(run(*SELFTEST, "--case", "bf16-rows/64x512/top4of16", "--format", "json").out)
    ran = run(*shlex.split(found["proofs"][0]["command"])[1:])
    assert ran.code == 0, ran
    assert "PASSED: 1 passed, 0 failed" in ran.out
