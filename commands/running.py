"""What `epctl bench` and `epctl selftest` share: numbers of ranks, lists on the command line, and output while something runs."""

from __future__ import annotations

import os
import re
import select
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from epctl.commands import options
from epctl.core.errors import EpctlError

if TYPE_CHECKING:
    from pathlib import Path

    from epctl.bench.job import Job as BenchJob
    from epctl.core.placement import Job as Placing
    from epctl.core.placement import Placement
    from epctl.ranks.events import Handler
    from epctl.ranks.spawn import Environment

CPU_RANKS = 2
_SIZE = re.compile(r"(\d{1,15})\s*(|[kmgKMG])(?:|i?[bB])", re.ASCII)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def words(given: list[str] | None) -> tuple[str, ...]:
    """`--op a,b` and `--op a --op b` are the same."""
    return tuple(dict.fromkeys(part.strip() for word in given or () for part in word.split(",") if part.strip()))


def known_ops(given: list[str] | None) -> tuple[str, ...]:
    """Names of ops. Raises EpctlError for one that is unknown, before any rank is started."""
    from epctl import ops

    ops.select(words(given))
    return words(given)


def options_of(op: str, given: dict[str, object]) -> dict[str, str]:
    """Options that only `op` knows, as it gets them: those that were given. Raises EpctlError for an empty one."""
    found = {
        name: "yes" if value is True else str(value) for name, value in given.items() if value not in (None, False)
    }
    for name, value in found.items():
        if not value.strip():
            raise EpctlError(f"--{name} is empty", f"{op} takes its own default without it", f"leave --{name} out")
    return found


def ops_with(names: tuple[str, ...], op: str, more: dict[str, str]) -> tuple[str, ...]:
    """The ops of the run: `op` where its options are given and no op is named. Raises EpctlError when others are named."""
    if not more or op in names:
        return names
    if names:
        told = ", ".join(f"--{name}" for name in more)
        raise EpctlError(
            f"{told} {'is an option' if len(more) == 1 else 'are options'} of {op}",
            f"--op names {', '.join(names)}",
            f"give --op {op}, or leave it out",
        )
    return (op,)


def sizes(given: list[str] | None) -> tuple[int, ...]:
    """Bytes; 64K is 65,536, and so is 64KiB. Raises EpctlError."""
    found = []
    for word in words(given):
        match = _SIZE.fullmatch(word)
        if match is None:
            raise EpctlError(
                f"--sizes {word!r} is no size", "it is a number of bytes, or one with K, M or G", "give 64K,16M"
            )
        found.append(int(match.group(1)) * _FACTORS[match.group(2).lower()])
    return tuple(found)


def writable(places: Mapping[str, Path | None]) -> None:
    """`--json`: FILE, …. Raises EpctlError for a place that cannot be written, before minutes of measuring are lost with it."""
    for option, path in places.items():
        if path is None:
            continue
        is_device = path.exists() and not path.is_file()
        folder = path.parent
        if path.is_dir():
            why = "it is a folder"
        elif not folder.is_dir():
            why = f"there is no folder {folder}"
        elif not os.access(path if is_device else folder, os.W_OK):
            why = "permission denied"
        else:
            continue
        raise EpctlError(f"{option} {path} cannot be written", why, f"give another place to {option}")


def left_out(absent: Mapping[str, str], asked: tuple[str, ...]) -> bool:
    """An op that was asked for by name has no case here: something that was wanted could not be measured."""
    return any(name in absent for name in asked)


def counts(given: list[str] | None, option: str) -> tuple[int, ...]:
    """Whole numbers from 1; `auto` leaves the choice to the op. Raises EpctlError."""
    found = []
    for word in words(given):
        if word == "auto":
            continue
        if not (word.isascii() and word.isdigit()) or not int(word[:9]) > 0 or len(word) > 9:
            raise EpctlError(f"{option} {word!r} is no number", "it is a whole number from 1", f"give {option} 8,24")
        found.append(int(word))
    return tuple(found)


def placing(ranks: int | None, emulate_nodes: int | None, num_gpus: int) -> Placing:
    """The ranks of the run; one for each GPU, or CPU_RANKS without GPUs, unless something else is asked for. Raises EpctlError."""
    from epctl.core.launch import resolve

    nodes = 1 if emulate_nodes is None else emulate_nodes
    if nodes < 1:
        raise EpctlError(
            f"--emulate-nodes {nodes} is out of range", "there is at least one node", "give --emulate-nodes 2"
        )
    default = num_gpus or CPU_RANKS
    if default % nodes:
        default = nodes
    job = resolve(os.environ, ranks, default)
    size = job.placement.world_size if job.placement is not None else job.num_local * job.num_nodes
    if size % nodes:
        raise EpctlError(
            f"{size} ranks do not divide into {nodes} nodes",
            "every emulated node has the same number of ranks",
            f"give --ranks {size - size % nodes or nodes}, or another --emulate-nodes",
        )
    return job


def spawned_ranks(job: Placing) -> int | None:
    """What --ranks must say to repeat the run; None under a launcher that starts the ranks."""
    return job.num_local if job.placement is None and job.num_nodes == 1 else None


def run(task: str, job: BenchJob, place: Placing, collector: Handler) -> int:
    """Runs the task on all ranks, and gives the exit code of this process. Raises EpctlError."""
    import msgspec

    from epctl.ranks.run import run as run_ranks

    request = {"task": task, **msgspec.to_builtins(job)}
    return run_ranks(request, place, collector, environment=emulation(job, place), debug="--debug" in sys.argv)


def emulation(job: BenchJob, place: Placing) -> Environment | None:
    """What makes each rank's NCCL believe in several nodes; None without emulation, and on the CPU, where no NCCL runs. Compiles the
    loopback plugin. Raises EpctlError when there are real nodes already."""
    nodes = job.emulate_nodes
    if nodes is None or nodes == 1 or job.tier == "cpu":
        return None
    if place.num_nodes > 1:
        raise EpctlError(
            "--emulate-nodes is given for a job of several nodes",
            f"{place.origin} tells of {place.num_nodes} nodes",
            "leave --emulate-nodes out, or start the ranks on one host",
        )
    from epctl.bench import devices
    from epctl.native import loopback_plugin
    from epctl.native.emulation import environment

    num_gpus = devices.visible().num_gpus
    with options.progress("compiling the loopback plugin"):
        plugin = loopback_plugin.obtain()

    def of(rank: Placement) -> dict[str, str]:
        node_idx = rank.rank * nodes // rank.world_size
        return environment(nodes, node_idx, plugin, share_gpus=rank.world_size > num_gpus)

    return of


def renders(place: Placing) -> bool:
    """Whether this process shows results."""
    from epctl.ranks.run import renders as shows

    return shows(place)


def command_line() -> str:
    """What was typed."""
    return shlex.join(["epctl", *sys.argv[1:]])


class NobodyReadsError(BrokenPipeError):
    """Who read standard output is gone, so that nothing of the run would reach anybody."""


class Live:
    """Lines that are shown while something runs: at once on standard output, for text that nobody asked to go into a file."""

    def __init__(self, format: str, output: Path | None, *, wanted_elsewhere: bool = False) -> None:  # noqa: A002
        """`wanted_elsewhere`: the run goes on without a reader of standard output, since a file gets its results, too."""
        self._streams = format == "text" and output is None
        self._kept: list[str] = []
        self._output = output
        self._reader = _pipe_of_reader() if output is None and not wanted_elsewhere else None
        self.gone = False
        """NobodyReadsError was raised."""

    def say(self, text: str) -> None:
        """Whole lines. Raises NobodyReadsError once the pipe that they go into, or will go into, has lost its reader."""
        self._keep(text)
        if self._reader is not None and _has_lost_reader(self._reader):
            self.gone = True
            raise NobodyReadsError("nobody reads standard output any more")

    def _keep(self, text: str) -> None:
        if self._streams:
            options.emit(text, None)
        else:
            self._kept.append(text)

    def end(self, last: str, text: str | None = None) -> None:
        """`text` in place of the lines, or the lines that were kept and the `last`."""
        self._keep(last)
        if not self._streams:
            options.emit("".join(self._kept) if text is None else text, self._output)


class _Pipe(NamedTuple):
    """Standard output, where that can lose its reader. It becomes another file when options.emit has noticed it."""

    fd: int
    device: int
    inode: int


def _pipe_of_reader() -> _Pipe | None:
    """None for a file, a terminal (whose end is a signal), and what has no file descriptor."""
    try:
        fd = sys.stdout.fileno()
        found = os.fstat(fd)
    except (OSError, ValueError):
        return None
    if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
        return None
    return _Pipe(fd, found.st_dev, found.st_ino)


def _has_lost_reader(pipe: _Pipe) -> bool:
    if _pipe_of_reader() != pipe:
        return True
    asked = select.poll()
    asked.register(pipe.fd, 0)  # errors and a hang-up are told without being asked for
    return bool(asked.poll(0))


@contextmanager
def bar(*, shown: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yields `step(done, count, what)`: a progress bar on standard error, on a terminal, where no lines are shown."""
    if not shown or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda done, count, what: progress.update(task, completed=done, total=count, description=what)
