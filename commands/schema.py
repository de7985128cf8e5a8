"""`epctl schema`: the formats that epctl writes, as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from epctl.commands import options

NAMES = ("snapshot", "doctor", "bundle")


def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", help=" | ".join(NAMES))],
    format: Annotated[str, typer.Option("--format", help="json")] = "json",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Print the JSON Schema of a file format."""
    import msgspec

    from epctl.core.doctor import Report
    from epctl.core.jsontext import dump
    from epctl.core.snapshot import Snapshot
    from epctl.probes.bundle import Manifest

    options.choice(format, ("json",), "--format")
    options.choice(name, NAMES, "NAME")
    kind = {"snapshot": Snapshot, "doctor": Report, "bundle": Manifest}[name]
    options.emit(dump(msgspec.json.schema(kind)).decode(), output)
