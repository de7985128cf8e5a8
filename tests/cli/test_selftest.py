"""`epctl selftest` with real processes on the CPU tier."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cli import Run, three_lines
from tests.support.worlds import torch_or_skip

pytestmark = pytest.mark.slow
FEW = ("--op", "link", "--case", "pull-add/both/14336/1-sms", "--case", "round-trip/*")


@pytest.fixture(autouse=True)
def torch() -> None:
    torch_or_skip()


def test_everything_passes_and_the_checks_are_proved_first(run: Run) -> None:
    ran = run("selftest", "--op", "link")
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert lines[0].startswith("NO KERNEL RAN")
    assert re.match(r"layout +1 x 2 \(scale-out x scale-up\): 2 ranks on 1 host", lines[1])
    words = [line.split()[0] for line in lines if line.startswith(("proved", "ok", "FAILED", "UNPROVED"))]
    assert words[:2] == ["proved", "proved"]
    assert set(words[2:]) == {"ok"}
    assert f"PASSED: {len(words) - 2} passed, 0 failed" in lines
    assert "no GPU can be used here" in ran.err


def test_a_budget_that_is_over_before_the_first_case_is_neither_right_nor_wrong(run: Run) -> None:
    ran = run("selftest", "--op", "link", "--budget", "0.001")
    assert ran.code == 4, ran
    assert "NOTHING RUN: 0 passed, 0 failed" in ran.out
    assert "PASSED" not in ran.out


def test_emulated_nodes_are_said(run: Run) -> None:
    ran = run("selftest", "--tier", "cpu", "--ranks", "4", "--emulate-nodes", "2", *FEW)
    assert ran.code == 0, ran
    assert "2 x 2 (scale-out x scale-up): 4 ranks" in ran.out
    assert sum(line.startswith("EMULATED") for line in ran.out.splitlines()) == 2


def test_json(run: Run) -> None:
    ran = run("selftest", "--tier", "cpu", "--seed", "11", "--format", "json", *FEW)
    assert ran.code == 0, ran
    found = json.loads(ran.out)
    assert found["schema"] == {"name": "epctl.selftest", "version": 1}
    assert (found["ok"], found["complete"], found["seed"], found["num_cases"]) == (True, True, 11, 2)
    assert found["layout"]["tier"] == "cpu"
    assert found["cautions"][0].startswith("NO KERNEL RAN")
    assert [proof["kind"] for proof in found["proofs"]] == ["byte", "signal"]
    assert all(proof["noticed"] for proof in found["proofs"])
    assert found["proofs"][1]["message"] == "rank 0 waited 0.3 s for rank 1's signal, after 19 rounds"
    assert [case["case"] for case in found["cases"]] == ["pull-add/both/14336/1-sms", "round-trip/0-to-1/20"]


def test_the_command_of_a_proof_repeats_that_case(run: Run) -> None:
    first = json.loads(run("selftest", "--tier", "cpu", "--format", "json", *FEW).out)
    ran = run(*shlex.split(first["proofs"][1]["command"])[1:])
    assert ran.code == 0, ran
    assert f"ok      link {first['proofs'][1]['case']}" in ran.out


@pytest.mark.parametrize("kind", ["csv", "markdown"])
def test_tables_begin_with_the_topology(run: Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "report"
    ran = run("selftest", "--tier", "cpu", "--ranks", "1", "--case", "sm-read/*", "--format", kind, "-o", path)
    assert (ran.code, ran.out) == (0, ""), ran
    lines = path.read_text("utf-8").splitlines()
    assert any("NO KERNEL RAN" in line for line in lines[:6])
    if kind == "csv":
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        assert [(row["kind"], row["ok"]) for row in rows] == [("proof byte", "True")] + [("case", "True")] * 3
    else:
        assert sum(line.startswith("| ok | link") for line in lines) == 3


def test_one_line_a_case_while_it_runs() -> None:
    argv = (sys.executable, "-m", "epctl", "selftest", "--op", "link", "--tier", "cpu")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ok "):
                break
        assert process.poll() is None, "all came at once, at the end"
        assert sum(line.startswith("ok ") for line in process.stdout) > 20
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--op", "lnik"), 2, "--op 'lnik' is unknown"),
        (("--tier", "tpu"), 2, "--tier 'tpu' is unknown"),
        (("--tier", "gpu"), 4, "--tier cpu runs the same ops"),
        (("--tier", "cpu", "--case", "nothing/*"), 2, "error: --case 'nothing/*' fits no case\n"),
        (("--tier", "cpu", "--op", "gin", "--ranks", "1"), 4, "gin: one rank has no peer"),
        (("--tier", "cpu", "--op", "link", "--stress"), 2, "error: link has no random shapes\n"),
        (("--tier", "cpu", "--ranks", "3", "--emulate-nodes", "2"), 2, "3 ranks do not divide into 2 nodes"),
        (("--tier", "cpu", "--ranks", "0"), 2, "--ranks 0"),
        (("--tier", "cpu", "--emulate-nodes", "0"), 2, "--emulate-nodes 0"),
        (("--seed", "-1"), 2, "--seed -1"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], code: int, words: str) -> None:
    ran = run("selftest", *arguments)
    three_lines(ran, code)
    assert words in ran.err


def test_an_op_that_was_asked_for_and_has_no_case_is_told_and_no_success(run: Run) -> None:
    case = ("--ranks", "1", "--tier", "cpu", "--case", "hbm-copy/local/14336")
    asked = run("selftest", "--op", "link,gin", *case)
    assert (asked.code, "PASSED: 1 passed" in asked.out) == (4, True), asked
    assert "not run: gin: one rank has no peer\n" in asked.out
    whole = run("selftest", *case, "--format", "json")
    assert whole.code == 0, whole
    assert json.loads(whole.out)["absent"]["gin"] == "one rank has no peer"


def ranks_of(pid: int) -> list[int]:
    """Processes of ranks that a command has started, however deep."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        found += [int(child), *ranks_of(int(child))]
    return [one for one in found if b"epctl.ranks" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 1), (signal.SIGINT, 130)])
def test_a_killed_rank_and_an_interrupt_end_everything(number: signal.Signals, code: int) -> None:
    argv = (sys.executable, "-m", "epctl", "selftest", "--op", "link", "--tier", "cpu")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if line.startswith("ok "))
        ranks = ranks_of(process.pid)
        assert len(ranks) == 2
        os.kill(process.pid if number == signal.SIGINT else ranks[1], number)
        rest, told = process.communicate(timeout=30)
    assert process.returncode == code, told
    assert re.search(r"INCOMPLETE: \d+ passed, 0 failed, \d+ not run\nthe run ended before all cases had", rest)
    assert "FAILED: " not in rest
    assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
    if number == signal.SIGKILL:
        assert re.search(r"rank [01].* by signal 9 \(SIGKILL\)", told), told
        assert "Traceback" not in told


def test_a_report_tells_what_ended_its_run() -> None:
    """A program that reads the JSON alone must not take a rank's death for a failed check."""
    argv = (sys.executable, "-m", "epctl", "selftest", "--op", "link", "--tier", "cpu", "--format", "json")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 30
        while len(ranks := ranks_of(process.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.5)  # until the first cases run
        os.kill(ranks[1], signal.SIGKILL)
        found, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    report = json.loads(found)
    if "complete" in report:  # cases had begun
        assert (report["complete"], report["ok"]) == (False, False)
        assert "SIGKILL" in report["ended_by"]
    else:
        assert "SIGKILL" in report["error"]["what"]
