"""`epctl doctor`: what is wrong with this node, and how to fix it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epctl.commands import errors, options

if TYPE_CHECKING:
    from epctl.core.doctor import Report
    from epctl.core.snapshot.job import JobArea

FORMATS = ("text", "json", "junit", "prometheus", "markdown", "nagios")


def doctor(
    path: options.From = None,
    sample: options.Sample = None,
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID|AREA", help="Run these checks only; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="ID|AREA", help="Leave these checks out; may be repeated.")
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Judge for this consumer instead of for what is installed."),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option("--nodes", min=1, help="Nodes of the planned job; more than one makes missing RDMA a failure."),
    ] = 1,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show what passed and why checks do not apply (text).")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 when there are warnings.")] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="List all checks and profiles.")] = False,
    explain: Annotated[str | None, typer.Option("--explain", metavar="ID", help="Explain one check.")] = None,
    fix_script: Annotated[
        Path | None,
        typer.Option("--fix-script", metavar="FILE", help="Write the fixes as commented shell; nothing is run."),
    ] = None,
    nccl_log: Annotated[
        Path | None,
        typer.Option("--nccl-log", metavar="FILE", help="Explain the NCCL_DEBUG=INFO log of a failed job, too."),
    ] = None,
    no_active: options.NoActive = False,
    python: options.Python = None,
) -> None:
    """Say what is wrong with a node: cause, evidence, fix.

    Exit code: 0 fine, 1 a check failed, 2 usage, 3 warnings under --strict, 4 what matters could not be read
    (under --strict: any check of severity fail).
    """
    options.choice(format, FORMATS, "--format")
    with errors.told(format, {"name": "epctl.doctor", "version": 1}):
        if sample == "list":
            return options.list_samples(format, output)
        if list_checks or explain is not None:
            return _catalogue(explain, format, output)
        report = _examine(
            path, sample, (only, skip, profile), nodes, active=not no_active, python=python, nccl_log=nccl_log
        )
        if fix_script is not None:
            from epctl.core.fix_script import script

            options.emit(script(report), fix_script)
        from epctl.core.render import View, renderer
        from epctl.core.verdict import exit_code

        view = View(terminal=output is None and sys.stdout.isatty(), verbose=verbose or bool(only))
        options.emit(renderer(format)(report, view), output)
        raise typer.Exit(exit_code(report.summary, strict=strict))


def _examine(
    path: Path | None,
    sample: str | None,
    names: tuple[list[str] | None, list[str] | None, list[str] | None],
    nodes: int,
    *,
    active: bool,
    python: str | None,
    nccl_log: Path | None,
) -> Report:
    from msgspec.structs import replace

    import epctl.checks  # noqa: F401 - registers them
    from epctl.core.check import registered
    from epctl.core.doctor import examine, select
    from epctl.core.profile import chosen

    only, skip, profiles = (tuple(entry or ()) for entry in names)
    checks = select(registered().values(), only, skip)
    chosen(profiles)
    told = _log(nccl_log)
    node = options.snapshot_of(path, sample, active=active, python=python)
    return examine(node if told is None else replace(node, job=told), checks, profiles, nodes)


def _log(path: Path | None) -> JobArea | None:
    """What the log says, where one was given. Read before the node, so that a wrong path is told at once."""
    if path is None:
        return None
    from epctl.probes.job import job

    return job(path)


def _catalogue(explain: str | None, format: str, output: Path | None) -> None:  # noqa: A002
    import epctl.checks  # noqa: F401 - registers them
    from epctl.core.render import catalogue

    options.choice(format, ("text", "json"), "--format (with --list and --explain)")
    options.emit(catalogue.explanation(explain, format) if explain is not None else catalogue.listing(format), output)
