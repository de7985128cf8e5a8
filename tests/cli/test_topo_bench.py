"""`epctl topo --bench`: records as `epctl bench --json` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctl.bench.record import SCHEMA, Record, Row
from epctl.bench.statistics import Rule
from epctl.bench.verdict import Verdict
from epctl.core.jsontext import dump
from epctl.core.op import Case, Layout, Request
from epctl.ops.link.cases import move
from tests.support.cli import Run, three_lines

SIZE = 256 << 20


def row(case: Case, gbs: float, *, ok: bool = True) -> Row:
    return Row("link", case.name, case.params, ok=ok, verdict=Verdict("unrated"), gbs=gbs)


ROWS = (
    row(move("bulk-write", SIZE, one_way=(0, 1)), 389.5),
    row(move("bulk-read", SIZE, one_way=(0, 1), sms=8), 322.0),
    row(move("copy-engine", SIZE, one_way=(0, 1)), 401.25),
    row(move("bulk-write", SIZE, one_way=(1, 0)), 300.0),
    row(move("bulk-write", SIZE, one_way=(1, 0), sms=64), 440.0, ok=False),  # failed: its rate does not count
    row(move("copy-engine", SIZE), 900.0),  # both ways at once
    row(move("bulk-write", 16 << 10, one_way=(1, 0)), 450.0),  # too small
)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A record of two H200, with other rows or parts of the layout."""

    def save(rows: tuple[Row, ...] = ROWS, **more: Any) -> Path:  # noqa: ANN401
        where = Layout(("host-4",), 2, 2, 2, 1, 2, "gpu", gpu_name="NVIDIA H200", num_links_per_gpu=18)
        where = replace(where, **more)
        record = Record(
            SCHEMA, "epctl bench", "0", "now", where, (), Request(), Rule(), {}, {}, (), (), rows, complete=True
        )
        path = tmp_path / "record.json"
        path.write_bytes(dump(record))
        return path

    return save


def test_text_has_both_directions_beside_nominal_and_the_slow_one_is_a_finding(
    run: Run, saved: Callable[..., Path]
) -> None:
    ran = run("topo", "--sample", "h200x2-vm", "--bench", saved())
    assert ran.code == 0
    assert "GPU 0 -> GPU 1  389.5        401.2    478.1    84%\n" in ran.out
    assert "GPU 1 -> GPU 0  300.0            -    478.1    63%\n" in ran.out
    assert "NVLink is measured below 70% of nominal: GPU 1 -> GPU 0 300.0 of" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert run("topo", "--sample", "h200x2-vm", "--bench", saved(), "--strict").code == 3


def test_json_tells_the_source_of_each_rate_and_comes_back(
    run: Run, saved: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "topo.json"
    assert run("topo", "--sample", "h200x2-vm", "--bench", saved(), "--format", "json", "-o", file).code == 0
    graph = json.loads(file.read_text())["graph"]
    assert [(one["by"], one["gbs"], one["source"]) for one in graph["measured"]] == [
        ("SMs", 389.5, "record.json"),
        ("copy engine", 401.25, "record.json"),
        ("SMs", 300.0, "record.json"),
    ]
    links = [edge for edge in graph["edges"] if edge["kind"] == "nvlink"]
    assert [(edge["source"], edge["gbs"], edge["measured_up_gbs"], edge["measured_down_gbs"]) for edge in links] == [
        ("NVML, measured", 478.116, 401.25, 300.0),
        ("NVML, measured", 478.116, 300.0, 401.25),
    ]
    again = json.loads(run("topo", "--from", file, "--format", "json").out)["graph"]
    assert (again["measured"], again["edges"]) == (graph["measured"], graph["edges"])


@pytest.mark.parametrize("format_", ["dot", "mermaid", "svg", "html"])
def test_pictures_have_the_measured_rates(run: Run, saved: Callable[..., Path], format_: str) -> None:
    ran = run("topo", "--sample", "h200x2-vm", "--bench", saved(), "--format", format_)
    assert "measured 401.2 and 300.0 GB/s" in ran.out


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"tier": "cpu"}, "without GPUs"),
        ({"emulated": True}, "--emulate-nodes"),
        ({"hosts": ("a", "b")}, "it is of 2 machines"),
        ({"num_gpus": 1}, "2 ranks shared 1 GPUs"),
        ({"gpu_name": "NVIDIA B200"}, "it is of NVIDIA B200, and host-4 has NVIDIA H200"),
        ({"num_gpus": 4, "num_ranks": 4}, "it is of 4 GPUs, and host-4 has 2"),
        ({"rows": ROWS[4:]}, "no case of link that worked moves at least 64 MiB"),
        ({"rows": (row(move("bulk-write", SIZE, one_way=(0, 5)), 1.0),)}, "ranks that the run does not have"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    run: Run, saved: Callable[..., Path], more: dict[str, Any], why: str
) -> None:
    ran = run("topo", "--sample", "h200x2-vm", "--bench", saved(**more))
    three_lines(ran)
    assert why in ran.err


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"schema": {"name": "epctl.topo", "version": 1}}', "\x00\xff"])
def test_what_is_no_record_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    three_lines(run("topo", "--sample", "h200x2-vm", "--bench", tmp_path / "r.json"))
    three_lines(run("topo", "--sample", "h200x2-vm", "--bench", tmp_path / "gone.json"))


def test_a_record_of_another_version_is_refused(run: Run, saved: Callable[..., Path]) -> None:
    path = saved()
    path.write_text(path.read_text().replace('"epctl.bench.record"', '"epctl.other"'))
    ran = run("topo", "--sample", "h200x2-vm", "--bench", path)
    three_lines(ran)
    assert "its schema is epctl.other 1" in ran.err
