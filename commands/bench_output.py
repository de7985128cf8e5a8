"""How `epctl bench` shows its rows: while they come, and the whole record at the end."""

from __future__ import annotations

import csv
import io
import textwrap
from collections import Counter
from collections.abc import Iterable

from epctl.bench import header
from epctl.bench.record import Record, Row
from epctl.commands import bench_calls, bench_network
from epctl.core.op import Layout
from epctl.core.render.safe import plain
from epctl.core.wording import counted

NAME_COLUMNS = 34
WIDTH = 80
HEAD = f"{'case':{NAME_COLUMNS}}{'µs':>9} {'GB/s':>6}{'plan µs':>9}{'limit':>6}  verdict"
UNSETTLED = "~"
COLUMNS = (
    "op",
    "case",
    "ok",
    "verdict",
    "median_us",
    "low_us",
    "high_us",
    "num_samples",
    "gbs",
    "predicted_us",
    "limit_us",
    "limit_share",
    "limit_name",
    "logical_gbs",
    "num_sms",
    "ratios",
    "hidden_share",
    "carried_by",
    "message",
)


def opening(layout: Layout, num_cases: int) -> str:
    """The topology, and the head of the table."""
    top = "\n".join(plain(line) for line in header.lines(layout))
    return f"{top}\n\n{counted(num_cases, 'case')}; times of the slowest rank\n{HEAD}\n"


def heading(rows: list[Row]) -> str:
    """The name of the op before its first row; '' before others."""
    first = len(rows) < 2 or rows[-1].op != rows[-2].op
    return f"{rows[-1].op}\n" if first else ""


def line(row: Row) -> str:
    """One row of the table; what failed on the line below."""
    if not row.ok:
        why = textwrap.fill(plain(row.message), WIDTH, initial_indent="    ", subsequent_indent="    ")
        return f"{row.case:{NAME_COLUMNS}} FAILED\n{why}\n"
    mark = " " if row.settled else UNSETTLED
    share = "-" if row.limit_share is None else f"{row.limit_share:.0%}"
    numbers = (
        f"{_number(row.median_us, 2):>8}{mark} {_number(row.gbs, 1):>6}{_number(row.predicted_us, 2):>9}{share:>6}"
    )
    return f"{row.case:{NAME_COLUMNS}}{numbers}  {row.verdict.word}\n"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 99_999 else f"{value:.0f}"


def closing(record: Record) -> str:
    """Matrix of pairs, what calls tell, summary, warnings."""
    parts = [matrix(record.rows), *bench_calls.sections(record.rows), summary(record)]
    return "\n" + "\n".join(part for part in parts if part)


def summary(record: Record) -> str:
    """`30 cases: 12 at-limit, 18 as-predicted`, and everything that makes figures doubtful."""
    words = Counter(row.verdict.word for row in record.rows)
    told = ", ".join(f"{count} {word}" for word, count in words.most_common())
    lines = [f"{counted(len(record.rows), 'case')}: {told or 'none ran'}"]
    if any(row.ok and not row.settled for row in record.rows):
        lines.append(f"{UNSETTLED} the median's 95 % interval is wider than 1 %: the budget was over (--budget)")
    lines += [
        wrapped
        for text in (*bench_network.lines(record), *header.absences(record.absent))
        for wrapped in _wrapped(text)
    ]
    lines += [f"limit: {name}" for name in _limits(record.rows)]
    lines += [f"warning: {plain(text)}" for text in record.warnings]
    lines += [
        f"warning: {row.op} {row.case} is {row.verdict.word}: {row.verdict.why}" for row in record.rows if _odd(row)
    ]
    if not record.complete:
        lines.append("INCOMPLETE: the run ended before all cases had")
    lines += list(record.cautions)
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(plain(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _odd(row: Row) -> bool:
    return row.ok and row.verdict.warns


def _limits(rows: Iterable[Row]) -> tuple[str, ...]:
    """Each limit and its source, once."""
    found = [row.limit for row in rows if row.limit is not None]
    units = {"gbs": "GB/s", "us": "µs"}
    return tuple(dict.fromkeys(f"{one.name} {one.value:.0f} {units[one.unit]} ({plain(one.source)})" for one in found))


def matrix(rows: tuple[Row, ...]) -> str:
    """GB/s of every ordered pair of the bulk writes of one rank to another; '' with fewer than two pairs."""
    pairs = {
        (int(row.params["source"]), int(row.params["target"])): row.gbs
        for row in rows
        if row.gbs is not None and row.params.get("kind") == "bulk-write" and "source" in row.params
    }
    if len(pairs) < 2:
        return ""
    ranks = sorted({rank for pair in pairs for rank in pair})
    lines = ["bulk writes of one rank at a time, GB/s, row to column"]
    lines.append("      " + "".join(f"{rank:>7}" for rank in ranks))
    for source in ranks:
        cells = ("-" if source == target else _number(pairs.get((source, target)), 1) for target in ranks)
        lines.append(f"{source:>6}" + "".join(f"{cell:>7}" for cell in cells))
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[object, ...]:
    return (
        row.op,
        row.case,
        row.ok,
        row.verdict.word,
        row.median_us,
        row.low_us,
        row.high_us,
        len(row.samples_us),
        row.gbs,
        row.predicted_us,
        row.limit_us,
        row.limit_share,
        row.limit.name if row.limit is not None else "",
        row.logical_gbs,
        max((one.num_sms for one in row.told), default=0) or None,
        " ".join(f"{plain(name)}={ratio:.4f}" for name, ratio in row.ratios.items()),
        row.hidden_share,
        " ".join(plain(name) for name in bench_network.carriers(row)),
        plain(row.message),
    )


def csv_text(record: Record) -> str:
    """Rows as CSV below lines with # that tell the topology."""
    stream = io.StringIO()
    for text in header.lines(record.layout):
        stream.write(f"# {plain(text)}\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in record.rows)
    return stream.getvalue()


def markdown(record: Record) -> str:
    """Topology, table and summary."""
    lines = ["# epctl bench", "", f"`{plain(record.command)}`, {plain(record.taken_at)}", ""]
    lines += [f"- {_escaped(text)}" for text in header.lines(record.layout)]
    lines += [
        "",
        "| case | µs | 95 % interval | GB/s | plan µs | of the limit | verdict |",
        "|---|--:|---|--:|--:|--:|---|",
    ]
    for row in record.rows:
        between = "-" if row.low_us is None else f"{_number(row.low_us, 2)} to {_number(row.high_us, 2)}"
        share = "-" if row.limit_share is None else f"{row.limit_share:.0%}"
        verdict = row.verdict.word if row.ok else f"FAILED: {row.message}"
        cells = (
            f"{row.op} `{row.case}`",
            _number(row.median_us, 2),
            between,
            _number(row.gbs, 1),
            _number(row.predicted_us, 2),
            share,
            _escaped(verdict),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for part in (matrix(record.rows), *bench_calls.sections(record.rows)):
        if part:
            lines += ["", "```", part.rstrip(), "```"]
    lines += ["", *(f"{_escaped(text)}  " for text in summary(record).splitlines())]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return plain(text).replace("|", "\\|").replace("<", "&lt;")
