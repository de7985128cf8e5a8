"""From findings to a verdict. What was not looked at is never called healthy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from epctl.core.check import Finding

Verdict = Literal["failed", "not_measured", "incomplete", "warnings", "healthy", "not_applicable"]
"""failed: a check of severity fail failed. not_measured: an area that matters could not be looked at. incomplete: no fault was
found, but checks of severity fail could not be read. not_applicable: every check that was asked for was skipped."""

ESSENTIAL = ("driver", "gpu", "rdma", "nccl")
"""Areas without which nobody can speak of a node's health."""


class Summary(Struct, frozen=True):
    """Counts: `failed` is the sum of `fail`, `warn` and `info`, the failed checks by severity."""

    failed: int = 0
    fail: int = 0
    warn: int = 0
    info: int = 0
    passed: int = 0
    skipped: int = 0
    unknown: int = 0
    blind: tuple[str, ...] = ()
    """Essential areas of which more than half of the checks could not be read."""
    verdict: Verdict = "not_measured"


def summarise(findings: Iterable[Finding]) -> Summary:
    """Counts and the verdict of a list of findings."""
    every = tuple(findings)
    wrong = [finding.severity for finding in every if finding.status == "failed"]
    seen = [finding.status for finding in every]
    blind = tuple(area for area in ESSENTIAL if _blind(area, every))
    return Summary(
        failed=len(wrong),
        fail=wrong.count("fail"),
        warn=wrong.count("warn"),
        info=wrong.count("info"),
        passed=seen.count("passed"),
        skipped=seen.count("skipped"),
        unknown=seen.count("unknown"),
        blind=blind,
        verdict=_verdict(every, wrong, blind),
    )


def _verdict(findings: tuple[Finding, ...], wrong: Sequence[str], blind: tuple[str, ...]) -> Verdict:
    applied = [finding for finding in findings if finding.status != "skipped"]
    if "fail" in wrong:
        return "failed"
    if not applied:
        return "not_applicable" if findings else "not_measured"
    if blind or all(finding.status == "unknown" for finding in applied):
        return "not_measured"
    if any(finding.status == "unknown" and finding.severity == "fail" for finding in applied):
        return "incomplete"
    return "warnings" if "warn" in wrong else "healthy"


def _blind(area: str, findings: tuple[Finding, ...]) -> bool:
    mine = [finding.status for finding in findings if finding.area == area and finding.status != "skipped"]
    return mine.count("unknown") * 2 > len(mine)


def exit_code(summary: Summary, *, strict: bool) -> int:
    """0 fine, 1 a check of severity fail failed, 3 warnings under `strict`, 4 what matters could not be looked at; under
    `strict` also when a single check of severity fail could not be read."""
    if summary.verdict == "failed":
        return 1
    if summary.verdict == "not_measured" or (strict and summary.verdict == "incomplete"):
        return 4
    return 3 if strict and summary.warn else 0
