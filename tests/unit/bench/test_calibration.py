from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epctl.bench.calibration import of_record
from epctl.bench.record import SCHEMA, Record, Row
from epctl.bench.statistics import Rule
from epctl.bench.verdict import Verdict
from epctl.commands.plan_files import load
from epctl.core.errors import EpctlError
from epctl.core.jsontext import dump
from epctl.core.op import Request, Tier
from epctl.model.plan import request as plans
from epctl.ops.link import cases
from tests.support.worlds import layout


def row(kind: str, sms: int, gbs: float, *, ok: bool = True) -> Row:
    case = cases.local(kind, 1 << 28, sms)
    return Row("link", case.name, case.params, ok=ok, verdict=Verdict("unrated"), gbs=gbs)


def record(*rows: Row, tier: Tier = "gpu") -> Record:
    where = layout(2, tier=tier, gpu_name="NVIDIA H200")
    return Record(
        SCHEMA,
        "epctl bench",
        "0",
        "2026-01-02T03:04:05",
        where,
        (),
        Request(),
        Rule(),
        {},
        {},
        (),
        (),
        rows,
        complete=True,
    )


def test_rates_of_one_sm_from_the_row_with_few() -> None:
    found = of_record(
        record(row("sm-read", 1, 70.0), row("sm-read", 8, 480.0), row("sm-read", 0, 4000.0), row("sm-write", 24, 960.0))
    )
    assert (found.sm_read_gbs, found.sm_write_gbs) == (60.0, 40.0)
    assert "NVIDIA H200" in found.source
    assert "sm-read/local" in found.source


def test_the_plan_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(dump(of_record(record(row("sm-read", 8, 480.0), row("sm-write", 8, 320.0)))))
    request = plans.request_of({"rules": "epctl", "calibration": str(path)})
    found = load(request, plans.sweep_of([])).files.calibrations[str(path)]
    assert found == msgspec.json.decode(path.read_bytes(), type=type(found))
    assert (found.sm_read_gbs, found.sm_write_gbs) == (60.0, 40.0)


def test_rows_that_are_missing_or_failed() -> None:
    with pytest.raises(EpctlError, match="sm-write was not timed"):
        of_record(record(row("sm-read", 8, 480.0), row("sm-write", 8, 320.0, ok=False), row("sm-write", 0, 900.0)))


def test_no_calibration_without_kernels() -> None:
    with pytest.raises(EpctlError, match="needs kernels that ran") as caught:
        of_record(record(row("sm-read", 8, 480.0), row("sm-write", 8, 320.0), tier="cpu"))
    assert caught.value.exit_code == 4
