"""Options that several commands share, and where their results go."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        return _print(text)
    try:
        return _write(text.encode("utf-8", "replace"), output)
    except (OSError, ValueError) as error:
        raise EpctlError(
            f"{output} could not be written",
            str(getattr(error, "strerror", None) or error),
            "give another place with --output",
        ) from None


def _write(raw: bytes, output: Path) -> None:
    """A file appears whole or not at all, so that a full disk does not cost the old one; devices and pipes are written to."""
    output = output.resolve()
    old = output.stat() if output.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        output.write_bytes(raw)
        return
    handle, half = tempfile.mkstemp(prefix=".epctl-", suffix=".part", dir=output.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode) if old is not None else 0o666 & ~_umask())
        Path(half).replace(output)
    except BaseException:
        with suppress(OSError):
            Path(half).unlink()
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _print(text: str) -> None:
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # its reader has seen enough; the exit code stays the report's
        _drop_standard_output()
    except OSError as error:
        _drop_standard_output()
        why = str(error.strerror or error)
        todo = "make room, or give another place with --output"
        raise EpctlError("standard output could not be written", why, todo, exit_code=4) from None


def _drop_standard_output() -> None:
    """What is left in the buffer would fail once more, with a traceback, when Python ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def choice(value: str, allowed: tuple[str, ...], option: str) -> str:
    """`value` when it is one of `allowed`; raises EpctlError that lists them otherwise."""
    if value not in allowed:
        raise EpctlError(
            f"{option} {value!r} is unknown", f"it may be {', '.join(allowed)}", f"give one of these to {option}"
        )
    return value
