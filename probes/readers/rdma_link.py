"""Reads the text of `rdma link`: one line per link (`link mlx5_0/1 state ACTIVE …`); with -d more attributes and an
indented list of capabilities. Old versions of the tool put `1/1: mlx5_0/1:` in front."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from epctl.probes.readers import _infiniband as ib
from epctl.probes.reading import Reading, clean


class Link(Struct, frozen=True):
    """One port of one device; None for every attribute that is not printed. States stay in the tool's capitals."""

    device: str
    port: int
    state: str | None = None
    phys_state: str | None = None
    netdev: str | None = None
    netdev_index: int | None = None
    subnet_prefix: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    lmc: int | None = None
    caps: list[str] | None = None


class Facts(Struct, frozen=True):
    links: list[Link] = field(default_factory=list)


_ATTRIBUTES = {
    "state": "state",
    "physical_state": "phys_state",
    "netdev": "netdev",
    "netdev_index": "netdev_index",
    "subnet_prefix": "subnet_prefix",
    "lid": "lid",
    "sm_lid": "sm_lid",
    "lmc": "lmc",
}
_NUMBERS = frozenset({"netdev_index", "lid", "sm_lid", "lmc"})
_NAME = re.compile(r"([^/\s]{1,128})/([0-9]{1,5}):?")
_OLD_INDEX = re.compile(r"[0-9]{1,5}/[0-9]{1,5}:")
_STATES = frozenset({"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "UNKNOWN"})
_PHYS_STATES = frozenset(
    {
        "NOP",
        "SLEEP",
        "POLLING",
        "DISABLED",
        "PORT_CONFIGURATION_TRAINING",
        "LINK_UP",
        "LINK_ERROR_RECOVERY",
        "PHY_TEST",
        "UNKNOWN",
    }
)
_ERRORS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("no_such_device", re.compile(r"wrong device name|no such device", re.IGNORECASE)),
    ("module_not_loaded", re.compile(r"failed to open NETLINK_RDMA socket|protocol not supported", re.IGNORECASE)),
    (
        "unsupported",
        re.compile(r"object \"[^\"\n]{0,64}\" is unknown|unknown (?:command|parameter|option)", re.IGNORECASE),
    ),
    ("permission", re.compile(r"operation not permitted|permission denied", re.IGNORECASE)),
    (
        "tool_failed",
        re.compile(r"(?:kernel answers|netlink answers|rdma: error|^error):", re.IGNORECASE | re.MULTILINE),
    ),
)


def _error_in(text: str) -> dict[str, Any] | None:
    return ib.named_error(text, _ERRORS)


def _attributes(words: list[str]) -> dict[str, str]:
    """Name → value of the attributes among `words`; words that the tool may print elsewhere are passed over."""
    found: dict[str, str] = {}
    index = 0
    while index < len(words) - 1:
        name = _ATTRIBUTES.get(words[index])
        if name is None:
            index += 1
        else:
            found.setdefault(name, words[index + 1])
            index += 2
    return found


def _split_head(line: str) -> tuple[str, int, list[str]] | None:
    """Device, port and further words of the first line of a link, None for any other line."""
    words = line.split()
    if (
        len(words) > 1
        and (words[0] == "link" or _OLD_INDEX.fullmatch(words[0]))
        and (name := _NAME.fullmatch(words[1]))
    ):
        return name.group(1), int(name.group(2)), words[2:]
    return None


class _Listing:
    def __init__(self) -> None:
        self.links: dict[tuple[str, int], dict[str, Any]] = {}
        self.last: dict[str, Any] | None = None
        self.open_caps = False
        self.ends_with_blank = False
        self.problems = ib.Problems()

    def where(self) -> str:
        return f"{self.last['device']}/{self.last['port']}" if self.last else "start"

    def take(self, line: str) -> None:
        if head := _split_head(line):
            self.ends_with_blank = line.endswith(" ")
            self._take_link(*head, line)
        elif not line or ib.is_shell(line):
            return
        elif self.last is not None and (line[0] in " \t" or self.open_caps):
            self._take_details(line)
        else:
            self._take_strange(line)

    def _take_strange(self, line: str) -> None:
        if not self.problems.looks_at_strange_line():
            return
        if error := _error_in(line):
            self.problems.add(error["kind"], self.where(), line)
        elif self.last is not None or line.startswith("link "):
            self.problems.add("unparsable", self.where(), line)

    def _take_link(self, device: str, port: int, words: list[str], line: str) -> None:
        link: dict[str, Any] = {"device": device, "port": port}
        self.last, self.open_caps = link, False
        self._add(link, words, line)
        self.links[device, port] = link
        if "state" not in link or "phys_state" not in link:
            self.problems.add("incomplete", self.where(), line)

    def _add(self, link: dict[str, Any], words: list[str], line: str) -> None:
        for name, value in _attributes(words).items():
            read = ib.integer(value) if name in _NUMBERS else value[:200]
            if read is None:
                self.problems.add("unparsable", f"{self.where()} {name}", line)
            link.setdefault(name, read)

    def _take_details(self, line: str) -> None:
        """Lines below a link: `caps: <A, B, …>`, which may go over several lines, or further attributes."""
        assert self.last is not None  # noqa: S101 - the caller looked
        before, opened, after = line.partition("<")
        if opened or self.open_caps:
            if opened:
                self._add(self.last, before.split(), line)
            names, closed, _ = (after if opened else line).partition(">")
            caps = self.last.setdefault("caps", [])
            caps.extend(name.strip() for name in names.split(",") if name.strip())
            self.open_caps = not closed
        else:
            self._add(self.last, line.split(), line)

    def take_tail(self, line: str, *, before_blank: bool) -> None:
        """The last line where no line end closes it: a link whose states are not whole was cut, and one with an
        interface whose name no blank follows, although the tool puts one there."""
        head = _split_head(line)
        if head is None:
            self._take_tail_of_details(line)
            return
        device, port, words = head
        found = _attributes(words)
        has_states = found.get("phys_state") in _PHYS_STATES and found.get("state") in _STATES
        last_word_is_sure = before_blank or not self.ends_with_blank or words[-1:] == [found.get("phys_state")]
        if has_states and len(words) == 2 * len(found) and last_word_is_sure:
            self.take(line)
            return
        if found.get("state") in _STATES:
            whole = {name: found[name] for name in ("state", "phys_state") if has_states or name == "state"}
            self.links[device, port] = {"device": device, "port": port, **whole}
        self.problems.add("truncated", f"{device}/{port}", line)

    def _take_tail_of_details(self, line: str) -> None:
        if line.strip() and not ib.is_shell(line) and not line.rstrip().endswith(">") and not _error_in(line):
            if self.last is not None:
                self.problems.add("truncated", self.where(), line)
        else:
            self.take(line)

    def mark_open_caps(self) -> None:
        if self.open_caps and not self.problems.is_cut():
            self.problems.add("truncated", f"{self.where()} caps")


def read(raw: bytes) -> Reading[Facts]:
    """The links that the text of `rdma link` lists, each once; of repeated ones the last counts."""
    text = clean(raw)
    lines, tail = ib.lines_and_tail(text)
    listing = _Listing()
    for line in lines:
        listing.take(line)
    listing.take_tail(tail, before_blank=text.endswith(" "))
    listing.mark_open_caps()
    links = [Link(**link) for link in listing.links.values()]
    found = bool(links)
    return ib.conclude(raw, text, Facts(links), found=found, problems=listing.problems, error_in=_error_in)
