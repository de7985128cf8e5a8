"""`epctl selftest` and `epctl bench` of the GIN op with real processes on the CPU tier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Run
from tests.support.worlds import torch_or_skip

pytestmark = pytest.mark.slow
FEW = ("--case", "*/1000/3-x4*", "--case", "round-trip/0/*", "--case", "signal/*", "--case", "get/8/1-x1")


@pytest.fixture(autouse=True)
def torch() -> None:
    torch_or_skip()


def test_the_self_test_proves_both_damages_first(run: Run) -> None:
    ran = run("selftest", "--op", "gin", "--tier", "cpu", "--ranks", "4", "--emulate-nodes", "2", *FEW)
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert lines[0].startswith("NO KERNEL RAN")
    assert "EMULATED" in ran.out
    assert "proved  gin: one byte changed on purpose" in lines
    assert "proved  gin: one signal dropped on purpose" in lines
    assert "the signal of rank 2 stands at 0 and should be at 1" in " ".join(ran.out.split())
    assert not any(line.startswith(("FAILED", "UNPROVED")) for line in lines)


def test_the_bench_runs_every_kind_functionally(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    argv = ("bench", "--op", "gin", "--device", "cpu", "--ranks", "2", "--samples", "2", "--json", record)
    ran = run(*argv)
    assert ran.code == 0, ran
    rows = json.loads(record.read_text())["rows"]
    assert {row["params"]["kind"] for row in rows} == {"put", "get", "put-signal", "signal", "round-trip"}
    assert all(row["ok"] for row in rows)


def test_one_rank_alone_is_told_why_there_is_nothing(run: Run) -> None:
    ran = run("selftest", "--op", "gin", "--tier", "cpu", "--ranks", "1")
    assert ran.code == 4, ran
    assert "nothing to run for gin" in ran.err
