"""From a request to a report: draws, seeds, and what is put together of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from epctl.fabric import detail, ecmp, engine
from epctl.fabric.advice import advice
from epctl.fabric.engine import Job, Loaded
from epctl.fabric.expected import expected
from epctl.fabric.flows import Fixed, Flows, fixed, flows_of
from epctl.fabric.report import SCHEMA, Figure, Report, Together, TrafficReport, WhatIf, figure
from epctl.fabric.request import Request, Settled, absent, settle
from epctl.fabric.routing import Sends
from epctl.fabric.sharing import MAX_FLOWS, Sharing
from epctl.fabric.streams import Stream, draw, num_draws, streams
from epctl.fabric.summary import ep_size, inputs, layout, nodes, weights
from epctl.fabric.whatif import what_if
from epctl.model.refusal import RefusalError
from epctl.model.sampling import Trace, trace_from_rows

Spread = Callable[[Sequence[Job]], list[list[list[int]]]]
"""Runs jobs, here or in other processes, and gives their results in order."""
_KEPT_DRAWS = 1024
JOB_FLOWS = 120_000_000
"""Flows that one job looks at, about: a few seconds, so that sending it elsewhere is cheap."""


def serially(jobs: Sequence[Job]) -> list[list[list[int]]]:
    """All jobs in this process."""
    return [engine.run(job) for job in jobs]


class _Drawn(Struct, frozen=True):
    """One stream under one draw of gate and lengths."""

    sends: Sends
    flows: Flows
    fixed: Fixed


def simulate(
    request: Request,
    rows: Sequence[Sequence[int]] | None = None,
    *,
    version: str = "",
    spread: Spread = serially,
) -> Report:
    """The report of a request. `rows`: top-k indices of tokens, where the gate is a trace. Raises RefusalError for what cannot be."""
    trace = None
    if rows is not None:
        experts = request.experts if request.experts is not None else settle(request, traced=True).experts
        trace = trace_from_rows(rows, experts)
        if request.topk not in (None, trace.num_topk):
            what = f"--topk is {request.topk}, but the rows of the trace have {trace.num_topk} entries"
            why, todo = "a row names the k experts of a token", f"give --topk {trace.num_topk}"
            raise RefusalError("trace_invalid", what, why, todo)
        request = msgspec.structs.replace(request, topk=trace.num_topk)
    found = settle(request, traced=trace is not None)
    return _Run(found, trace, spread).report(version)


class _Run:
    def __init__(self, found: Settled, trace: Trace | None, spread: Spread) -> None:
        self.found = found
        self.request = found.request
        self.trace = trace
        self.every, self.groups = streams(found)
        self.draws = num_draws(found, trace)
        self._known: dict[tuple[str, int], tuple[_Drawn, ...]] = {}
        self.sharing = Sharing(found.fabric, self.groups)
        self.first = self._drawn(0)
        self.loaded: tuple[Loaded, ...] = ()
        """Of the first draw."""
        self.figures: list[tuple[Fixed, ...]] = []
        """By seed, in the order of the draws; `largest` too, by group."""
        self.largest: list[list[int]] = []
        self._go(spread)

    def _go(self, spread: Spread) -> None:
        request = self.request
        different = max(self.draws[stream.phase] for stream in self.every)
        for number in range(different):
            mine = range(request.seed + number, request.seed + request.seeds, different)
            hashes = (request.seed,) * len(mine) if request.redraw == "routing" else tuple(mine)
            drawn = self._drawn(number)
            flows = [each.flows for each in drawn]
            self.figures += [tuple(each.fixed for each in drawn)] * len(hashes)
            self.largest += self._largest(drawn, hashes, spread)
            self.sharing.add(flows, hashes)

    def _drawn(self, number: int) -> tuple[_Drawn, ...]:
        """All streams in draw `number`; phases with fewer draws start again."""
        found: dict[int, _Drawn] = {}
        for phase in dict.fromkeys(stream.phase for stream in self.every):
            key = (phase, number % self.draws[phase])
            if key not in self._known:
                self._known[key] = self._phase(phase, self.request.seed + key[1])
                if len(self._known) > _KEPT_DRAWS:
                    self._known.pop(next(iter(self._known)))
            numbers = [i for i, stream in enumerate(self.every) if stream.phase == phase]
            found.update(zip(numbers, self._known[key], strict=True))
        return tuple(found[i] for i in range(len(self.every)))

    def _phase(self, phase: str, seed: int) -> tuple[_Drawn, ...]:
        fabric = self.found.fabric
        every = []
        for sends in draw(self.found, [stream for stream in self.every if stream.phase == phase], seed, self.trace):
            flows = flows_of(fabric, sends, self.found.pairing)
            every.append(_Drawn(sends, flows, fixed(fabric, sends, flows)))
        return tuple(every)

    def _largest(self, drawn: tuple[_Drawn, ...], seeds: tuple[int, ...], spread: Spread) -> list[list[int]]:
        """By seed, the largest link of each group."""
        fabric = self.found.fabric
        loaded = tuple(Loaded(fabric, each.sends.unit_bytes, each.fixed, each.flows, len(seeds)) for each in drawn)
        self.loaded = self.loaded or loaded
        whole = Job(loaded, self.groups, seeds)
        parts = max(1, min(len(seeds), engine.work(whole) // JOB_FLOWS))
        results = spread([msgspec.structs.replace(whole, seeds=seeds[i::parts]) for i in range(parts)])
        found: list[list[int]] = [[]] * len(seeds)
        for i, part in enumerate(results):
            found[i::parts] = part
        return found

    def report(self, version: str) -> Report:
        """All of it."""
        found, fabric = self.found, self.found.fabric
        kinds = range(len(found.kinds))
        links = detail.num_links(fabric)
        shown = links <= detail.MAX_LINKS
        bare = Report(
            schema=SCHEMA,
            epctl=version,
            inputs=inputs(found),
            fabric=layout(fabric),
            ep_size=ep_size(found),
            seeds=self.request.seeds,
            routing_draws={phase: self.draws[phase] for phase in dict.fromkeys(phase for phase, _ in found.kinds)},
            traffic=tuple(self._traffic(i, shown) for i in kinds),
            together=tuple(self._together(i) for i in range(len(kinds), len(self.groups))),
            what_if=what_if(found, self.every[: len(kinds)], [each.sends for each in self.first[: len(kinds)]])
            if self.request.what_if
            else (),
            weights=weights(found),
            notes=self._notes(shown),
            nodes=nodes(found),
            leaves=fabric.leaf_names,
            spines=fabric.spine_names,
            links=tuple(detail.links(fabric)) if shown else (),
            links_left_out=0 if shown else links,
        )
        return msgspec.structs.replace(bare, advice=advice(found, bare))

    def _traffic(self, i: int, shown: bool) -> TrafficReport:
        stream, sends, flows, fabric = self.every[i], self.first[i].sends, self.first[i].flows, self.found.fabric
        unit, tables = sends.unit_bytes, ecmp.Tables(self.request.seed)
        count = len(flows) + len(sends.nvlink)
        listed = shown and count <= detail.MAX_FLOWS
        return TrafficReport(
            phase=stream.phase,
            traffic=stream.traffic,
            transfer=stream.mode,
            unit_bytes=unit,
            sends=self._figure(i, "rdma", 1),
            rdma_bytes=self._figure(i, "rdma", unit),
            spine_bytes=self._figure(i, "spine", unit),
            nvlink_bytes=self._figure(i, "nvlink", unit),
            hops=self._figure(i, "hops", 1),
            largest_link_bytes=figure([row[i] for row in self.largest]),
            largest_nic_bytes=self._figure(i, "largest_nic", unit),
            flows=len(flows),
            ecmp=self.loaded[i].way,
            slowdown=self.sharing.of(i),
            expected=self._expected(stream),
            loads=detail.loads(fabric, sends, flows, self.loaded[i].hashed(flows, tables)) if shown else (),
            flow_rows=detail.flow_rows(fabric, sends, flows, tables, self.found.pairing) if listed else (),
            flows_left_out=0 if listed else count,
        )

    def _what_if(self, num_kinds: int) -> tuple[WhatIf, ...]:
        if not self.request.what_if:
            return ()
        return what_if(self.found, self.every[:num_kinds], [each.sends for each in self.first[:num_kinds]])

    def _figure(self, i: int, field: str, factor: int) -> Figure:
        return figure([getattr(row[i], field) * factor for row in self.figures])

    def _expected(self, stream: Stream) -> Any:  # noqa: ANN401 - Expected or UNSET
        return UNSET if self.trace is not None else expected(self.found, stream)

    def _together(self, i: int) -> Together:
        group = self.groups[i]
        members = tuple(_named(self.every[j]) for j in group.members)
        largest = figure([row[i] for row in self.largest])
        slowdown = self.sharing.of(i)
        return Together(group.name, members, largest, slowdown)

    def _notes(self, shown: bool) -> tuple[str, ...]:
        request = self.request
        notes = [*request.origin]
        notes += [f"The layout {request.layout} has no {name}." for name in absent(request, self.found.roles)]
        for phase in dict.fromkeys(phase for phase, _ in self.found.kinds if phase != "kv"):
            draws = self.draws[phase]
            if draws < request.seeds and request.redraw == "auto" and self.trace is None:
                times = f"{draws} times, shared by" if draws > 1 else "once for"
                notes.append(
                    f"The gate of {phase} is drawn {times} all {request.seeds} seeds; --redraw both draws it for each."
                )
        if any(stream.way == "law" for stream in self.loaded):
            notes.append(
                "Where two leaves exchange thousands of flows, loads of the seeds are drawn from the law of an ideal hash "
                "(ecmp: law): the same distribution, without hashing every flow."
            )
        if self.trace is not None and self.trace.padding:
            notes.append(f"{self.trace.padding} rows of padding (-1 alone) of the trace are left out.")
        if any(self.sharing.too_many(i) for i in range(len(self.found.kinds))):
            notes.append(f"Slowdown looks at flows one by one; it is left out past {MAX_FLOWS} flows.")
        if not shown:
            notes.append("Links and flows are too many to be listed one by one.")
        if self.found.fabric.wiring == "custom" and not request.origin:
            notes.append("Links are those of the given file; --wiring, --spines and the like say nothing.")
        return tuple(notes)


def _named(stream: Stream) -> str:
    name = stream.phase if stream.phase == stream.traffic else f"{stream.phase} {stream.traffic}"
    return name if stream.micro_batch < 0 else f"{name} of micro-batch {stream.micro_batch + 1}"
