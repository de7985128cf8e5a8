"""Two fabrics, or two ways over one, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from epctl.fabric.report import Report, TrafficReport, mean_of
from epctl.fabric.wording import listed, traffic_name, verb

SCHEMA = {"name": "epctl.fabric.compare", "version": 1}
METRICS = ("rdma_bytes", "spine_bytes", "nvlink_bytes", "hops", "largest_link_bytes")


class Difference(Struct, frozen=True):
    """One figure on both sides; means where there are several seeds. A side without the traffic has none."""

    phase: str
    traffic: str
    metric: str
    a: float | UnsetType = UNSET
    b: float | UnsetType = UNSET
    ratio: float | UnsetType = UNSET
    """b / a, where both are and a is not zero."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Both reports and what differs."""

    schema: dict[str, Any]
    names: tuple[str, str]
    differences: tuple[Difference, ...]
    findings: tuple[str, ...]
    reports: tuple[Report, Report]
    """Without single flows."""


def compare(names: tuple[str, str], a: Report, b: Report) -> Comparison:
    """Every figure of every traffic that either side has."""
    rows = tuple(_differences(a, b))
    reports = (_short(a), _short(b))
    return Comparison(
        schema=SCHEMA, names=names, differences=rows, findings=tuple(_findings(names, rows)), reports=reports
    )


def _short(report: Report) -> Report:
    rows = [
        msgspec.structs.replace(row, flow_rows=(), flows_left_out=row.flows_left_out + len(row.flow_rows))
        for row in report.traffic
    ]
    return msgspec.structs.replace(report, traffic=tuple(rows))


def _differences(a: Report, b: Report) -> Iterator[Difference]:
    left, right = ({(row.phase, row.traffic): row for row in report.traffic} for report in (a, b))
    for phase, traffic in dict.fromkeys((*left, *right)):
        for metric in METRICS:
            x, y = (_value(side.get((phase, traffic)), metric) for side in (left, right))
            ratio = y / x if not isinstance(x, UnsetType) and not isinstance(y, UnsetType) and x else UNSET
            yield Difference(phase, traffic, metric, x, y, ratio)


def _value(row: TrafficReport | None, metric: str) -> float | UnsetType:
    return UNSET if row is None else mean_of(getattr(row, metric))


def _findings(names: tuple[str, str], rows: tuple[Difference, ...]) -> Iterator[str]:
    by_metric: dict[str, list[Difference]] = {}
    for row in rows:
        by_metric.setdefault(row.metric, []).append(row)
    spine = by_metric["spine_bytes"]
    avoided = [traffic_name(row) for row in spine if row.a and row.b == 0]
    used = [traffic_name(row) for row in spine if row.a == 0 and row.b]
    both = [row for row in spine if row.a and row.b and not isinstance(row.ratio, UnsetType)]
    for told, mine, other in ((avoided, names[1], names[0]), (used, names[0], names[1])):
        if told:
            yield f"{mine} keeps {listed(told)} off the spines; {other} does not."
    changes: dict[str, list[str]] = {}
    for row in both:
        ratio = row.ratio
        if not isinstance(ratio, UnsetType) and abs(ratio - 1) >= 0.01:
            change = f"{abs(1 - ratio) * 100:.0f} % {'fewer' if ratio < 1 else 'more'}"
            changes.setdefault(change, []).append(traffic_name(row))
    for change, told in changes.items():
        yield f"{listed(told)} {verb(told, 'needs', 'need')} spines with both, and {change} bytes cross them with {names[1]}."
    for metric, word in (("rdma_bytes", "RDMA"), ("nvlink_bytes", "NVLink")):
        if all(row.a == row.b for row in by_metric[metric]):
            yield f"{word} bytes are the same with both."
    fullest = [
        f"{row.ratio:.2f} for {traffic_name(row)}"
        for row in by_metric["largest_link_bytes"]
        if not isinstance(row.ratio, UnsetType) and abs(row.ratio - 1) >= 0.05
    ]
    if fullest:
        yield f"The fullest link with {names[1]}, as a multiple of that with {names[0]}: {listed(fullest)}."
