"""Rates of one SM out of a bench run, as `epctl plan --calibration` reads them."""

from __future__ import annotations

from epctl.bench.record import Record, Row
from epctl.core.errors import EpctlError
from epctl.core.render.safe import plain
from epctl.model.plan.settle import Calibration

FEW_SMS = 8
"""As many as read and write while memory still has room: with all SMs, memory and not the SM would be measured."""


def of_record(record: Record) -> Calibration:
    """Local reads and writes, divided by the SMs that made them: the row whose number of SMs is nearest to FEW_SMS. Raises EpctlError
    when no kernel ran, or a row is missing."""
    if record.layout.tier != "gpu":
        raise EpctlError("a calibration needs kernels that ran", "this run was on the CPU", "run on a GPU", exit_code=4)
    read, write = _row(record, "sm-read"), _row(record, "sm-write")
    rates = (_per_sm(read), _per_sm(write))
    source = f"epctl bench on {plain(record.layout.gpu_name)}, {record.taken_at}: {read.case}, {write.case}"
    return Calibration(round(rates[0], 3), round(rates[1], 3), source)


def _row(record: Record, kind: str) -> Row:
    fitting = [
        row
        for row in record.rows
        if row.ok and row.gbs is not None and row.params.get("kind") == kind and int(row.params.get("sms", 0)) > 0
    ]
    if not fitting:
        raise EpctlError(
            f"no calibration can be made: {kind} was not timed with a number of SMs",
            "the run left it out, or it failed",
            f"run epctl bench --op link --case '{kind}/*' too",
            exit_code=4,
        )
    return min(fitting, key=lambda row: abs(int(row.params["sms"]) - FEW_SMS))


def _per_sm(row: Row) -> float:
    return float(row.gbs or 0.0) / int(row.params["sms"])
