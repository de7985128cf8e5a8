"""`epctl build`: compile kernels and what runs beside them ahead of time, for images and for nodes without a compiler."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from epctl.commands import errors, options

if TYPE_CHECKING:
    from epctl.native.building import Built, Listing, Row, Step

FORMATS = ("text", "json")


def build(
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="90a,100a", help="GPU architectures (all that the CUDA toolkit knows)."),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="Kernels of these ops only; may be repeated.")
    ] = None,
    list_cached: Annotated[bool, typer.Option("--list", help="Show what is in the cache; compile nothing.")] = False,
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Compile ahead what would otherwise be compiled at first use.

    No GPU is needed. The cache is EPCTL_CACHE_DIR, else XDG_CACHE_HOME/epctl, else ~/.cache/epctl. Exit code: 0 all is there, 1 something
    does not compile or is only there for this process, 2 usage, 4 a compiler or pybind11 is missing.
    """
    from epctl.core.jsontext import dump
    from epctl.native import building

    options.choice(format, FORMATS, "--format")
    with errors.told(format, {"name": "epctl.build", "version": 1}):
        request = building.Request(_split(arch, "--arch"), _split(op, "--op"))
        if list_cached:
            listing = building.listing()
            whole: dict[str, object] = {"schema": {"name": "epctl.build.list", "version": 1}, "list": listing}
            return options.emit(dump(whole).decode() if format == "json" else _list(listing), output)
        with _bar() as step:
            built = building.build(request, step)
    for notice in built.notices:
        typer.echo(f"note: {notice}", err=True)
    whole = {"schema": {"name": "epctl.build", "version": 1}, "build": built}
    options.emit(dump(whole).decode() if format == "json" else _text(built), output)
    private = not all(built.cache and row.path.startswith(built.cache) for row in built.rows)
    raise typer.Exit(1 if private else 0)


def _split(words: list[str] | None, flag: str) -> tuple[str, ...]:
    """`--arch 90a,100a` and `--arch 90a --arch 100a` are the same. Raises EpctlError for a flag that was given with nothing in it, as by
    a variable of the shell that is not set: it must not mean everything."""
    from epctl.core.errors import EpctlError

    found = tuple(part.strip() for word in words or () for part in word.split(",") if part.strip())
    if words and not found:
        raise EpctlError(f"{flag} is empty", "it names what is to be built", f"leave {flag} out to build everything")
    return found


@contextmanager
def _bar() -> Iterator[Step]:
    """A progress bar on standard error, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compiling", total=None)
        yield lambda done, count, what: progress.update(task, completed=done, total=count, description=what)


def _text(built: Built) -> str:
    from epctl.model.show.page import Look, Page
    from epctl.native.building import compilers_line

    page = Page(Look())
    page.line(f"{compilers_line(built)}, cache {built.cache or 'none'}")
    rows = [(_cells(row), "") for row in built.rows]
    page.table(rows, frozenset({2, 3, 4}), ("file", "", "KiB", "kernels", "regs", ""))
    fresh = sum(row.built for row in built.rows)
    page.line(f"{len(built.rows)} files: {fresh} compiled, {len(built.rows) - fresh} cached")
    return page.text()


def _cells(row: Row) -> tuple[str, ...]:
    """Name, how it came, size, and the most registers and local memory that a kernel of the file takes."""
    front = (row.name, "built" if row.built else "cached", str(row.bytes >> 10))
    if not row.kernels:
        return (*front, "", "", row.kind)
    registers = max(use.registers for use in row.kernels)
    stack = max(use.most_local_bytes for use in row.kernels)
    spills = max(use.spill_store_bytes for use in row.kernels)
    memory = f"{stack} B stack" if stack else "no local memory"
    spilled = f", {spills} spilled" if spills else ""
    count = sum(bool(use.registers) for use in row.kernels)
    return (*front, str(count), str(registers), memory + spilled)


def _list(listing: Listing) -> str:
    from epctl.model.show.page import Look, Page

    page = Page(Look())
    page.line(f"cache {listing.cache or 'none: there is no home folder, and EPCTL_CACHE_DIR is not set'}")
    rows = []
    for entry in listing.entries:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made_s))
        built_with = ", ".join((*entry.compilers, *([f"NCCL {entry.nccl}"] if entry.nccl else ())))
        rows.append(((entry.name, str(entry.bytes >> 10), made, built_with), ""))
    page.table(rows, frozenset({1}), ("file", "KiB", "made", "built with") if rows else ())
    for path in listing.broken:
        page.line(f"broken, is made anew when it is needed: {path}")
    page.line(f"{len(listing.entries)} entries" if listing.entries else "nothing is cached; epctl build compiles ahead")
    return page.text()
