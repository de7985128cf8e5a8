"""The fixes of a report as a shell script to be read, edited and run by a person. Every command is commented out."""

from __future__ import annotations

import textwrap

from epctl.core.doctor import Report
from epctl.core.render.safe import plain


def script(report: Report) -> str:
    """One block a failed check: what was seen, what to do, its commands behind `#`. Running it unedited does nothing."""
    wrong = [finding for finding in report.findings if finding.status == "failed"]
    lines = ["#!/bin/sh", f"# Fixes for {plain(report.host)}, from `epctl doctor` of {plain(report.taken_at)}."]
    lines += [
        "# Read each block, take the `#` off the commands you want, and run it. Unedited it does nothing.",
        "",
    ]
    for finding in wrong:
        lines.append(f"# {finding.severity.upper()} {finding.id}: {plain(finding.title)}")
        for text in (*finding.evidence[:4], f"Fix: {finding.fix}"):
            lines += textwrap.wrap(
                plain(text), 110, initial_indent="#   ", subsequent_indent="#     ", break_long_words=False
            )
        lines += [f"# {plain(command)}" for command in finding.commands] or [
            "#   (no command: this one is done by hand)"
        ]
        lines.append("")
    if not wrong:
        lines.append("# Nothing to fix.")
    return "\n".join(lines) + "\n"
