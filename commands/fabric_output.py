"""What `epctl fabric` reads, spreads over processes, and prints."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from epctl.commands import options
from epctl.core.errors import EpctlError

if TYPE_CHECKING:
    from epctl.fabric.engine import Job
    from epctl.fabric.report import Report
    from epctl.fabric.request import Request
    from epctl.model.show.page import Look

MAX_PROCESSES = 8


def with_topology(request: Request, names: Sequence[str], given: Mapping[str, str | None]) -> Request:
    """`request` with the fabric of a TOML file, or of what `epctl topo` reads and writes, several files together. `given`: flags of the
    command line, which have the last word for a TOML file and may not contradict a topology. Raises EpctlError for a file that cannot
    be read or is none."""
    from epctl.commands.topo_input import is_topology

    seen = [name for name in names if not name.endswith(".toml") and is_topology(Path(name))]
    if len(seen) == len(names):
        return _with_graph(request, names, given)
    if len(names) > 1:
        other = next(name for name in names if name not in seen)
        why = f"{other} is taken for a TOML file, which describes a whole fabric"
        raise EpctlError(
            "several files are given to --topology", why, "give one TOML file, or files that epctl topo reads"
        )
    return _with_toml(request, names[0])


def _with_graph(request: Request, names: Sequence[str], given: Mapping[str, str | None]) -> Request:
    from epctl.commands.topo_input import input_of
    from epctl.fabric.flags import with_flags
    from epctl.fabric.from_topo import with_graph
    from epctl.topo.gather import gather
    from epctl.topo.report import report_of

    found = report_of(gather([input_of(Path(name)) for name in names]))
    told = " and ".join(Path(name).name for name in names[:3]) + (" and others" if len(names) > 3 else "")
    on_line = [field for field, text in given.items() if text is not None]
    return with_graph(with_flags(request, dict(given)), found, told, on_line)


def _with_toml(request: Request, name: str) -> Request:
    from epctl.fabric.flags import MAX_FILE_BYTES, too_large, with_file

    try:
        with Path(name).open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error)
        raise EpctlError(f"{name or repr(name)} could not be read", why, "check the path given to --topology") from None
    if len(raw) > MAX_FILE_BYTES:
        raise too_large(name)
    return with_file(request, raw.decode("utf-8", "replace"), name)


def report(request: Request) -> Report:
    """The report, with the trace that --gate may name."""
    from epctl import __version__
    from epctl.fabric.simulate import simulate
    from epctl.probes import gate_trace

    rows = gate_trace.read_trace(Path(request.gate)).rows if gate_trace.is_trace(request.gate) else None
    with options.progress("sending a batch"), _uncollected():
        return simulate(request, rows, version=__version__, spread=_in_processes)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Flows hold no cycles; looking for some among a million of them takes seconds."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _in_processes(jobs: Sequence[Job]) -> list[list[list[int]]]:
    """Several jobs, which take a second each, in as many processes as there are cores; one, here."""
    from epctl.fabric import engine

    cores = min(len(jobs), MAX_PROCESSES, len(os.sched_getaffinity(0)))
    if cores < 2:
        return [engine.run(job) for job in jobs]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return list(pool.map(engine.run, jobs))


def compared(request: Request, words: list[str], format: str) -> str:  # noqa: A002
    """The answer to `compare A B`."""
    from epctl.core.jsontext import dump
    from epctl.fabric import show
    from epctl.fabric.compare import compare
    from epctl.fabric.flags import variant

    if words[0] != "compare" or len(words) != 3:
        what = f"epctl fabric is given {' '.join(words)[:60]!r}"
        raise EpctlError(what, "the only words that it takes are compare A B", "give compare rail tor")
    a, b = (
        with_topology(request, [word], {}) if word.endswith((".toml", ".json")) else variant(request, word)
        for word in words[1:]
    )
    found = compare((words[1], words[2]), report(a), report(b))
    if format == "json":
        return dump(found).decode()
    return show.comparison_csv(found) if format == "csv" else show.comparison_text(found, look())


def rendered(found: Report, table: str, format: str) -> str:  # noqa: A002
    """The report in a format."""
    from epctl.core.jsontext import dump
    from epctl.fabric import show

    if format == "json":
        return dump(found).decode()
    return show.csv_text(found, table) if format == "csv" else show.text(found, look(), table)


def html(request: Request, words: list[str]) -> str:
    """A page to look at. Raises EpctlError for `compare`: the page's toggles do that."""
    from epctl import __version__
    from epctl.page.fabric_page import fabric_page

    if words:
        todo = "leave out compare; the page has toggles for wiring, layout and relay"
        raise EpctlError("compare has no page", "a page shows one variant at a time", todo)
    return fabric_page(request, report, version=__version__)


def look() -> Look:
    """80 columns in a pipe, or as COLUMNS says; colours on a terminal where NO_COLOR is not set."""
    import shutil

    from epctl.model.show.page import Look

    terminal = sys.stdout.isatty()
    asked = os.environ.get("COLUMNS", "")
    wide = shutil.get_terminal_size().columns if terminal or (asked.isascii() and asked.isdigit()) else 80
    return Look(min(max(wide, 60), 200), terminal and not os.environ.get("NO_COLOR"))


def list_models(format: str, output: Path | None) -> None:  # noqa: A002
    """Prints the presets of models, one a line, or as JSON."""
    from epctl.core.jsontext import dump
    from epctl.fabric.models import MODELS

    if format == "json":
        whole = {"schema": {"name": "epctl.models", "version": 1}, "models": MODELS}
        return options.emit(dump(whole).decode(), output)
    lines = [
        f"{name:16} hidden {model.hidden}, {model.num_layers} layers, {model.num_experts} experts, top-{model.num_topk}, "
        f"KV {model.kv_bytes} B a token\n"
        for name, model in MODELS.items()
    ]
    return options.emit("".join(lines), output)
