"""What `epctl bench` shows of calls that tell more than a time: bandwidths, rivals, waits, overlap, and what each kind of call gives."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from epctl.bench.record import Row
from epctl.core.render.safe import plain

NAME_COLUMNS = 34
WIDTH = 80
MAX_RIVALS = 3


def sections(rows: Iterable[Row]) -> list[str]:
    """Tables and lines, whole ones; none where no row tells anything."""
    telling = [row for row in rows if row.ok and row.told]
    return [part for part in (table(telling), waits(telling), overlap(telling), contracts(telling)) if part]


def rivals_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """Names of those that are compared with, in the order of the run."""
    return tuple(dict.fromkeys(name for row in rows for name in row.ratios))[:MAX_RIVALS]


def table(rows: list[Row]) -> str:
    """SMs, logical and wire GB/s, and how many times as long each rival takes."""
    shown = [row for row in rows if row.hidden_share is None and _is_call(row)]
    if not shown:
        return ""
    rivals = rivals_of(shown)
    head = f"{'call':{NAME_COLUMNS}}{'SMs':>4}{'logical':>8}{'wire':>8}" + "".join(f"{plain(one):>8}" for one in rivals)
    lines = ["GB/s of what a rank is given (logical) and of what crosses its link (wire)"]
    lines += ["and the time of each rival over ours: above 1, ours is faster"] if rivals else []
    lines.append(head)
    for row in shown:
        sms = max(one.num_sms for one in row.told)
        ratios = "".join(f"{_ratio(row.ratios.get(one)):>8}" for one in rivals)
        numbers = f"{sms or '-':>4}{_gbs(row.logical_gbs):>8}{_gbs(row.gbs):>8}{ratios}"
        lines.append(f"{row.case:{NAME_COLUMNS}}{numbers}".rstrip())
    return "\n".join(lines) + "\n"


def _is_call(row: Row) -> bool:
    """It tells more than which adapter carried it."""
    return row.logical_gbs is not None or bool(row.ratios) or any(one.num_sms for one in row.told)


def _gbs(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def waits(rows: list[Row]) -> str:
    """A matrix for each call that tells it."""
    parts = []
    for row in rows:
        if not all(one.waited_us for one in row.told):
            continue
        ranks = range(len(row.told))
        lines = [f"{row.case}: mean wait in µs of each rank (row) for each other (column)"]
        lines.append("      " + "".join(f"{rank:>8}" for rank in ranks))
        for rank, one in enumerate(row.told):
            lines.append(f"{rank:>6}" + "".join(f"{waited:>8.2f}" for waited in one.waited_us))
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def overlap(rows: list[Row]) -> str:
    """A line for each call that something was computed beside."""
    shown = [row for row in rows if row.hidden_share is not None]
    if not shown:
        return ""
    head = f"{'call beside a matrix product, µs':{NAME_COLUMNS}}{'call':>9}{'product':>9}{'both':>9}{'hidden':>9}"
    lines = [head]
    for row in shown:
        times = (
            max(one.communication_us for one in row.told),
            max(one.computation_us for one in row.told),
            max(one.together_us for one in row.told),
        )
        cells = "".join(f"{one:>9.1f}" for one in times)
        lines.append(f"{row.case:{NAME_COLUMNS}}{cells}{row.hidden_share:>9.0%}")
    return "\n".join(lines) + "\n"


def contracts(rows: list[Row]) -> str:
    """What the caller of each kind of call gets, once."""
    found: dict[str, str] = {}
    for row in rows:
        kind = str(row.params.get("by", ""))
        if kind == "epctl":
            kind = "overlap" if row.params.get("overlap") else str(row.params.get("place", "epctl"))
        for one in row.told:
            if one.note:
                found.setdefault(kind, one.note)
    return "".join(
        textwrap.fill(plain(f"{kind}: {note}"), WIDTH, subsequent_indent="  ", break_on_hyphens=False) + "\n"
        for kind, note in found.items()
    )
