"""`epctl bench` with real processes, as a functional run on the CPU."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.support.cli import Run, three_lines
from tests.support.worlds import torch_or_skip

pytestmark = pytest.mark.slow
CPU = ("bench", "--op", "link", "--device", "cpu", "--samples", "6", "--sizes", "64K")
FEW = (*CPU, "--case", "bulk-*", "--case", "round-trip/*")


@pytest.fixture(autouse=True)
def torch() -> None:
    torch_or_skip()


def test_text_fits_80_columns_and_says_that_no_kernel_ran(run: Run) -> None:
    ran = run(*FEW)
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert lines[0].startswith("NO KERNEL RAN")
    assert lines[-1].startswith("NO KERNEL RAN")
    table = [line for line in lines if line.endswith("functional")]
    assert len(table) == 6 + 1
    assert max(map(len, table)) <= 80
    assert "bulk writes of one rank at a time, GB/s, row to column" in lines


def test_the_record(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    ran = run(*FEW, "--format", "json", "--json", path)
    assert ran.code == 0, ran
    found = json.loads(ran.out)
    assert json.loads(path.read_bytes()) == found
    assert found["schema"] == {"name": "epctl.bench.record", "version": 1}
    assert (found["complete"], found["layout"]["tier"], found["rule"]["num_samples"]) == (True, "cpu", 6)
    assert found["versions"]["torch"]
    assert found["command"].startswith("epctl bench --op link --device cpu")
    for row in found["rows"]:
        assert len(row["samples_us"]) == 6
        assert len(row["rank_medians_us"]) == 2
        assert row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["verdict"]["word"] == "functional"
        assert (row["limit"], row["predicted_us"]) == (None, None)
    rates = {row["case"]: row["gbs"] for row in found["rows"]}
    assert rates["round-trip/0-to-1/20"] is None
    assert rates["bulk-write/both/57344/all-sms"] > 0


def test_csv(run: Run) -> None:
    ran = run(*CPU, "--ranks", "1", "--format", "csv")
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert lines[0].startswith("# NO KERNEL RAN")
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [row["case"].split("/")[0] for row in rows] == ["hbm-copy", "sm-read", "sm-write"]
    assert {row["num_samples"] for row in rows} == {"6"}


def test_markdown(run: Run) -> None:
    ran = run(*CPU, "--mode", "low-latency", "--format", "markdown")
    assert ran.code == 0, ran
    assert "- NO KERNEL RAN" in ran.out
    assert "| link `round-trip/0-to-1/20` |" in ran.out
    assert "bulk-write" not in ran.out


def test_without_a_gpu_it_says_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ran = run("bench", "--op", "link")
    three_lines(ran, 4)
    assert "--device cpu runs the same ops in plain PyTorch" in ran.err


def test_no_calibration_out_of_a_cpu(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    ran = run(*CPU, "--ranks", "1", "--calibration", path)
    assert ran.code == 4
    assert "a calibration needs kernels that ran" in ran.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mode", "fast"), "--mode 'fast' is unknown"),
        (("--device", "tpu"), "--device 'tpu' is unknown"),
        (("--sizes", "64Q"), "--sizes '64Q' is no size"),
        (("--sms", "8,x"), "--sms 'x' is no number"),
        (("--sms", "0"), "--sms '0' is no number"),
        (("--samples", "-1"), "--samples -1"),
        (("--budget", "0"), "--budget 0"),
        (("--budget", "nan"), "--budget nan"),
        (("--op", "none"), "--op 'none' is unknown"),
        (("--device", "cpu", "--sizes", "1"), "--sizes 1 is out of range"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], words: str) -> None:
    ran = run("bench", *arguments)
    three_lines(ran, 2)
    assert words in ran.err


def test_errors_are_json_for_programs(run: Run) -> None:
    for arguments, code, words in (
        (("bench", "--op", "none"), 2, "--op 'none' is unknown"),
        ((*CPU, "--case", "nothing"), 2, "'nothing' fits no case"),
    ):
        ran = run(*arguments, "--format", "json")
        found = json.loads(ran.out)
        assert (ran.code, found["status"]) == (code, "error")
        assert words in found["error"]["what"]
        three_lines(ran._replace(out=""), code)
