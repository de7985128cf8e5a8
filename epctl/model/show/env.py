"""A plan as shell settings for the programs that run it, each with its reason."""

from __future__ import annotations

import textwrap

from epctl.core.render.safe import plain
from epctl.model.plan.settings import SOURCES, settings
from epctl.model.plan.types import EpFamily, PlanReport
from epctl.model.refusal import RefusalError
from epctl.model.show.sections import head


def render(report: PlanReport) -> str:
    """Lines to be read, edited and sourced; what is no variable is a comment. Raises RefusalError without dispatch and combine."""
    ep = report.ep
    if not isinstance(ep, EpFamily):
        why = "settings follow from a plan of dispatch and combine"
        raise RefusalError("value_invalid", "--format env is asked for another family", why, "give --what ep")
    first = head(report)
    lines = [f"# {plain(line)}" for line in (first.title, *first.lines, *([first.sample] if first.sample else []))]
    lines += _comment(f"{'Fits' if report.fits else 'Does not fit'}: {report.verdict}")
    program = ""
    for setting in settings(report, ep):
        if setting.program != program:
            program = setting.program
            lines += ["", f"## {program}: {SOURCES[program]}"]
        lines += _comment(setting.why)
        lines.append(f"#   {setting.line}" if setting.argument else setting.line)
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(plain(text), 100, initial_indent="# ", subsequent_indent="# ")
