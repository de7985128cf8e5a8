"""`epctl capture`: everything the doctor reads on this node, in one file that can be sent and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epctl.commands import errors, options
from epctl.core.errors import EpctlError


def capture(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The bundle to write (.tar.gz).")
    ] = None,
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
    """Write this node's raw outputs and snapshot into one file.

    With --from, of a capture that is there already: to redact it later.
    """
    from epctl.probes import capturing

    options.choice(format, ("text", "json"), "--format")
    with errors.told(format, {"name": "epctl.capture", "version": 1}):
        if sample == "list":
            options.list_samples(format, None)
            return
        if output is None:
            raise EpctlError(
                "there is no place for the bundle", "capture writes one file", "give it with -o FILE.tar.gz"
            )
        request = capturing.Request(output, redact, description, active=not no_active, python=python)
        with options.progress("recording this node"):
            made = capturing.capture(request, path, sample)
    if format == "json":
        import msgspec

        from epctl.core.jsontext import dump

        schema = {"name": "epctl.capture", "version": 1}
        options.emit(dump({"schema": schema, **msgspec.structs.asdict(made)}).decode(), None)
    else:
        options.emit(
            f"{output}: {made.commands} commands, {made.files} files, {made.documents} documents, {made.bytes >> 10} KiB\n",
            None,
        )
        typer.echo("replay it with: epctl doctor --from " + str(output), err=True)
