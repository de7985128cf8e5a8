"""Reads the text of `show_gids`: a table of the GIDs that are set (device, port, index, GID, IPv4, version, interface)
and the line `n_gids_found=N` below it."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from epctl.probes.readers import _infiniband as ib
from epctl.probes.reading import Reading, clean


class Entry(Struct, frozen=True):
    """One GID. `ipv4` is the address that the script decodes from the GID, `version` is v1 or v2 (RoCE)."""

    device: str
    port: int
    index: int
    gid: str
    ipv4: str | None = None
    version: str | None = None
    netdev: str | None = None


class Facts(Struct, frozen=True):
    """`n_gids_found` is the printed count, None where it is missing. `rocev2_ipv4_index` holds, for each device/port,
    the lowest index with version v2 and an IPv4 address."""

    entries: list[Entry] = field(default_factory=list)
    n_gids_found: int | None = None
    rocev2_ipv4_index: dict[str, int] = field(default_factory=dict)


_COUNT = re.compile(r"n_gids_found=([0-9]{1,9})")
_SHORT_GID = re.compile(r"(?=.{0,45}::)[0-9a-fA-F:]{2,39}(?:\d{1,3}(?:\.\d{1,3}){3})?", re.ASCII)
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_VERSION = re.compile(r"v[0-9](?:\.[0-9])?", re.IGNORECASE)
_NO_SUCH_TREE = re.compile(r"/sys/class/infiniband/?'?: (?:No such file|Datei oder)")


def _error_in(text: str) -> dict[str, Any] | None:
    return ib.named_error(text, (("no_devices", _NO_SUCH_TREE),))


def _entry(line: str) -> Entry | None:
    """The row that `line` holds, None for any other line. Blank cells leave no trace between the words."""
    words = line.split()
    if not 4 <= len(words) <= 9 or not (words[1].isascii() and words[1].isdigit()):
        return None
    port, index = ib.integer(words[1]), ib.integer(words[2])
    gid = words[3]
    if port is None or index is None or not (ib.is_full_gid(gid) or _SHORT_GID.fullmatch(gid)):
        return None
    rest = words[4:]
    ipv4 = rest.pop(0) if rest and _IPV4.fullmatch(rest[0]) else None
    rest = [word for word in rest if word not in {"RoCE", "IB/RoCE", "IB"}]
    version = rest.pop(0).lower() if rest and _VERSION.fullmatch(rest[0]) else None
    return Entry(words[0], port, index, gid, ipv4, version, rest[0] if rest else None)


def _place(line: str) -> str:
    """Device, port and index of a row that cannot be read, as far as they are there."""
    words = line.split()[:3]
    if len(words) == 3 and ib.integer(words[1]) is not None and ib.integer(words[2]) is not None:
        return f"{words[0]}/{words[1]} index {words[2]}"[:200]
    return "/".join(words[:2])[:200]


def _is_heading(line: str) -> bool:
    words = line.split()
    return words[:3] == ["DEV", "PORT", "INDEX"]


class _Listing:
    """Collects the rows of one or several tables; each has its own count."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int, int], Entry] = {}
        self.n_tables = 0
        self.rows = 0
        self.counts: list[int] = []
        self.is_open = False
        self.problems = ib.Problems()

    def take(self, line: str) -> None:
        words = line.split(None, 10)
        if words[:3] == ["DEV", "PORT", "INDEX"]:
            self._open()
        elif len(words) > 3 and (entry := _entry(line)):
            self._open_if_needed()
            self.rows += 1
            self.entries[entry.device, entry.port, entry.index] = entry
        elif line.startswith("n_gids") and (count := _COUNT.fullmatch(line.strip()[:40])):
            self._close(int(count.group(1)), line)
        elif self.problems.looks_at_strange_line():
            self._take_other(line)

    def _open(self) -> None:
        if self.is_open:
            self.problems.add("truncated", "no count")
        self.is_open, self.rows = True, 0
        self.n_tables += 1

    def _open_if_needed(self) -> None:
        if not self.is_open:
            self._open()

    def _close(self, count: int, line: str) -> None:
        self._open_if_needed()
        if count != self.rows:
            self.problems.add("count_mismatch", f"{self.rows} rows listed", line.strip())
        self.counts.append(count)
        self.is_open = False

    def _take_other(self, line: str) -> None:
        if complaint := ib.complaint(line):
            kind, path = complaint
            if kind not in {"unsupported", "harmless"}:
                self.problems.add(kind, path, line)
        elif self.is_open and line.strip(" \t-") and not ib.is_shell(line):
            self.problems.add("unparsable", _place(line), line)

    def take_tail(self, line: str) -> None:
        """The last line where no line end closes it: only the line that closes the table can be known to be whole."""
        count = _COUNT.fullmatch(line.strip()[:40])
        if not line.strip() or (count and int(count.group(1)) == self.rows) or ib.is_shell(line) or ib.complaint(line):
            self.take(line)
        elif self.is_open and not _is_heading(line):
            self.problems.add("truncated", _place(line) or "end", line)
            self.is_open = False

    def finish(self) -> None:
        if self.is_open:
            last = next(reversed(self.entries.values()), None)
            where = f"behind {last.device}/{last.port} index {last.index}" if last else "behind the heading"
            self.problems.add("truncated", where)

    def count(self) -> int | None:
        """The printed count; over several tables with different rows their sum, as far as each has a count."""
        if not self.counts or len(self.counts) != self.n_tables:
            return None
        total = sum(self.counts)
        return total if total == len(self.entries) else self.counts[-1]


def _lowest_v2_index(entries: list[Entry]) -> dict[str, int]:
    lowest: dict[str, int] = {}
    for entry in entries:
        if entry.version == "v2" and entry.ipv4:
            key = f"{entry.device}/{entry.port}"
            lowest[key] = min(entry.index, lowest.get(key, entry.index))
    return lowest


def read(raw: bytes) -> Reading[Facts]:
    """The GIDs that the text of `show_gids` lists, each once; of repeated ones the last counts."""
    text = clean(raw)
    lines, tail = ib.lines_and_tail(text)
    listing = _Listing()
    for line in lines:
        listing.take(line)
    listing.take_tail(tail)
    listing.finish()
    entries = list(listing.entries.values())
    # A table without rows is a finding only where nothing else explains it.
    found = bool(entries) or (listing.n_tables > 0 and _error_in(text) is None)
    facts = Facts(entries, listing.count(), _lowest_v2_index(entries)) if found else Facts()
    return ib.conclude(raw, text, facts, found=found, problems=listing.problems, error_in=_error_in)
