"""The debug log of a job: one file, whatever machine it comes from, as an area of the snapshot."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import Setting
from epctl.core.snapshot.job import Conflict, JobArea, JobRank, LogEvent
from epctl.probes.readers._nccl_log_kinds import detail_of, kind_of
from epctl.probes.readers.nccl_log import MAX_WARNINGS, Count, Facts, LogWarning, read
from epctl.probes.reading import MAX_BYTES, Reading

MAX_EVENTS = 400
"""Above it, lines of one kind are no longer told apart by device, peer and words: a job over hundreds of hosts prints the same
few things for every pair."""
MAX_EVENT_HOSTS = 64
AGAIN = (
    "run the job again with NCCL_DEBUG=INFO and keep its output (`… > job.log 2>&1`), "
    "or set NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log and join these files with cat"
)

_SILENT = Absent("not_found", "the log does not say")
_LEFT_OUT = Absent("not_read", "the middle of the log was left out")
_REGULAR_END = ("aborted",)
"""Kinds that programs cause themselves at a regular end: PyTorch aborts its communicators when it shuts down."""
_VARIABLE = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
_DEVICE = re.compile(r"/\d{1,4}(?=/|$|\()", re.ASCII)


def job(path: Path) -> JobArea:
    """What the log at `path` says. Raises EpctlError when it cannot be read or is no log of NCCL; a damaged or partial one is
    used, and `notes` tells what is missing. Of a log above MAX_BYTES the beginning and the end are read."""
    raw, left_out = _content(path)
    reading = read(raw)
    if reading.status == "empty":
        raise EpctlError(f"{path} is empty", "there is nothing to explain", AGAIN)
    if reading.status == "error":
        raise EpctlError(
            f"{path} is no log of NCCL",
            "it has no line such as `HOST:PID:TID [GPU] NCCL INFO …`; without NCCL_DEBUG set, NCCL prints none",
            AGAIN,
        )
    return area(reading, path.name, left_out)


def _content(path: Path) -> tuple[bytes, int]:
    """Bytes of the file, and how many of its middle were left out."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise EpctlError(
                f"{path} is a folder", "a log is one file", f"join the logs in it: `cat {path}/* > job.log`"
            )
        if not stat.S_ISREG(found.st_mode):
            raise EpctlError(
                f"{path} is no plain file", "it is a device, pipe or socket", "save the log in a file first"
            )
        with path.open("rb") as stream:
            if found.st_size <= MAX_BYTES:
                return stream.read(MAX_BYTES), 0
            head = stream.read(MAX_BYTES // 2)
            stream.seek(found.st_size - MAX_BYTES // 2)
            tail = stream.read(MAX_BYTES // 2 - 1)
    except FileNotFoundError:
        raise EpctlError(
            f"{path} does not exist", "there is no such file", "check the path given to --nccl-log"
        ) from None
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error)
        raise EpctlError(f"{path} could not be read", why, "check the path and its permissions") from None
    head, tail = head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]
    return head + tail, found.st_size - len(head) - len(tail)


def area(reading: Reading[Facts], name: str, left_out: int = 0) -> JobArea:
    """The reading of a log as an area. Pure and total. `left_out`: bytes of its middle that were not read."""
    facts = reading.facts
    ranks = tuple(JobRank(rank.rank, rank.host, rank.pci, rank.init_complete) for rank in facts.ranks)
    return JobArea(
        log=name,
        whole=not left_out and facts.n_warnings <= MAX_WARNINGS,
        info=bool(facts.ranks or facts.networks or facts.bootstrap or facts.env or facts.results or facts.paths),
        nccl_versions=_several(facts.nccl_versions),
        network=_one(facts.network),
        networks=_several(facts.networks),
        transports=_several(dict.fromkeys(_DEVICE.sub("", path.via) for path in facts.paths)),
        num_ranks=_one(facts.nranks),
        num_nodes=_one(facts.n_nodes),
        hosts=_several(facts.hosts),
        ranks=_several(ranks),
        ranks_unfinished=_unfinished(facts, left_out),
        bootstrap=_several(_settings(facts.bootstrap) or _settings(facts.oob)),
        gdr=_one(facts.gdr),
        mnnvl=_one(facts.mnnvl),
        nvls=_one(facts.nvls),
        gin_type=_one(facts.gin_type),
        gin_plugin=_one(facts.gin_plugin),
        net_plugin=_one(facts.net_plugin),
        net_devices=_several(device.name for device in facts.net_devices),
        relaxed_ordering=_one(facts.relaxed_ordering),
        settings=_several(_settings(facts.env)),
        env_conflicts=tuple(Conflict(key, tuple(values)) for key, values in facts.env_conflicts.items()),
        events=_events(facts),
        notes=_damage(reading, left_out),
    )


T = TypeVar("T")


def _one(value: T | None) -> Fact[T]:
    return _SILENT if value is None else value


def _several(values: Iterable[T]) -> Fact[tuple[T, ...]]:
    found = tuple(values)
    return found or _SILENT


def _settings(values: dict[str, str]) -> tuple[Setting, ...]:
    return tuple(Setting(name, value) for name, value in values.items())


def _unfinished(facts: Facts, left_out: int) -> Fact[tuple[int, ...]]:
    if not facts.ranks:
        return _SILENT
    return _LEFT_OUT if left_out else tuple(facts.ranks_unfinished)


def _damage(reading: Reading[Facts], left_out: int) -> tuple[str, ...]:
    notes = [f"the log is damaged ({problem.kind}, {problem.where}): {problem.line}" for problem in reading.problems]
    if left_out:
        notes.append(f"the log is very long: {left_out / 2**20:.1f} MiB in its middle were not read")
    if reading.facts.n_warnings > MAX_WARNINGS:
        notes.append(f"{reading.facts.n_warnings} warnings, of which the first {MAX_WARNINGS} were told apart")
    return tuple(notes)


class _Found(Struct):
    """An event in the making; `line`: where it appears first."""

    line: int
    event: LogEvent


def _events(facts: Facts) -> tuple[LogEvent, ...]:
    """Events by first appearance."""
    found = [*_of_warnings(facts.warnings), *_of_counts(facts)]
    found.sort(key=lambda entry: entry.line)
    return tuple(replace(entry.event, order=order) for order, entry in enumerate(found))


def _of_warnings(warnings: list[LogWarning]) -> list[_Found]:
    """One event for all warnings with the same numbers and names; where the text has no number, with the same words."""
    groups = _grouped(warnings, _key)
    if len(groups) > MAX_EVENTS:
        groups = _grouped(warnings, lambda entry: (entry.kind, _code(entry), entry.vendor_err))
    return [_Found(group[0].line, _of_group(group)) for group in groups]


Key = tuple[object, ...]


def _grouped(warnings: list[LogWarning], key_of: Callable[[LogWarning], Key]) -> list[list[LogWarning]]:
    groups: dict[Key, list[LogWarning]] = {}
    for entry in warnings:
        groups.setdefault(key_of(entry), []).append(entry)
    return list(groups.values())


def _key(entry: LogWarning) -> Key:
    words = _VARIABLE.sub("#", entry.text) if _code(entry) is None else ""
    numbers = (_code(entry), entry.vendor_err, tuple(entry.ranks or ()))
    return (entry.kind, numbers, entry.call, entry.hca, entry.peer, words)


def _code(entry: LogWarning) -> int | None:
    return next((code for code in (entry.status, entry.cuda_error, entry.errno) if code is not None), None)


def _of_group(group: list[LogWarning]) -> LogEvent:
    first = group[0]
    known = kind_of(first.text, first.where)
    hosts = dict.fromkeys(entry.host for entry in group)
    return LogEvent(
        kind=first.kind,
        weight="error" if known is None else known.weight,
        text=first.text[:300],
        count=len(group),
        hosts=tuple(islice(hosts, MAX_EVENT_HOSTS)),
        code=_one(_code(first)),
        code_name=_one(first.status_name or first.cuda_error_name or first.errno_name),
        vendor_err=_one(first.vendor_err),
        call=_one(first.call),
        hca=_one(first.hca),
        peer=_one(first.peer),
        ranks=_several(first.ranks or ()),
    )


def _of_counts(facts: Facts) -> list[_Found]:
    """Kinds that no warning told of: other records of NCCL, and lines of the program."""
    told = {entry.kind for entry in facts.warnings}
    return [
        _Found(count.line, _of_count(count, is_error=is_error and count.kind not in _REGULAR_END))
        for is_error, counts in ((True, facts.errors), (False, facts.notes))
        for count in counts
        if count.kind not in told
    ]


def _of_count(count: Count, *, is_error: bool) -> LogEvent:
    detail = detail_of(count.kind, count.text)
    code = next((detail[key] for key in ("status", "cuda_error", "errno") if key in detail), None)
    name = next((detail[key] for key in ("status_name", "cuda_error_name", "errno_name") if detail.get(key)), None)
    return LogEvent(
        kind=count.kind,
        weight="error" if is_error else "note",
        text=count.text,
        count=count.count,
        level="info" if count.hosts or count.kind in _REGULAR_END else "program",
        hosts=tuple(count.hosts),
        code=_one(code),
        code_name=_one(name),
        vendor_err=_one(detail.get("vendor_err")),
        call=_one(detail.get("call")),
        hca=_one(detail.get("hca")),
        peer=_one(detail.get("peer")),
        ranks=_several(detail.get("ranks") or ()),
    )
