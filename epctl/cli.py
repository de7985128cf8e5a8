"""Entry of the command line: one line a command. The modules of commands import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from epctl import __version__
from epctl.commands import bench, build, capture, doctor, ending, fabric, plan, probe, schema, selftest, topo
from epctl.core.errors import EpctlError

app = typer.Typer(
    name="epctl",
    help="Bring up GPU nodes for Mixture-of-Experts models with expert parallelism.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(doctor.doctor)
app.command()(capture.capture)
app.add_typer(topo.app, name="topo")
for command in (plan.plan, bench.bench, selftest.selftest, fabric.fabric, probe.probe, build.build, schema.schema):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Bring up GPU nodes for Mixture-of-Experts models with expert parallelism."""
    if version:
        typer.echo(f"epctl {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line. Exit codes: 0 fine, 1 something failed, 2 usage, 3 warnings under --strict, 4 not measured."""
    debug = "--debug" in sys.argv[1:]
    if debug:
        sys.argv = [sys.argv[0], "--debug", *(word for word in sys.argv[1:] if word != "--debug")]
    ending.open_streams()
    ending.on_signals()
    try:
        sys.exit(ending.run(app))
    except EpctlError as error:
        if debug:
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    finally:
        ending.end_children()
