"""Reports as text and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from msgspec import UnsetType

from epctl.core.render.safe import plain
from epctl.core.wording import counted
from epctl.fabric.compare import Comparison
from epctl.fabric.report import Figure, Report, Spread, mean_of
from epctl.fabric.wording import traffic_name
from epctl.model.show.page import Look, Page
from epctl.model.show.words import moved, number, plural

TABLES = ("traffic", "links", "flows")
FULLEST = 8
"""Links that are shown of each traffic."""
STATISTICS = ("mean", "min", "max", "p50", "p99")
FIGURES = ("sends", "rdma_bytes", "spine_bytes", "nvlink_bytes", "hops", "largest_link_bytes", "largest_nic_bytes")


def size(value: float) -> str:
    """Bytes in decimal units; 0 where there are none."""
    return moved(value) or "0"


def text(report: Report, look: Look, table: str = "traffic") -> str:
    """Head, the table that is asked for, what it means."""
    page = Page(look)
    for i, line in enumerate(_head(report)):
        page.line(plain(line), "" if i else "bold")
    page.blank()
    {"traffic": _traffic, "links": _links, "flows": _flows}[table](page, report)
    if table == "traffic":
        _together(page, report)
        _what_if(page, report)
        _weights(page, report)
    for line in (*report.advice, *report.notes) if table == "traffic" else report.notes:
        page.put(plain(line), "  ", first="- ")
    return page.text()


def _head(report: Report) -> Iterator[str]:
    fabric, given = report.fabric, report.inputs
    lanes = f", {plural(fabric.lanes, 'lane')} from each leaf to each spine" if fabric.lanes else ""
    planes = f" in {fabric.planes} planes" if fabric.planes > 1 else ""
    yield (
        f"epctl fabric: {plural(fabric.nodes, 'node')} x {plural(fabric.gpus_per_node, 'GPU')}, {fabric.wiring} wiring: "
        f"{counted(fabric.leaves, 'leaf', 'leaves')}, {plural(fabric.spines, 'spine')}, {plural(fabric.uplinks, 'uplink')}"
        f"{lanes}{planes}"
    )
    sizes = " and ".join(f"{count} ({phase})" for phase, count in report.ep_size.items())
    yield f"Layout {given['layout']}, expert-parallel groups of {sizes} GPUs."
    yield (
        f"Model {given['model']}: {given['experts']} experts, top-{given['topk']}; a send is {given['send_bytes']} B, a return "
        f"{given['return_bytes']} B, KV {given['kv_bytes_per_token']} B a token; gate {given['gate']}."
    )
    seeds = f"seed {given['seed']}" if report.seeds == 1 else f"means over {report.seeds} seeds from {given['seed']}"
    yield f"{plural(given['batch'], 'request')}, {given['prompt_tokens']} prompt tokens; {seeds}."


def _traffic(page: Page, report: Report) -> None:
    page.line("Bytes of one batch: MoE traffic of one layer, KV of all layers", "bold")
    head = ("", "transfer", "RDMA", "spine", "NVLink", "hops", "fullest", "slowdown")
    rows = [
        (
            (
                traffic_name(row),
                row.transfer,
                *(size(mean_of(value)) for value in (row.rdma_bytes, row.spine_bytes, row.nvlink_bytes)),
                number(mean_of(row.hops)),
                size(mean_of(row.largest_link_bytes)),
                "-" if isinstance(row.slowdown, UnsetType) else f"{row.slowdown.p50:.2f}, {row.slowdown.p99:.2f}",
            ),
            "",
        )
        for row in report.traffic
    ]
    page.table(rows, frozenset(range(2, 8)), head)
    page.line(
        "hops: most switches on a path. fullest: largest one-way load of a NIC link or uplink. slowdown: p50 and p99 of "
        "flows that share links fairly, against NICs alone."
    )
    page.blank()
    _over_seeds(page, report)
    _expected(page, report)


def _over_seeds(page: Page, report: Report) -> None:
    if report.seeds == 1:
        return
    page.line(f"Over {report.seeds} seeds", "bold")
    rows = []
    for row in report.traffic:
        for told, value in (("fullest link", row.largest_link_bytes), ("spine", row.spine_bytes)):
            if isinstance(value, Spread) and value.max:
                rows.append(((traffic_name(row), told, *(size(getattr(value, key)) for key in STATISTICS)), ""))
    page.table(rows, frozenset(range(2, 7)), ("", "", *STATISTICS))
    page.blank()


def _expected(page: Page, report: Report) -> None:
    known = [(row, row.expected) for row in report.traffic if not isinstance(row.expected, UnsetType)]
    if not known:
        return
    page.line("Mean over all draws of the gate, by closed form", "bold")
    rows = [
        ((traffic_name(row), *(size(value) for value in (form.rdma_bytes, form.spine_bytes, form.nvlink_bytes))), "")
        for row, form in known
    ]
    page.table(rows, frozenset(range(1, 4)), ("", "RDMA", "spine", "NVLink"))
    page.blank()


def _together(page: Page, report: Report) -> None:
    if not report.together:
        return
    page.line("At the same time", "bold")
    rows = []
    for row in report.together:
        slow = "-" if isinstance(row.slowdown, UnsetType) else f"{row.slowdown.p50:.2f}, {row.slowdown.p99:.2f}"
        rows.append(((row.name, size(mean_of(row.largest_link_bytes)), slow, ", ".join(row.members)), ""))
    page.table(rows, frozenset({1, 2}), ("", "fullest link", "slowdown", "traffic"))
    page.blank()


def _what_if(page: Page, report: Report) -> None:
    if not report.what_if:
        return
    seed = report.inputs["seed"]
    page.line(f"Fullest link with other queue pairs: routing of seed {seed}, mean over seeds of the hash", "bold")
    rows = [
        (
            (
                traffic_name(row),
                str(row.qps),
                str(row.ports),
                size(row.largest_link_bytes),
                size(row.evenly_bytes),
                str(row.seeds),
            ),
            "",
        )
        for row in report.what_if
    ]
    page.table(rows, frozenset(range(1, 6)), ("", "QPs a pair", "ports", "fullest link", "at best", "seeds"))
    page.blank()


def _weights(page: Page, report: Report) -> None:
    if not report.weights:
        return
    page.line("Weights on one GPU", "bold")
    rows = [
        ((row.role, size(row.routed_bytes), size(row.other_bytes), size(row.routed_bytes + row.other_bytes)), "")
        for row in report.weights
    ]
    page.table(rows, frozenset({1, 2, 3}), ("", "routed experts", "all else", "together"))
    page.blank()


def _links(page: Page, report: Report) -> None:
    for row in report.traffic:
        page.line(
            f"{traffic_name(row)}: fullest of {len(row.loads)} links that carry bytes (seed {report.inputs['seed']})",
            "bold",
        )
        loads = sorted(row.loads, key=lambda load: (-max(load.up_bytes, load.down_bytes), load.link))[:FULLEST]
        rows = []
        for load in loads:
            link = report.links[load.link]
            ends = f"{link.lower} - {link.upper}"
            rows.append(((link.kind, ends, str(link.lane), size(load.up_bytes), size(load.down_bytes)), ""))
        page.table(
            [([plain(cell) for cell in cells], style) for cells, style in rows], frozenset({2, 3, 4}), _LINK_HEAD
        )
        page.blank()


_LINK_HEAD = ("", "link", "lane", "up", "down")


def _flows(page: Page, report: Report) -> None:
    for row in report.traffic:
        told = f"{traffic_name(row)}: largest of {len(row.flow_rows)} flows (seed {report.inputs['seed']})"
        page.line(told + (f", {row.flows_left_out} are not listed" if row.flows_left_out else ""), "bold")
        flows = sorted(row.flow_rows, key=lambda flow: (-flow.bytes, flow.source, flow.target))[:FULLEST]
        rows = []
        for flow in flows:
            way = " - ".join(_way(report, flow.path))
            rows.append(((f"GPU {flow.source} to {flow.target}", size(flow.bytes), plain(way)), ""))
        page.table(rows, frozenset({1}), ("", "bytes", "path"))
        page.blank()


def _way(report: Report, path: Sequence[int]) -> Iterator[str]:
    half = len(path) // 2
    for link in path[:half]:
        yield report.links[link].upper
    for link in path[half + 1 :]:
        yield report.links[link].upper


def csv_text(report: Report, table: str = "traffic") -> str:
    """One table: traffic (a line a traffic), links (a line a link and traffic) or flows."""
    rows = {"traffic": _traffic_rows, "links": _link_rows, "flows": _flow_rows}[table](report)
    return _csv(rows)


def _csv(rows: Iterator[Sequence[object]]) -> str:
    found = io.StringIO()
    csv.writer(found, lineterminator="\n").writerows(rows)
    return found.getvalue()


def _traffic_rows(report: Report) -> Iterator[Sequence[object]]:
    names = FIGURES if report.seeds == 1 else [f"{name}.{key}" for name in FIGURES for key in STATISTICS]
    yield "phase", "traffic", "transfer", "unit_bytes", *names
    for row in report.traffic:
        values = [value for name in FIGURES for value in _cells(getattr(row, name))]
        yield row.phase, row.traffic, row.transfer, row.unit_bytes, *values


def _cells(value: Figure) -> list[float]:
    return [getattr(value, key) for key in STATISTICS] if isinstance(value, Spread) else [value]


def _link_rows(report: Report) -> Iterator[Sequence[object]]:
    yield "phase", "traffic", "link", "kind", "lower", "upper", "lane", "plane", "up_bytes", "down_bytes"
    for row in report.traffic:
        for load in row.loads:
            link = report.links[load.link]
            ends = (link.kind, plain(link.lower), plain(link.upper), link.lane, link.plane)
            yield row.phase, row.traffic, load.link, *ends, load.up_bytes, load.down_bytes


def _flow_rows(report: Report) -> Iterator[Sequence[object]]:
    yield "phase", "traffic", "source", "target", "port", "bytes", "path"
    for row in report.traffic:
        for flow in row.flow_rows:
            port = "" if isinstance(flow.port, UnsetType) else flow.port
            path = " ".join(map(str, flow.path))
            yield row.phase, row.traffic, flow.source, flow.target, port, flow.bytes, path


def comparison_text(found: Comparison, look: Look) -> str:
    """A row for every figure, then what it means."""
    page = Page(look)
    a, b = (plain(name) for name in found.names)
    page.line(f"epctl fabric compare: {a} against {b}", "bold")
    page.blank()
    rows = []
    for row in found.differences:
        bytes_ = row.metric != "hops"
        cells = [("-" if isinstance(v, UnsetType) else size(v) if bytes_ else number(v)) for v in (row.a, row.b)]
        ratio = "" if isinstance(row.ratio, UnsetType) else "same" if row.ratio == 1 else f"x {row.ratio:.3g}"
        rows.append(((traffic_name(row), _METRIC[row.metric], *cells, ratio), ""))
    page.table(rows, frozenset({2, 3, 4}), ("", "", a[:20], b[:20], "b / a"))
    page.blank()
    for line in found.findings:
        page.put(plain(line), "  ", first="- ")
    return page.text()


_METRIC = {
    "rdma_bytes": "RDMA",
    "spine_bytes": "spine",
    "nvlink_bytes": "NVLink",
    "hops": "switches",
    "largest_link_bytes": "fullest link",
}


def comparison_csv(found: Comparison) -> str:
    """A line for every figure; a and b are the names that were compared."""
    rows: list[Sequence[object]] = [("phase", "traffic", "metric", *(plain(name) for name in found.names), "ratio")]
    for row in found.differences:
        values = ("" if isinstance(value, UnsetType) else value for value in (row.a, row.b, row.ratio))
        rows.append((row.phase, row.traffic, row.metric, *values))
    return _csv(iter(rows))
