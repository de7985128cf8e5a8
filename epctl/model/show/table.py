"""Rows of a sweep (or of one plan) as CSV, JSON, and as a table for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from epctl.core.render.safe import plain
from epctl.model.lb import LbPlan
from epctl.model.plan.sweep import EpRow, Row
from epctl.model.plan.types import BucketFamily, EngramFamily, PpFamily, Refused
from epctl.model.show.markdown import escaped
from epctl.model.show.markdown import table as markdown_table
from epctl.model.show.page import Look, Page
from epctl.model.show.words import number, plural

SHOWN: dict[type, dict[str, str]] = {
    EpRow: {
        "mode": "mode",
        "ranks": "num_ranks",
        "SMs": "num_sms",
        "QPs": "qps.used",
        "dispatch": "times.dispatch.us_slow_rank",
        "combine": "times.combine.us_slow_rank",
        "bound by": "times.dispatch.binding",
        "MiB": "buffer_bytes",
    },
    LbPlan: {"SMs": "num_sms", "demand": "sm_demand"},
    BucketFamily: {"op": "op", "SMs": "num_sms", "domain": "domain", "GB/s": "rate_gbs", "demand": "sm_demand"},
    EngramFamily: {"QPs": "num_qps", "depth": "qp_depth", "GPU MiB": "gpu_bytes", "entries MiB": "rdma_storage_bytes"},
    PpFamily: {"MiB": "storage_bytes"},
}
"""By kind of plan: column → where it is, for the tables that people read."""
_LEFT = frozenset({"mode", "bound by", "fits", "op", "domain"})


def csv_text(rows: Iterable[Row]) -> str:
    """A header and a line a combination: its keys, status, every number under its path in JSON, and the error where there is one."""
    found = list(rows)
    every = columns(found)
    names = list(dict.fromkeys(name for paths in every.values() for name in paths)) or ["status"]
    getters = {
        kind: (paths, attrgetter("status", *paths), _mended(kind, paths, found)) for kind, paths in every.items()
    }
    keys = [f"asked.{key}" if key in names else key for key in found[0].keys]
    lines = [_by_csv([*keys, *names, "error_code", "error"])]
    encode = msgspec.json.Encoder().encode
    for row in found:
        plan = row.plan
        if isinstance(plan, Refused):
            blanks = [""] * (len(names) - 1)
            cells: list[Any] = [plan.status, *blanks, plan.error_code, f"{plan.what}: {plan.why}"]
        else:
            paths, get, mended = getters[type(plan)]
            cells = list(get(plan)[1:])
            for i in mended:
                cells[i] = _cell(cells[i])
            if len(every) > 1:
                mine = dict(zip(paths, cells, strict=True))
                cells = [mine.get(name, "") for name in names]
            cells += ["", ""]
        cells = [*row.keys.values(), *cells]
        # A JSON list without escapes is a line of CSV, and written eight times as fast.
        line = encode(cells)[1:-1]
        lines.append(_by_csv([_cell(cell) for cell in cells]) if b"\\" in line else line.decode())
    return "\n".join(lines) + "\n"


def _by_csv(cells: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _mended(kind: type, paths: list[str], rows: list[Row]) -> list[int]:
    """Columns whose values are not written as they are: truths, tuples, values that can be unset."""
    first = next(row.plan for row in rows if type(row.plan) is kind)
    values = attrgetter("status", *paths)(first)[1:]
    return [
        i
        for i, value in enumerate(values)
        if not isinstance(value, str) and (type(value) not in (int, float) or kind is not EpRow)
    ]


def _cell(value: Any) -> Any:  # noqa: ANN401 - a scalar or a tuple
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if value is True or value is False:
        return "true" if value else "false"
    return "" if value is UNSET else value


def columns(rows: list[Row]) -> dict[type, list[str]]:
    """By kind of plan, the paths of all its scalars; status first."""
    firsts: dict[type, Struct] = {}
    for row in rows:
        plan = row.plan
        if not isinstance(plan, Refused):
            firsts.setdefault(type(plan), plan)
    return {kind: ["status", *(name for name in _paths(plan, "") if name != "status")] for kind, plan in firsts.items()}


def _paths(thing: Struct, prefix: str) -> Iterator[str]:
    for name in thing.__struct_fields__:
        value = getattr(thing, name)
        if isinstance(value, Struct):
            yield from _paths(value, f"{prefix}{name}.")
        elif not isinstance(value, dict):
            yield f"{prefix}{name}"


def json_text(rows: Iterable[Row], version: str) -> str:
    """An object with `schema` and `rows`, one row a line: {"keys": …, "ep": …}."""
    encode = msgspec.json.Encoder().encode
    lines = b",\n  ".join(encode(row) for row in rows)
    head = encode({"name": "epctl.plan.sweep", "version": 1}).decode()
    return f'{{\n "schema": {head},\n "epctl": "{version}",\n "rows": [\n  {lines.decode()}\n ]\n}}\n'


def _shown(rows: list[Row]) -> tuple[list[str], list[list[str]], bool]:
    """Columns, cells, and whether the last column (what is wrong) says anything."""
    kinds = dict.fromkeys(type(row.plan) for row in rows if not isinstance(row.plan, Refused))
    names = list(dict.fromkeys(name for kind in kinds for name in SHOWN[kind]))
    get = {kind: {name: attrgetter(path) for name, path in SHOWN[kind].items()} for kind in kinds}
    table = []
    for row in rows:
        cells = [number(value) for value in row.keys.values()]
        plan = row.plan
        if isinstance(plan, Refused):
            table.append([*cells, *[""] * len(names), plan.error_code])
            continue
        mine = get[type(plan)]
        cells += [_short(name, mine[name](plan)) if name in mine else "" for name in names]
        table.append([*cells, " ".join(getattr(plan, "budgets_broken", ()))])
    noted = any(row[-1] for row in table)
    return [*rows[0].keys, *names, "does not fit"], table, noted


def _short(name: str, value: Any) -> str:  # noqa: ANN401 - a scalar
    if name.endswith("MiB"):
        return number(value / (1 << 20))
    if name in ("dispatch", "combine"):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return number(value)


def text(rows: Iterable[Row], look: Look) -> str:
    """A table for a terminal."""
    found = list(rows)
    names, table, noted = _shown(found)
    page = Page(look)
    page.line(_title(found), "bold")
    cells = [([plain(cell) for cell in row] if noted else [plain(cell) for cell in row[:-1]], "") for row in table]
    page.table(cells, _right(names, found), names if noted else names[:-1])
    for line in _reasons(found):
        page.line(line)
    return page.text()


def _title(rows: list[Row]) -> str:
    refused = sum(isinstance(row.plan, Refused) for row in rows)
    times = "; times in us" if any(isinstance(row.plan, EpRow) for row in rows) else ""
    return f"epctl plan: {plural(len(rows), 'combination')}{f', {refused} cannot be planned' if refused else ''}{times}"


def _reasons(rows: list[Row]) -> list[str]:
    """What is wrong, for the first row of each kind of refusal."""
    firsts: dict[str, Refused] = {}
    for row in rows:
        if isinstance(row.plan, Refused):
            firsts.setdefault(row.plan.error_code, row.plan)
    return [f"{code}: {plan.what}: {plan.why}; {plan.todo}" for code, plan in firsts.items()]


def markdown(rows: Iterable[Row]) -> str:
    """The same as Markdown."""
    found = list(rows)
    names, table, _ = _shown(found)
    cells = [[escaped(cell) for cell in row] for row in table]
    parts = [f"# {_title(found)}", markdown_table(tuple(names), cells, _right(names, found))]
    return "\n\n".join([*parts, *(escaped(line) for line in _reasons(found))]) + "\n"


def _right(names: list[str], rows: list[Row]) -> frozenset[int]:
    """Columns of numbers."""
    words = {key for row in rows for key, value in row.keys.items() if isinstance(value, str)}
    return frozenset(i for i, name in enumerate(names[:-1]) if name not in _LEFT | words)
