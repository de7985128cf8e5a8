"""`epctl capture`: everything the doctor reads on this node, in one file that can be sent and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epctl.commands import options


def capture(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The bundle to write (.tar.gz).")],
    redact: Annotated[
        bool,
        typer.Option(
            "--redact", help="Replace host and user names, addresses, GUIDs and serials by consistent stand-ins."
        ),
    ] = False,
    description: Annotated[str, typer.Option("--description", help="A line that says what this node is.")] = "",
    path: options.From = None,
    sample: options.Sample = None,
    format: Annotated[str, typer.Option("--format", help="text | json")] = "text",  # noqa: A002
    no_active: options.NoActive = False,
    python: options.Python = None,
) -> None:
    """Write a bundle with the raw outputs and the snapshot of this node (or of --from, to redact it later)."""
    from epctl.probes import capturing

    options.choice(format, ("text", "json"), "--format")
    request = capturing.Request(output, redact, description, active=not no_active, python=python)
    made = capturing.capture(request, path, sample)
    if format == "json":
        from epctl.core.jsontext import dump

        options.emit(dump(made).decode(), None)
    else:
        options.emit(
            f"{output}: {made.commands} commands, {made.files} files, {made.documents} documents, {made.bytes >> 10} KiB\n",
            None,
        )
        typer.echo("replay it with: epctl doctor --from " + str(output), err=True)
