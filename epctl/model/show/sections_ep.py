"""Sections about dispatch and combine."""

from __future__ import annotations

from msgspec import UnsetType

from epctl.model import ep_types
from epctl.model.limits import KERNEL_LIMITS
from epctl.model.plan.types import EpFamily, ReferenceRow
from epctl.model.show.page import bar
from epctl.model.show.shape import Line, Mark, Section
from epctl.model.show.words import LINKS, TERMS, change, moved, number, size, us
from epctl.model.spread import Spread
from epctl.model.timing_types import StageTime


def ep_sections(ep: EpFamily) -> list[Section]:
    """In the order in which they are shown; empty ones are left out."""
    found = [
        _plan(ep),
        _counts(ep),
        *(_time(time, floor=ep.floor) for time in ep.times.values()),
        _sensitivities(ep),
        _budgets(ep),
        _gate(ep),
        _layout(ep),
        _decode(ep),
        _reference(ep),
        Section("Advice", lines=ep.advice, bullets=True),
    ]
    return [section for section in found if section.lines or section.rows]


def _plan(ep: EpFamily) -> Section:
    left = f"{ep.sms_left} left for other kernels"
    qps = f"{ep.qps.used} used of {ep.qps.allocated} allocated to each peer"
    holds = f"{ep.largest_tokens} tokens a rank" if ep.largest_tokens else "not even one token a rank"
    work = f"{size(ep.buffer_bytes)} + workspace {size(ep.workspace.allocated_bytes)}; the memory would hold {holds}"
    link = f"{LINKS[ep.slowest_link]} takes longest"
    if ep.bound_link != ep.slowest_link:
        link += f"; the rules plan for {LINKS[ep.bound_link]}"
    rows = [
        Line(("SMs", f"{ep.num_sms} of {ep.num_sms + ep.sms_left}; {left}")),
        Line(("QPs", qps)),
        Line(("buffer", work)),
        Line(("link", link)),
    ]
    rows += [Line((name, _time_told(time, floor=ep.floor))) for name, time in ep.times.items()]
    if not isinstance(ep.channels, UnsetType):
        rows.append(Line(("channels", f"{ep.channels.channels_per_sm} an SM, {ep.channels.num_channels} in all")))
    if not isinstance(ep.warps, UnsetType):
        rows.append(Line(("warps", f"{ep.warps.dispatch_warps} a block for dispatch, {ep.warps.num_threads} threads")))
    july = ep.july_2026_release
    if july.num_sms != ep.num_sms:
        rows.append(Line(("July 2026", f"that release of DeepEP planned {july.num_sms} SMs")))
    rows += [Line(("limit", f"{code}: {KERNEL_LIMITS[code][0]}"), "bad") for code in _broken(ep)]
    return Section("Plan", rows=tuple(rows))


def _broken(ep: EpFamily) -> tuple[str, ...]:
    found = dict.fromkeys((*ep.kernel_limits_broken, *ep.buffer.kernel_limits_broken))
    for more in (ep.channels, ep.warps):
        if not isinstance(more, UnsetType):
            found |= dict.fromkeys(more.kernel_limits_broken)
    return tuple(found)


def headline(time: StageTime, *, floor: bool) -> str:
    """The time that the group waits for, its range, and the mean where ranks differ. floor: no kernel was measured, it is a bound."""
    text = f"{us(time.us_slow_rank)} us{' floor' if floor else ''}"
    if not _uneven(time):
        return f"{text} ({us(time.us_low)} to {us(time.us_high)})"
    return f"{text} on the busiest rank (at most {us(time.us_high)}; {us(time.us)} on the mean one)"


def _uneven(time: StageTime) -> bool:
    return time.us_slow_rank > time.us * 1.0005


def _time_told(time: StageTime, *, floor: bool) -> str:
    text = headline(time, floor=floor)
    if _uneven(time):
        text += f", bound by {TERMS[time.binding_slow_rank]}; the mean one"
    text += f"{' gets' if _uneven(time) else ','} {number(round(time.logical_gbs, 1))} GB/s logical"
    if time.wire_link != "none":
        text += f", {number(round(time.wire_gbs, 1))} GB/s on the {LINKS[time.wire_link]} wire"
    return f"{text}; bound by {TERMS[time.binding]}"


def _counts(ep: EpFamily) -> Section:
    rows = []
    for term in ep.terms:
        value = f"{number(term.value)} {_unit(term)}".strip()
        mark: Mark = "binding" if term.binding else ""
        formula, rest = _with_values(term)
        rows.append(Line((term.name, value, f"= {formula}"), mark))
        if rest:
            rows.append(Line(("", "", rest), "more"))
    lines = ("> decides the next step. Traffic is in copies: 1 is what one rank receives of one token.",)
    return Section("How SMs and QPs come about", lines=lines, rows=tuple(rows))


def _with_values(term: ep_types.Term) -> tuple[str, str]:
    """The formula with each input's value behind its name, where it names them all word by word; else formula and inputs apart."""
    words = term.formula.split()
    if any(words.count(name) != 1 for name in term.inputs):
        return term.formula, "; ".join(f"{name} {number(given)}" for name, given in term.inputs.items())
    for name, given in term.inputs.items():
        words[words.index(name)] = f"{name} {number(given)}"
    return " ".join(words), ""


def _unit(term: ep_types.Term) -> str:
    return {"ns per byte of a copy": "ns/B", "QPs (slow atomics)": "QPs"}.get(term.unit, term.unit)


def _time(time: StageTime, *, floor: bool) -> Section:
    most = max((term.us for term in time.terms), default=0.0) or 1.0
    rows = []
    for term in sorted(time.terms, key=lambda term: not term.adds):
        way = "+" if term.adds else "|"
        cells = (way, TERMS[term.name], us(term.us), bar(term.us / most), moved(term.bytes), term.formula)
        rows.append(Line(cells, "binding" if term.binding else ""))
    line = "> binds; + adds up; | runs at the same time, hidden behind the slowest."
    lines = (line, "The rows are of the mean rank.") if _uneven(time) else (line,)
    title = f"Time of {time.stage}: {headline(time, floor=floor)}"
    columns = ("", "term", "us", "", "bytes", "bytes / rate")
    return Section(title, lines=lines, columns=columns, rows=tuple(rows), right=frozenset({2, 4}))


def _sensitivities(ep: EpFamily) -> Section:
    rows = [
        Line(
            (
                entry.change,
                number(entry.num_sms),
                number(entry.mode),
                us(entry.dispatch_us),
                us(entry.combine_us),
                change(entry.ratio),
                entry.note,
            )
        )
        for entry in ep.sensitivities
    ]
    columns = ("change", "SMs", "mode", "dispatch", "combine", "both", "")
    where = " on the busiest rank" if any(_uneven(time) for time in ep.times.values()) else ""
    return Section(f"What if (times in us{where})", columns=columns, rows=tuple(rows), right=frozenset({1, 3, 4, 5}))


def _budgets(ep: EpFamily) -> Section:
    rows = []
    for entry in ep.budgets:
        used, limit = float(entry.used.value), float(entry.limit.value)
        share = used / limit if limit else float(used > 0) * 2
        percent = "" if entry.name == "kernel_limits" else f"{share * 100:.0f} %" if share < 10 else "> 999 %"
        drawn = "" if entry.name == "kernel_limits" else bar(share)
        rows.append(Line((entry.name, drawn, percent, entry.text), "" if entry.fits else "bad"))
    return Section("Budgets", rows=tuple(rows), right=frozenset({2}))


def _gate(ep: EpFamily) -> Section:
    gate = ep.gate
    if not isinstance(gate.ranks, Spread):
        return Section("")
    rows = []
    for name, spread in (("ranks", gate.ranks), ("nodes", gate.nodes)):
        if isinstance(spread, Spread):
            cells = (name, f"{spread.mean:.4f}", number(spread.p50), number(spread.p99), _closed(spread))
            rows.append(Line((*cells, f"{spread.load.max:.3f}", f"{spread.load.step_max_mean:.3f}")))
    lines = (
        f"{gate.name}: {gate.kind}. Load: the busiest group over the mean of all.",
        f"A step is {gate.ranks.load.step_tokens} tokens of all ranks together; the group waits for its busiest rank.",
    )
    columns = ("a token reaches", "mean", "p50", "p99", "closed form", "load, all", "load, step")
    return Section("Gate", lines=lines, columns=columns, rows=tuple(rows), right=frozenset(range(1, 7)))


def _closed(spread: Spread) -> str:
    if isinstance(spread.closed_form, UnsetType):
        return "-"
    if not isinstance(spread.z, UnsetType):
        return f"{spread.closed_form:.4f} (z {spread.z:+.1f})"
    return f"{spread.closed_form:.4f} (blind)"


def _layout(ep: EpFamily) -> Section:
    if isinstance(ep.layout, UnsetType):
        return Section("")
    rows = tuple(Line((step.name, number(step.value), step.formula)) for step in ep.layout.steps)
    return Section("Layout (DeepInfer's rules)", rows=rows, right=frozenset({1}))


def _decode(ep: EpFamily) -> Section:
    if isinstance(ep.decode_rate, UnsetType):
        return Section("")
    rate = ep.decode_rate
    rows = tuple(Line((step.name, number(float(step.value)), step.formula)) for step in rate.steps)
    each = f"{number(rate.per_request_tokens_per_second)} tokens/s for one request"
    return Section("Decode throughput", lines=(each,), rows=rows, right=frozenset({1}))


MAX_REFERENCES = 6
"""Published figures shown; JSON has them all."""


def _reference(ep: EpFamily) -> Section:
    """The nearest ones: comparable first, then by how little differs."""
    if not ep.reference:
        return Section("")
    ordered = sorted(ep.reference, key=lambda row: (row.predicted is None, len(row.differs)))
    rows = []
    for row in ordered[:MAX_REFERENCES]:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        mine = "-" if row.predicted is None else number(row.predicted)
        cells = (row.op, f"{number(float(row.value))} {row.unit}", mine, ratio, _who(row))
        rows.append(Line(cells))
        more = f"{row.source}{'; differs in ' if row.differs else ''}{'; '.join(row.differs)}"
        rows.append(Line(("", "", "", "", more), "more"))
    lines = [
        "Of the same ranks, tokens, hidden, top-k and type, published by others; none was measured by epctl.",
        "model: this plan's figure by the row's own way to count.",
    ]
    if len(ordered) > MAX_REFERENCES:
        lines.append(f"The nearest {MAX_REFERENCES} of {len(ordered)}; --format json has them all.")
    columns = ("stage", "published", "model", "ratio", "by whom, and what differs")
    return Section(
        "Published results", lines=tuple(lines), columns=columns, rows=tuple(rows), right=frozenset({1, 2, 3})
    )


def _who(row: ReferenceRow) -> str:
    sms = f", {row.num_sms} SMs" if row.num_sms is not None else ""
    return f"{row.generation} {row.kernel}, {row.metric} over {LINKS[row.link]}{sms} ({row.hardware})"
