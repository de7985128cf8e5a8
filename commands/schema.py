"""`epctl schema`: the formats that epctl writes, as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from epctl.commands import options

NAMES = ("snapshot", "doctor", "bundle", "topo", "plan", "bench", "selftest", "fabric")


def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", help=" | ".join(NAMES))],
    format: Annotated[str, typer.Option("--format", help="json")] = "json",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Print the JSON Schema of a file format."""
    import msgspec

    from epctl.bench import selftest
    from epctl.bench.record import Record
    from epctl.core.doctor import Report
    from epctl.core.jsontext import dump
    from epctl.core.snapshot import Snapshot
    from epctl.fabric.report import Report as FabricReport
    from epctl.model.plan.schema import schema as plan_schema
    from epctl.probes.bundle import Manifest
    from epctl.topo import report as topo

    options.choice(format, ("json",), "--format")
    options.choice(name, NAMES, "NAME")
    kinds = {
        "snapshot": Snapshot,
        "doctor": Report,
        "bundle": Manifest,
        "bench": Record,
        "selftest": selftest.Report,
        "fabric": FabricReport,
    }
    made = {"plan": plan_schema, "topo": topo.json_schema}
    found = made[name]() if name in made else msgspec.json.schema(kinds[name])
    options.emit(dump(found).decode(), output)
