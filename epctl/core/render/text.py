"""A doctor's report for people: the node at a glance, the ladder, areas, findings worst first."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from epctl.core.check import Finding
from epctl.core.doctor import COUNTS, Report, area_counts
from epctl.core.fact import Absent
from epctl.core.ladder import first_missing
from epctl.core.render import View
from epctl.core.render.safe import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MARK = {"yes": ("yes", "green"), "no": ("no", "red"), "unknown": ("?", "yellow")}
COLOUR = {"fail": "bold red", "warn": "bold yellow", "info": "cyan"}
STYLE = {"fail": "bold red", "warn": "yellow", "note": "cyan"}
MAX_EVIDENCE = 8
"""Lines of evidence shown for one finding; JSON has them all."""
MAX_UNKNOWN = 15
"""Unread checks that are listed without --verbose."""
NARROW = 80
GLANCE = ("GPU", "NUMA", "NVLinks", "GB/s", "NIC", "path", "Gb/s", "usable")


def render(report: Report, view: View) -> str:
    """The report as text; with colours on a terminal where NO_COLOR is not set. 80 columns in a log, or as COLUMNS says."""
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    asked = int(columns) if columns.isascii() and columns.isdigit() and 20 <= int(columns[:4]) <= 500 else None
    console = Console(
        file=io.StringIO(),
        force_terminal=view.terminal,
        no_color=not view.terminal or bool(os.environ.get("NO_COLOR")),
        width=asked or (None if view.terminal else NARROW),
        highlight=False,
        markup=False,
        emoji=False,
    )
    _head(console, report)
    _glance(console, report)
    _ladder(console, report)
    _areas(console, report)
    _findings(console, report)
    everything = len(report.findings)
    _list(
        console,
        report,
        "unknown",
        "Could not be read ({}): not passed, not failed",
        everything if view.verbose else MAX_UNKNOWN,
    )
    if view.verbose:
        _list(console, report, "passed", "Passed ({})", everything)
        _list(console, report, "skipped", "Does not apply here ({})", everything)
    _verdict(console, report)
    output = console.file
    assert isinstance(output, io.StringIO)  # noqa: S101 - for the type checker
    return "\n".join(line.rstrip() for line in output.getvalue().split("\n"))


def _head(console: Console, report: Report) -> None:
    console.print(f"epctl doctor: {plain(report.host)}", style="bold")
    if report.source == "sample":
        made = "composed by hand" if report.origin.hand_made else "recorded on a real machine"
        console.print(
            f"SAMPLE {plain(report.origin.name)}: packaged example data ({made}), not your machine", style="reverse"
        )
    else:
        redacted = ", redacted" if report.origin.redacted else ""
        name = f" from {plain(report.origin.name)}" if report.origin.name else ""
        composed = ", composed by hand" if report.origin.hand_made else ""
        console.print(f"{report.source}{name}{redacted}{composed}, {plain(report.taken_at)}")
    for profile in report.profiles:
        console.print(f"profile {profile.id}: {plain(profile.because)}")
    console.print()


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _number(value: object, unit: str = "") -> str:
    if isinstance(value, Absent):
        return "-"
    return f"{value:.4g}{unit}" if isinstance(value, float) else f"{value}{unit}"


def _glance(console: Console, report: Report) -> None:
    for line in report.at_a_glance:
        console.print(plain(line))
    rows = report.capabilities.gpus
    if rows:
        table = _table(*GLANCE, right=("GPU", "NUMA", "GB/s", "Gb/s", "usable"))
        for gpu in rows:
            whole = set(gpu.nvlink_states) <= {"|"}
            count = f"{_number(gpu.nvlinks_active)}/{_number(gpu.nvlinks)}"
            table.add_row(
                str(gpu.gpu),
                _number(gpu.numa_node),
                count if whole else _cell(f"{count} {gpu.nvlink_states}", "bold red"),
                _number(gpu.nvlink_gbs),
                plain(" ".join(gpu.nics)) or "-",
                gpu.nic_path or "-",
                _number(gpu.rdma_nominal_gbps),
                _number(gpu.rdma_usable_gbps),
            )
        console.print(table)
        found = report.capabilities
        mode = f", {found.pci_atomic_mode}" if found.pci_atomic_mode else ""
        console.print(f"RDMA atomics: {plain(f'{found.atomics}{mode}')}")
    console.print()


def _cell(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style=style)


def _ladder(console: Console, report: Report) -> None:
    console.print("What can run here, by its gates (nothing of it was run)", style="bold")
    table = _table("", "", "")
    table.show_header = False
    for rung in report.ladder:
        word, style = MARK[rung.state]
        table.add_row(_cell(word, style), plain(rung.rung), plain(rung.gate))
    console.print(table)
    first = first_missing(report.ladder)
    if first is not None and first.fix:
        console.print(f"first missing: {plain(first.rung)}. {plain(first.fix)}")
    console.print()


def _areas(console: Console, report: Report) -> None:
    table = _table("Area", *COUNTS, right=COUNTS)
    for title, counts in area_counts(report).items():
        cells = [
            _cell(str(count or "-"), STYLE.get(name, "") if count else "")
            for name, count in zip(COUNTS, counts, strict=True)
        ]
        table.add_row(title, *cells)
    if table.row_count:
        console.print(table)
        console.print()


def _findings(console: Console, report: Report) -> None:
    for finding in report.findings:
        if finding.status == "failed":
            _finding(console, finding)


def _finding(console: Console, finding: Finding) -> None:
    from rich.text import Text

    console.print(
        Text.assemble(
            (f"{finding.severity.upper()} ", COLOUR[finding.severity]), (finding.id, "bold"), f"  {finding.title}"
        )
    )
    table = _table("", "")
    table.show_header = False
    table.columns[0].no_wrap = True
    for i, line in enumerate(finding.evidence[:MAX_EVIDENCE]):
        table.add_row("  seen" if i == 0 else "", plain(line))
    if len(finding.evidence) > MAX_EVIDENCE:
        table.add_row("", f"… and {len(finding.evidence) - MAX_EVIDENCE} more (--format json has them all)")
    table.add_row("  why", finding.why)
    table.add_row("  fix", plain(finding.fix))
    console.print(table)
    # Whole lines, however long: they are there to be copied.
    for line in finding.commands:
        console.print(Text.assemble("   $    ", (plain(line), "green")), soft_wrap=True)
    for url in finding.reference.split():
        console.print(Text.assemble("  see   ", (url, "dim")), soft_wrap=True)
    console.print()


def _list(console: Console, report: Report, status: str, title: str, limit: int) -> None:
    found = [finding for finding in report.findings if finding.status == status]
    if not found:
        return
    console.print(title.format(len(found)), style="bold")
    table = _table("", "")
    table.show_header = False
    table.columns[0].no_wrap = True
    for finding in found[:limit]:
        more = f" (and {len(finding.evidence) - 1} more)" if len(finding.evidence) > 1 else ""
        table.add_row(f"  {finding.id}", plain(finding.evidence[0] if finding.evidence else "") + more)
    console.print(table)
    if len(found) > limit:
        console.print(f"  … and {len(found) - limit} more (--verbose shows all)")
    console.print()


VERDICTS = {
    "failed": ("NOT READY", "bold red"),
    "warnings": ("READY, with warnings", "bold yellow"),
    "incomplete": ("NO FAULT FOUND, but not all was read: see above", "bold yellow"),
    "not_measured": ("COULD NOT LOOK: what matters could not be read", "bold yellow"),
    "healthy": ("HEALTHY", "bold green"),
    "not_applicable": ("DOES NOT APPLY to this node", "bold"),
}
NO_GPU = ("NO NVIDIA GPU HERE", "bold red")


def _verdict(console: Console, report: Report) -> None:
    summary = report.summary
    no_gpu = any(finding.id == "NODE-NO-GPU" and finding.status == "failed" for finding in report.findings)
    text, style = NO_GPU if no_gpu and summary.fail == 1 else VERDICTS[summary.verdict]
    console.print(text, style=style)
    console.print(
        f"{summary.fail} failed, {summary.warn} warnings, {summary.info} notes, {summary.passed} passed, "
        f"{summary.unknown} unknown, {summary.skipped} skipped"
    )
