"""Splits a log of NCCL into its records: `host:pid:tid [dev] [file:line [(function)]] NCCL LEVEL text`.

Launchers put their own prefixes in front (`0: `, `[default3]:`, `[1,0]<stdout>:`, a time), and processes that share a
pipe run two records into one line. So records are looked for from the word NCCL to the left, not from the line's start.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TEXT = 32768
"""Characters of a record that are read; the longest real ones (paths of a topology) have a fifth of that."""

_MARKER = re.compile(r"(?:^|(?<= ))NCCL (INFO|WARN|TRACE|ABORT|VERSION|ERROR|ATTN)(?: |:|$)")
_MAX_HEAD = 400
_BEHIND_DEV = re.compile(
    r"(-?\d{1,4})\](?: (?:\d{1,20}\.\d{1,9} )?(\S{1,200}:\d{1,7}))?(?: \((\S{1,120})\))? *", re.ASCII
)
_HOST = re.compile(r"[^\s\]>)]+")
_ID = re.compile(r"\d{1,10}", re.ASCII)


class Record(NamedTuple):
    host: str
    pid: int
    tid: int
    dev: int
    """CUDA device of the thread; proxy threads print 0 whatever their device."""
    level: str
    where: str
    """`file:line` of a warning."""
    text: str


class _Head(NamedTuple):
    host: str
    pid: int
    tid: int
    dev: int
    where: str
    start: int
    """Where the head begins within the text that was given."""


def _head(text: str) -> _Head | None:
    """What stands in front of the word NCCL."""
    bracket = text.rfind(" [")
    behind = _BEHIND_DEV.fullmatch(text, bracket + 2) if bracket > 0 else None
    parts = text[:bracket].rsplit(":", 2) if behind else []
    if behind is None or len(parts) != 3 or not _ID.fullmatch(parts[1]) or not _ID.fullmatch(parts[2]):
        return None
    host = parts[0][parts[0].rfind(":") + 1 :].rstrip()
    words = _HOST.findall(host)
    if not words or not host.endswith(words[-1]):
        return None
    start = len(parts[0]) - len(words[-1])
    return _Head(words[-1], int(parts[1]), int(parts[2]), int(behind.group(1)), behind.group(2) or "", start)


def _unglued(head: _Head, known: Iterable[str]) -> _Head:
    """The head of a record that follows another one in its line, without the end of the other's text before the host."""
    name = max((name for name in known if head.host.endswith(name)), key=len, default=head.host)
    return head._replace(host=name, start=head.start + len(head.host) - len(name))


def records(line: str, known: Iterable[str] = ()) -> list[Record]:
    """Records of one line, usually one; none for lines of other programs. `known`: hosts that were met before."""
    found: list[tuple[_Head, str, int, int]] = []
    behind = 0
    for marker in _MARKER.finditer(line):
        lowest = max(behind, marker.start() - _MAX_HEAD)
        if head := _head(line[lowest : marker.start()]):
            if found:
                head = _unglued(head, [found[-1][0].host, *islice(known, 64)])
            found.append((head, marker.group(1), lowest + head.start, marker.end()))
            behind = marker.end()
    if not found:
        return []
    ends = [start for _, _, start, _ in found[1:]] + [len(line)]
    return [
        Record(
            head.host,
            head.pid,
            head.tid,
            head.dev,
            level,
            head.where,
            line[start : min(end, start + MAX_TEXT)].rstrip(),
        )
        for (head, level, _, start), end in zip(found, ends, strict=True)
    ]
