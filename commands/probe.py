"""`epctl probe TOOL`: what one reader sees in a tool's output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epctl.commands import errors, options


def probe(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of a reader; `list` names them.")] = "list",
    file: Annotated[
        Path | None, typer.Option("--file", metavar="F", help="Read this file instead of running the tool.")
    ] = None,
    path: options.From = None,
    sample: options.Sample = None,
    format: Annotated[str, typer.Option("--format", help="text | json")] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Print what one reader sees: status, error, problems and facts.

    Exit code: 0 when it saw facts, 4 when the text was empty or an error.
    """
    from epctl.core.render import reading
    from epctl.probes import tools

    options.choice(format, ("text", "json"), "--format")
    with errors.told(format, {"name": "epctl.probe", "version": 1}):
        if sample == "list":
            return options.list_samples(format, output)
        if tool == "list":
            return options.emit(reading.listing(tools.TOOLS, format), output)
        found = tools.probe(tool, file, path, sample)
    options.emit(reading.render(tool, found, format), output)
    raise typer.Exit(0 if found.status in ("ok", "partial") else 4)
