"""Options that several commands share, and where their results go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epctl.core.errors import EpctlError

if TYPE_CHECKING:
    from epctl.core.snapshot import Snapshot

From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE|DIR", help="Replay a bundle, a snapshot, or a folder of raw tool outputs (TOOL.txt)."
    ),
]
Sample = Annotated[
    str | None, typer.Option("--sample", metavar="NAME", help="Use a packaged sample; `list` names them.")
]
NoActive = Annotated[
    bool, typer.Option("--no-active", help="Leave out the active probes (CUDA calls, a small compile).")
]
Python = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="Interpreter whose packages are looked at.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to a file.")]


def snapshot_of(path: Path | None, sample: str | None, *, active: bool, python: str | None) -> Snapshot:
    """The snapshot that the options name; this machine's when they name none."""
    from epctl.probes import load

    if path is not None and sample is not None:
        raise EpctlError("--from and --sample exclude each other", "both name a node to look at", "give one of them")
    if path is not None:
        return load.from_path(path)
    if sample is not None:
        return load.sample(sample)
    with progress("looking at this node"):
        return load.live(active=active, python=python)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner with `what` on standard error while the block runs, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield


def list_samples(format: str, output: Path | None) -> None:  # noqa: A002
    """Prints the packaged samples, one a line, or as JSON."""
    from epctl.core.jsontext import dump
    from epctl.probes import load

    found = load.samples()
    if format == "json":
        whole = {"schema": {"name": "epctl.samples", "version": 1}, "samples": found}
        return emit(dump(whole).decode(), output)
    return emit("".join(f"{name:24} {description}\n" for name, description in found.items()), output)


def emit(text: str, output: Path | None) -> None:
    """Writes `text` to the file, or to standard output as UTF-8 whatever the locale."""
    if output is None:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise EpctlError(
            f"{output} could not be written", str(error.strerror or error), "give another place with --output"
        ) from None


def choice(value: str, allowed: tuple[str, ...], option: str) -> str:
    """`value` when it is one of `allowed`; raises EpctlError that lists them otherwise."""
    if value not in allowed:
        raise EpctlError(
            f"{option} {value!r} is unknown", f"it may be {', '.join(allowed)}", f"give one of these to {option}"
        )
    return value
