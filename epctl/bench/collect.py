"""Puts the events of a run together, in the process that renders."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

import msgspec
from msgspec import Struct, structs

from epctl import __version__
from epctl.bench import header, record
from epctl.bench import selftest as checks
from epctl.bench.clocks import RankClocks
from epctl.bench.job import CASE, END, HEADER, PROOF, ROW, Job
from epctl.bench.record import Record, Row
from epctl.bench.selftest import Checked, Proof, Report
from epctl.core.op import Layout
from epctl.core.op_extras import Opinion
from epctl.ranks.events import Event


class Seen(Struct):
    """What has come so far."""

    layout: Layout | None = None
    num_cases: int = 0
    rows: list[Row] = []
    proofs: list[Proof] = []
    cases: list[Checked] = []
    clocks: tuple[RankClocks, ...] = ()
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    ended: bool = False
    num_left: int = 0
    absent: dict[str, str] = {}
    opinions: tuple[Opinion, ...] = ()


class Collector:
    """Takes events; `on_news` is told of each after it was taken in."""

    def __init__(self, on_news: Callable[[Seen, str], None]) -> None:
        self.seen = Seen()
        self._on_news = on_news
        self._taken_at = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def __call__(self, event: Event) -> None:
        seen, fields = self.seen, event.fields
        if event.kind == HEADER:
            seen.layout = msgspec.convert(fields["layout"], Layout)
            seen.num_cases = int(fields["num_cases"])
            seen.absent = msgspec.convert(fields.get("absent", {}), dict[str, str])
        elif event.kind == ROW:
            seen.rows.append(msgspec.convert(fields["row"], Row))
        elif event.kind == PROOF:
            seen.proofs.append(msgspec.convert(fields["proof"], Proof))
        elif event.kind == CASE:
            seen.cases.append(msgspec.convert(fields["case"], Checked))
        elif event.kind == END:
            seen.ended = True
            seen.num_left = int(fields.get("num_left", 0))
            seen.clocks = msgspec.convert(fields.get("clocks", ()), tuple[RankClocks, ...])
            seen.warnings = msgspec.convert(fields.get("warnings", ()), tuple[str, ...])
            seen.versions = msgspec.convert(fields.get("versions", {}), dict[str, str])
            seen.opinions = msgspec.convert(fields.get("opinions", ()), tuple[Opinion, ...])
            seen.environment = msgspec.convert(fields.get("environment", {}), dict[str, str])
        else:
            return
        self._on_news(seen, event.kind)

    def record(self, job: Job, command: str, ended_by: str = "") -> Record | None:
        """Of a bench run; None when it ended before anything was known. `ended_by`: what ended it early."""
        seen = self.seen
        if seen.layout is None:
            return None
        return Record(
            schema=record.SCHEMA,
            command=command,
            epctl_version=__version__,
            taken_at=self._taken_at,
            layout=seen.layout,
            cautions=header.cautions(seen.layout),
            request=job.request,
            rule=job.rule,
            versions=seen.versions,
            environment=seen.environment,
            clocks=seen.clocks,
            warnings=seen.warnings,
            rows=tuple(seen.rows),
            complete=seen.ended and len(seen.rows) == seen.num_cases,
            absent=seen.absent,
            opinions=seen.opinions,
            ended_by=ended_by,
        )

    def report(self, job: Job, command: str, ended_by: str = "") -> Report | None:
        """Of a self-test; None when it ended before anything was known. `ended_by`: what ended it early."""
        seen = self.seen
        if seen.layout is None:
            return None
        report = Report(
            schema=checks.SCHEMA,
            command=command,
            epctl_version=__version__,
            taken_at=self._taken_at,
            layout=seen.layout,
            cautions=header.cautions(seen.layout),
            seed=job.seed,
            proofs=tuple(seen.proofs),
            cases=tuple(seen.cases),
            num_cases=seen.num_cases,
            num_left=seen.num_left,
            complete=seen.ended,
            absent=seen.absent,
            ended_by=ended_by,
        )
        return structs.replace(report, ok=checks.passed(report))
