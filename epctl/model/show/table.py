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
from epctl.model.plan.sweep import EpRow, Row
from epctl.model.plan.types import Refused
from epctl.model.show.markdown import escaped
from epctl.model.show.markdown import table as markdown_table
from epctl.model.show.page import Look, Page
from epctl.model.show.words import number

SHOWN = {
    "ep": {
        "mode": "mode",
        "ranks": "num_ranks",
        "SMs": "num_sms",
        "QPs": "qps.used",
        "dispatch us": "times.dispatch.us",
        "combine us": "times.combine.us",
        "GB/s": "times.dispatch.logical_gbs",
        "bound by": "times.dispatch.binding",
        "MiB": "buffer_bytes",
        "fits": "fits",
    },
    "lb": {"SMs": "num_sms", "demand": "sm_demand"},
    "bucket": {"op": "op", "SMs": "num_sms", "domain": "domain", "GB/s": "rate_gbs", "demand": "sm_demand"},
    "engram": {"QPs": "num_qps", "depth": "qp_depth", "GPU MiB": "gpu_bytes", "entries MiB": "rdma_storage_bytes"},
    "pp": {"MiB": "storage_bytes"},
}
"""By family: column → where it is, for the tables that people read."""
_LEFT = frozenset({"mode", "bound by", "fits", "op", "domain"})


def csv_text(rows: Iterable[Row]) -> str:
    """A header and a line a combination: its keys, status, error, and every number under its path in JSON."""
    found = list(rows)
    names = columns(found)
    keys = [f"asked.{key}" if key in names else key for key in found[0].keys]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *names, "error_code", "error"])
    get = attrgetter(*names)
    for row in found:
        plan = row.plan
        if isinstance(plan, Refused):
            blanks = [""] * (len(names) - 1)
            writer.writerow([*row.keys.values(), plan.status, *blanks, plan.error_code, f"{plan.what}: {plan.why}"])
        else:
            values = get(plan) if len(names) > 1 else (get(plan),)
            writer.writerow([*row.keys.values(), *map(_cell, values), "", ""])
    return text.getvalue()


def _cell(value: Any) -> Any:  # noqa: ANN401 - a scalar or a tuple
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if value is True or value is False:
        return "true" if value else "false"
    return "" if value is UNSET else value


def columns(rows: list[Row]) -> list[str]:
    """Paths of all scalars of the first row that was planned; status first."""
    first = next((row.plan for row in rows if not isinstance(row.plan, Refused)), None)
    found = list(_paths(first, "")) if first is not None else []
    return ["status", *(name for name in found if name != "status")]


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


def _shown(rows: list[Row], what: str) -> tuple[list[str], list[list[str]]]:
    names = SHOWN[what]
    get = {name: attrgetter(path) for name, path in names.items()}
    table = []
    for row in rows:
        cells = [number(value) for value in row.keys.values()]
        plan = row.plan
        if isinstance(plan, Refused):
            table.append([*cells, *[""] * len(names), f"{plan.what}: {plan.why}"])
            continue
        cells += [_short(name, getter(plan)) for name, getter in get.items()]
        table.append([*cells, "" if not isinstance(plan, EpRow) else " ".join(plan.kernel_limits_broken)])
    return [*rows[0].keys, *names, ""], table


def _short(name: str, value: Any) -> str:  # noqa: ANN401 - a scalar
    if name.endswith("MiB"):
        return number(value / (1 << 20))
    if name.endswith(" us"):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:.0f}" if name == "GB/s" and isinstance(value, float) and value >= 100 else number(value)


def text(rows: Iterable[Row], what: str, look: Look) -> str:
    """A table for a terminal."""
    found = list(rows)
    names, table = _shown(found, what)
    page = Page(look)
    refused = sum(isinstance(row.plan, Refused) for row in found)
    page.line(f"epctl plan: {len(found)} combinations" + (f", {refused} cannot be planned" if refused else ""), "bold")
    right = frozenset(i for i, name in enumerate(names) if name not in _LEFT and i < len(names) - 1)
    used = [i for i in range(len(names)) if i < len(names) - 1 or any(row[i] for row in table)]
    cells = [([plain(row[i]) for i in used], "") for row in table]
    if len(used) < len(names):
        cells = [([*row, ""], style) for row, style in cells]
    page.table(cells, right, names)
    return page.text()


def markdown(rows: Iterable[Row], what: str) -> str:
    """The same as Markdown."""
    found = list(rows)
    names, table = _shown(found, what)
    cells = [[escaped(cell) for cell in row] for row in table]
    right = frozenset(i for i, name in enumerate(names) if name not in _LEFT and i < len(names) - 1)
    return f"# epctl plan: {len(found)} combinations\n\n{markdown_table(tuple(names), cells, right)}\n"
