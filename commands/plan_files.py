"""What `epctl plan` reads from outside: snapshots, traces, calibrations, and the answers of an installed DeepEP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from epctl.core.errors import EpctlError
from epctl.model.plan.request import Request, Sweep
from epctl.model.plan.settle import Calibration, Files

if TYPE_CHECKING:
    from epctl.core.snapshot import Snapshot
    from epctl.model.plan.types import PlanReport

_CALIBRATION = '{"sm_read_gbs": 40.25, "sm_write_gbs": 42.375, "source": "bench on node 7"}'


class Sources(NamedTuple):
    """Files as the model takes them, and the name of the sample among them ('' without one)."""

    files: Files
    sample: str


def load(request: Request, series: Sweep) -> Sources:
    """Everything that the request and its sweep name. Raises EpctlError for what cannot be read."""
    files = Files(readings={}, traces={}, calibrations={}, notes={}, memo={})
    named = {field: _every(field, request, series) for field in ("from_", "sample", "gate", "calibration")}
    for name in named["from_"]:
        from epctl.probes import load as loading

        _read(files, f"from {name}", loading.from_path(Path(name)))
    sample = ""
    for name in named["sample"]:
        from epctl.probes import load as loading

        _read(files, f"sample {name}", loading.sample(name))
        sample = name
    for name in named["gate"]:
        from epctl.probes import gate_trace

        if gate_trace.is_trace(name):
            found = gate_trace.read_trace(Path(name))
            files.traces[name] = found.rows
            if found.note:
                files.notes[name] = f"Trace {name}: {found.note}."
    for name in named["calibration"]:
        files.calibrations[name] = _calibration(Path(name))
    return Sources(files, sample)


def _every(field: str, request: Request, series: Sweep) -> tuple[str, ...]:
    """All values of a field, of the sweep or else of the request."""
    if field in series.fields:
        return tuple(str(value) for value in series.values[series.fields.index(field)])
    value = getattr(request, field)
    return () if value is None else (value,)


def _read(files: Files, key: str, node: Snapshot) -> None:
    from epctl.model.readings import read

    files.readings[key] = read(node)


def _calibration(path: Path) -> Calibration:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        why, todo = str(error.strerror or error), "check the path given to --calibration"
        raise EpctlError(f"{path} could not be read", why, todo) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EpctlError(f"{path} is no calibration", str(error), f"write {_CALIBRATION}") from None


def answers(report: PlanReport, python: str | None) -> PlanReport:
    """`report` with what the installed DeepEP answers to the same question."""
    from epctl.commands.options import progress
    from epctl.model.plan.types import Answers, EpFamily
    from epctl.probes.against import ask

    ep, given = report.ep, report.inputs
    if not isinstance(ep, EpFamily):
        raise EpctlError(
            "--against is given for another family", "deep_ep is asked about dispatch and combine", "give --what ep"
        )
    question = {
        "nodes": ep.physical_domain.rdma_ranks,
        "gpus": ep.physical_domain.nvlink_ranks,
        "experts": given["experts"].value,
        "topk": given["topk"].value,
        "tokens": given["tokens"].value,
        "hidden": given["hidden"].value,
        "fp8": given["dtype"].value == "fp8",
        "hybrid": ep.mode == "hybrid",
        "overlap": given["overlap"].value,
        "multiple_reduction": given["multiple_reduction"].value,
        "nvlink_gbs": given["nvlink_gbs"].value,
        "rdma_gbs": given["rdma_gbs"].value,
    }
    with progress("asking deep_ep"):
        found = ask(question, python)
    told = Answers(package=found.package, reason=found.reason, values=found.values)
    return msgspec.structs.replace(report, against=told)
