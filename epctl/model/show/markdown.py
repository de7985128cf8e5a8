"""A report as Markdown, for an issue or a document."""

from __future__ import annotations

import re

from msgspec import UnsetType

from epctl.core.render.safe import plain
from epctl.model.plan.types import PlanReport
from epctl.model.show.sections import head, sections
from epctl.model.show.shape import Line, Section

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def render(report: PlanReport) -> str:
    """Head, verdict, then every section as a table."""
    first = head(report)
    parts = [f"# {escaped(first.title)}"]
    if first.sample:
        parts.append(f"**{escaped(first.sample)}**")
    parts.append("  \n".join(escaped(line) for line in first.lines))
    parts.append(f"**{verdict_word(report)}**: {escaped(report.verdict)}")
    parts += [escaped(note) for note in report.notes]
    parts += [_section(section) for section in sections(report)]
    return "\n\n".join(parts) + "\n"


def verdict_word(report: PlanReport) -> str:
    """Fits, Does not fit, or Planned where there are no budgets."""
    if not report.fits:
        return "Does not fit"
    return "Planned" if isinstance(report.ep, UnsetType) else "Fits"


def escaped(text: str) -> str:
    """`text` as Markdown shows it, whatever characters it holds."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def _section(section: Section) -> str:
    parts = [f"## {escaped(section.title)}"]
    if section.bullets:
        parts.append("\n".join(f"- {escaped(line)}" for line in section.lines))
    else:
        parts += [escaped(line) for line in section.lines]
    if section.rows:
        parts.append(table(section.columns, [_cells(row) for row in _joined(section.rows)], section.right))
    return "\n\n".join(parts)


def _joined(rows: tuple[Line, ...]) -> list[Line]:
    """Rows that only continue the one above become part of its last cell."""
    found: list[Line] = []
    for row in rows:
        if row.mark == "more" and found:
            above = found[-1]
            found[-1] = Line((*above.cells[:-1], f"{above.cells[-1]}; {row.cells[-1]}"), above.mark)
        else:
            found.append(row)
    return found


def _cells(row: Line) -> list[str]:
    cells = [escaped(cell) for cell in row.cells]
    if row.mark in ("binding", "bad"):
        return [f"**{cell}**" if cell else "" for cell in cells]
    return cells


def table(columns: tuple[str, ...], rows: list[list[str]], right: frozenset[int]) -> str:
    """A table of cells that are Markdown already."""
    width = len(rows[0])
    names = columns or ("",) * width
    rule = "|".join("---:" if i in right else "---" for i in range(width))
    lines = [f"| {' | '.join(escaped(name) for name in names)} |", f"|{rule}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
