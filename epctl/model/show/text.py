"""A report as text, 80 columns unless told otherwise."""

from __future__ import annotations

from msgspec import UnsetType

from epctl.model.plan.types import EpFamily, PlanReport
from epctl.model.show.page import Look, Page
from epctl.model.show.sections import head, sections
from epctl.model.show.shape import Line, Section

_STYLES = {"": "", "binding": "bold", "bad": "red", "more": "dim"}
_SIGNS = {"": "  ", "binding": "> ", "bad": "! ", "more": "  "}


def render(report: PlanReport, look: Look) -> str:
    """Waterfall, sensitivities, budgets, references, advice, inputs, verdict."""
    page = Page(look)
    first = head(report)
    page.line(first.title, "bold")
    if first.sample:
        page.line(first.sample, "yellow")
    for line in first.lines:
        page.line(line)
    for section in sections(report):
        page.blank()
        draw(page, section)
    page.blank()
    _verdict(page, report)
    return page.text()


def draw(page: Page, section: Section) -> None:
    """One section: title, lines, table."""
    page.line(section.title, "bold")
    for line in section.lines:
        page.put(line, "    " if section.bullets else "  ", first="  - " if section.bullets else "  ")
    rows = [(_signed(row), _STYLES[row.mark]) for row in section.rows]
    columns = ("  " + section.columns[0], *section.columns[1:]) if section.columns else ()
    page.table(rows, section.right, columns)


def _signed(row: Line) -> tuple[str, ...]:
    return (_SIGNS[row.mark] + row.cells[0], *row.cells[1:])


def _verdict(page: Page, report: PlanReport) -> None:
    for note in report.notes:
        page.line(note, "yellow")
    if report.fits:
        page.line("FITS: every budget holds it" if isinstance(report.ep, EpFamily) else "PLANNED", "green")
        return
    page.line("DOES NOT FIT", "red")
    page.line(report.verdict)
    ep = report.ep
    if isinstance(ep, EpFamily) and not isinstance(ep.nearest, UnsetType):
        near = ep.nearest
        shape = f"{near.num_nodes} nodes, {near.mode}, {near.num_max_tokens_per_rank} tokens a rank, {near.num_contexts} QPs a peer"
        page.line(f"nearest plan that fits: {shape}, {near.num_sms} SMs")
