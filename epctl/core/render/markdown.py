"""A doctor's report as Markdown, for an issue or a pull request."""

from __future__ import annotations

import re

from epctl.core.check import Finding
from epctl.core.doctor import COUNTS, Report, area_counts
from epctl.core.fact import Absent
from epctl.core.render import View
from epctl.core.render.safe import plain

MARKS = {"yes": "yes", "no": "**no**", "unknown": "unknown"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
_LIVE = re.compile(r"@|\b(?:https?|ftp)(?=://)|\bwww(?=\.)", re.IGNORECASE)
"""What GitHub turns into mentions and links by itself; a character of no width after it prevents that."""


def render(report: Report, _: View) -> str:
    """Head, ladder, links per GPU, findings with evidence and fix, counts by area."""
    parts = [_head(report), _ladder(report), _gpus(report), _findings(report), _areas(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(value: object) -> str:
    shown = _SPECIAL.sub(r"\\\1", plain(str(value)))
    return _LIVE.sub(lambda found: f"{found.group(0)}<!-- -->", shown)


def _head(report: Report) -> str:
    lines = [f"# epctl doctor: {_text(report.host)}"]
    if report.source == "sample":
        lines.append(f"**SAMPLE `{_text(report.origin.name)}`: packaged example data, not a machine of yours.**")
    used = ", ".join(f"{profile.id} ({_text(profile.because)})" for profile in report.profiles)
    summary = report.summary
    lines.append(f"{report.source}, {_text(report.taken_at)}; profiles: {used}")
    lines.append(
        f"**{summary.verdict.replace('_', ' ')}**: {summary.fail} failed, {summary.warn} warnings, {summary.info} notes; "
        f"{summary.passed} passed, {summary.unknown} unknown, {summary.skipped} skipped"
    )
    return "\n\n".join(lines)


def _ladder(report: Report) -> str:
    rows = [f"| {rung.rung} | {MARKS[rung.state]} | {_text(rung.gate)} | {_text(rung.fix)} |" for rung in report.ladder]
    return "\n".join(["## What can run here", "", "| way | here | gate | fix |", "|---|---|---|---|", *rows])


def _gpus(report: Report) -> str:
    if not report.capabilities.gpus:
        return ""
    rows = [
        f"| {gpu.gpu} | {_number(gpu.numa_node)} | {_number(gpu.nvlinks_active)}/{_number(gpu.nvlinks)} | {_number(gpu.nvlink_gbs)} "
        f"| {_text(', '.join(gpu.nics)) or '–'} | {gpu.nic_path or '–'} "
        f"| {_number(gpu.rdma_nominal_gbps)} | {_number(gpu.rdma_usable_gbps)} |"
        for gpu in report.capabilities.gpus
    ]
    head = [
        "## Links",
        "",
        "| GPU | NUMA | NVLinks | GB/s | NIC | path | nominal Gb/s | usable Gb/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def _number(value: object) -> str:
    return "–" if isinstance(value, Absent) else f"{value:g}" if isinstance(value, float) else str(value)


def _findings(report: Report) -> str:
    wrong = [finding for finding in report.findings if finding.status == "failed"]
    if not wrong:
        return "## Findings\n\nNone."
    return "\n\n".join(["## Findings", *(_finding(finding) for finding in wrong)])


def _finding(finding: Finding) -> str:
    evidence = "\n".join(f"- {_text(line)}" for line in finding.evidence)
    commands = "\n".join(plain(line) for line in finding.commands)
    block = f"\n\n```sh\n{commands}\n```" if commands else ""
    links = " ".join(f"<{url}>" for url in finding.reference.split())
    return (
        f"### {finding.severity.upper()} `{finding.id}`: {_text(finding.title)}\n\n{evidence}\n\n{_text(finding.why)}\n\n"
        f"**Fix:** {_text(finding.fix)}{block}\n\n{links}"
    )


def _areas(report: Report) -> str:
    rows = [f"| {title} | {' | '.join(map(str, counts))} |" for title, counts in area_counts(report).items()]
    head = f"| area | {' | '.join(COUNTS)} |"
    return "\n".join(["## Areas", "", head, "|---" * (len(COUNTS) + 1) + "|", *rows])
