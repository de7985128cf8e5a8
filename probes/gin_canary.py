"""The GIN canary: two ranks try put, signal and wait with each type of GIN that NCCL offers. From its document to facts."""

from __future__ import annotations

from typing import Any

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.software import GIN_OUTCOMES, GinTrial
from epctl.probes import documents
from epctl.probes.stages import Stages

COLLECTOR = "active_gin"
LIMIT_S = 85.0
"""Compiling the kernels at first use, two processes with contexts and communicators, and up to three types."""


def trials(document: Any) -> Fact[tuple[GinTrial, ...]]:  # noqa: ANN401 - JSON
    """One entry for each type that was tried; () when NCCL offers none. Absent with the reason when it was not found out. What was
    tried before the collector hung or died counts."""
    told = Stages(document)
    tried = tuple(trial for line in told.every("trial") if (trial := _trial(line)) is not None)
    if tried or isinstance(documents.integer(told.stage("end"), "tried"), int):
        return tried
    failed = next(iter(told.every("failed")), None)
    if failed is None:
        return told.absent
    return documents.absent_of(failed) or Absent("failed", "the canary does not say why")


def _trial(line: Any) -> GinTrial | None:  # noqa: ANN401 - JSON
    name, outcome = documents.name_of(line, "name"), documents.name_of(line, "outcome")
    if not name or outcome not in GIN_OUTCOMES:
        return None
    emulated = documents.flag(line, "emulated")
    return GinTrial(
        name=name,
        value=outcome,
        detail=documents.name_of(line, "detail"),
        where=documents.name_of(line, "where"),
        round_ns=documents.integer(line, "round_ns"),
        emulated=emulated is True,
    )
