"""Kinds of mistakes that users of `epctl plan` make, and what they get for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import Run, json_error, three_lines

MODEL = ("--experts", "256", "--topk", "8")

ABSURD = {
    "denormal RDMA": (*MODEL, "--nodes", "2", "--rdma-gbs", "1e-310"),
    "denormal NVLink": (*MODEL, "--nvlink-gbs", "1e-320"),
    "denormal SM rate": (*MODEL, "--sm-read-gbs", "1e-320"),
    "slow NVLink": (*MODEL, "--nvlink-gbs", "1e-5"),
    "fast NVLink": (*MODEL, "--nvlink-gbs", "40000"),
    "no number": (*MODEL, "--nvlink-gbs", "nan"),
    "endless SM rate": (*MODEL, "--sm-write-gbs", "inf"),
    "hot factor": (*MODEL, "--gate", "hot:8:1e308"),
    "cold factor": (*MODEL, "--gate", "hot:8:1e-300"),
    "nodes": (*MODEL, "--nodes", "1000000"),
    "seed": (*MODEL, "--gate", "zipf:1.0", "--seed", "9" * 50),
    "contexts": (*MODEL, "--contexts", str(1 << 39)),
    "inflight": ("--what", "pp", "--inflight", "99999999999"),
    "bucket nodes": ("--what", "bucket", "--nodes", "999999"),
    "steps": (*MODEL, "--steps-per-second", "1e308"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_a_number_out_of_all_bounds_is_an_error_with_one_that_would_do(run: Run, name: str) -> None:
    ran = run("plan", *ABSURD[name])
    three_lines(ran)
    assert "give " in ran.err


def test_a_full_device_is_an_error_of_code_4() -> None:
    code = "import sys; sys.argv[0] = 'epctl'; from epctl.cli import main; main()"
    argv = [sys.executable, "-c", code, "plan", *MODEL]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ})
    assert ran.returncode == 4
    assert ran.stderr.startswith("error: standard output could not be written\n  why: ")
    assert "Traceback" not in ran.stderr
    assert "Exception" not in ran.stderr


@pytest.mark.parametrize("gbs", ["200", "400"])
def test_gigabits_given_as_gigabytes_are_refused(run: Run, gbs: str) -> None:
    ran = run("plan", *MODEL, "--nodes", "2", "--rdma-gbs", gbs)
    three_lines(ran)
    assert "400 Gb/s are 50 GB/s" in ran.err
    assert f"give --rdma-gbs {int(gbs) // 8}" in ran.err


def test_more_than_a_slot_carries_is_noted(run: Run) -> None:
    def notes(gbs: str) -> list[str]:
        ran = run("plan", *MODEL, "--nodes", "2", "--rdma-gbs", gbs, "--format", "json")
        found: list[str] = json.loads(ran.out)["notes"]
        return [note for note in found if "slot" in note]

    assert "400 Gb/s are 50 GB/s" in notes("100")[0]
    assert notes("50") == []


def test_a_trace_with_a_column_of_row_numbers_says_that_it_is_left_out(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("token,e0,e1\n0,5,6\n1,7,9\n", "utf-8")
    found = json.loads(run("plan", "--experts", "256", "--gate", file, "--format", "json").out)
    assert found["inputs"]["topk"]["value"] == 2
    assert any("first column (token)" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        ((*MODEL, "--nodes", "3"), ("--experts", "264")),
        ((*MODEL, "--nodes", "3"), ("--nodes", "2")),
        ((*MODEL, "--nodes", "60000"), ("--nodes", "32")),
        (("--experts", "250", "--topk", "8"), ("--experts", "256")),
        (("--experts", "250", "--topk", "8"), ("--gpus-per-node", "5")),
        (("--experts", "0", "--topk", "8"), ("--experts", "256")),
    ],
)
def test_what_an_error_says_to_give_is_taken(run: Run, argv: tuple[str, ...], advice: tuple[str, str]) -> None:
    ran = run("plan", *argv)
    three_lines(ran)
    assert " ".join(advice) in ran.err
    assert run("plan", *argv, *advice).code in (0, 1)


def test_too_many_ranks_get_the_same_advice_from_report_and_error(run: Run) -> None:
    many = ("--experts", "2048", "--topk", "8", "--mode", "hybrid")
    ran = run("plan", *many, "--nodes", "256", "--format", "json")
    assert ran.code == 2
    assert f"give --nodes {json.loads(ran.out)['ep']['nearest']['num_nodes']}\n" in ran.err


@pytest.mark.parametrize(
    ("argv", "error_code"),
    [
        ((*MODEL, "--nodes", "3"), "experts_not_divisible"),
        ((*MODEL, "--tokens", "x"), "value_invalid"),
        ((*MODEL, "--gate", "/nonexistent.npz"), "input_invalid"),
        ((*MODEL, "--sweep", "nodes=3,5"), "experts_not_divisible"),
        (("--what", "moe"), "unknown_family"),
    ],
)
def test_with_json_an_error_is_an_object(run: Run, argv: tuple[str, ...], error_code: str) -> None:
    json_error(run("plan", *argv, "--format", "json"), error_code)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("bucket", "--nodes", "999", "--op", "all_gather"), "1,024 ranks"),
        (("bucket", "--tensor-bytes", "200000000000"), "memory"),
        (("pp", "--inflight", "60000"), "memory"),
        (("pp", "--inflight", "2", "--reserved-bytes", "200000000000"), "reserved"),
        (("engram", "--layers", "129", "--tokens", "1"), "128 layers"),
    ],
)
def test_limits_of_other_families_are_judged(run: Run, argv: tuple[str, ...], told: str) -> None:
    ran = run("plan", "--what", *argv, "--format", "json")
    found = json.loads(ran.out)
    assert ran.code == 1
    assert found["fits"] is found[argv[0]]["fits"] is False
    assert told in found["verdict"]
    assert run("plan", "--what", argv[0]).code == 0


def test_one_node_needs_no_queue_pairs(run: Run) -> None:
    assert run("plan", *MODEL, "--max-qp", "100").code == 0
    assert run("plan", *MODEL, "--max-qp", "100", "--nodes", "2").code == 1
