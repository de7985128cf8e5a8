"""`epctl plan --sweep`, and plans as rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from tests.support.cli import Run, three_lines
from tests.support.plan_command import MODEL, planned


def subset(small: Any, large: Any, path: str) -> list[str]:  # noqa: ANN401 - JSON
    """Where `small` says something else than `large`."""
    if isinstance(small, dict):
        return [text for key in small for text in subset(small[key], large[key], f"{path}.{key}")]
    return [] if small == large else [f"{path}: {small!r}, not {large!r}"]


def test_rows_of_a_sweep_are_the_single_plans(run: Run) -> None:
    keys = ("--sweep", "nodes=1,2,3", "--sweep", "tokens=128,4096", "--sweep", "rules=deepep-2.5,epctl")
    ran = run("plan", *MODEL, *keys, "--sweep", "gpus-per-node=4,8", "--format", "json")
    assert ran.code == 0
    report = json.loads(ran.out)
    assert report["schema"] == {"name": "epctl.plan.sweep", "version": 1}
    assert len(report["rows"]) == 24
    for row in report["rows"]:
        argv = [word for key, value in row["keys"].items() for word in (f"--{key}", str(value))]
        if row["ep"]["status"] == "error":
            three_lines(run("plan", *MODEL, *argv))
        else:
            assert subset(row["ep"], planned(run, *MODEL, *argv)["ep"], str(row["keys"])) == []


def test_csv_has_the_same_numbers_as_json(run: Run) -> None:
    keys = ("--sweep", "nodes=1,3", "--sweep", "--mode=direct,auto", "--sweep", "overlap=true,false")
    rows = list(csv.DictReader(io.StringIO(run("plan", *MODEL, *keys, "--format", "csv").out)))
    whole = json.loads(run("plan", *MODEL, *keys, "--format", "json").out)["rows"]
    assert len(rows) == len(whole) == 8
    for line, row in zip(rows, whole, strict=True):
        assert line["nodes"] == str(row["keys"]["nodes"])
        assert line["asked.mode"] == row["keys"]["mode"]
        assert line["status"] == row["ep"]["status"]
        if line["status"] == "ok":
            assert float(line["times.dispatch.us"]) == row["ep"]["times"]["dispatch"]["us"]
            assert int(line["num_sms"]) == row["ep"]["num_sms"]
            assert line["fits"] == "true"
        else:
            assert line["error_code"] == "experts_not_divisible"
            assert not line["num_sms"]


def test_csv_quotes_what_needs_it(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / 'a "b".csv'
    trace.write_text("0,1\n", "utf-8")
    ran = run("plan", "--experts", "256", "--sweep", f"gate={trace}", "--format", "csv")
    assert next(csv.DictReader(io.StringIO(ran.out)))["gate"] == str(trace)


def test_one_plan_as_csv_is_a_header_and_a_line(run: Run) -> None:
    ran = run("plan", *MODEL, "--format", "csv")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 2
    assert run("plan", *MODEL, "--format", "csv", "--memory-bytes", "1000").code == 1
    three_lines(run("plan", *MODEL, "--format", "csv", "--nodes", "3"))


def test_any_flag_can_be_swept(run: Run) -> None:
    keys = ("hardware", "sample", "gate", "preset", "what", "op", "atomics", "rules", "dtype")
    values = (
        "h100-ndr400,h200x2",
        "hgx-h100-ib,p5-efa",
        "balanced,hot:4:8",
        "decode,prefill",
        "ep,lb,pp",
        "all_reduce,all_gather",
    )
    every = (*values, "fast,slow", "epctl,deepep-2", "fp8,bf16")
    for key, value in zip(keys, every, strict=True):
        ran = run("plan", *MODEL, "--sweep", f"{key}={value}")
        assert ran.code == 0, (key, ran)
        assert ran.out.startswith(f"epctl plan: {value.count(',') + 1} combinations")


def test_tables_of_sweeps_name_what_cannot_be(run: Run) -> None:
    text = run("plan", *MODEL, "--sweep", "nodes=2,3").out
    assert "1 cannot be planned" in text
    assert "experts_not_divisible: 256 experts do not divide by 24" in text
    assert "| hybrid | 16 |" in run("plan", *MODEL, "--sweep", "nodes=2,3", "--format", "markdown").out
