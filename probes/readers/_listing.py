"""What the readers of plain listings share: the damage seen on the way, and the verdict at the end."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from epctl.probes.reading import Problem, Reading, Status, clean, error_of, first_line, was_cut

F = TypeVar("F")

_LOOKED_AT = 1000
"""Lines that belong to no listing are looked at up to this number: garbage costs no more than that."""
_LINE_CHARS = 200
MOST_KEPT = 200
"""Pieces of damage that are kept: of thousands, the first ones say what is wrong."""

_ERRORS = (
    re.compile(
        r"(?P<driver_library_mismatch>driver/library version mismatch)"
        r"|(?P<driver_not_loaded>couldn't communicate with the NVIDIA driver|driver (?:is )?not loaded)"
        r"|(?P<command_not_found>command not found|: not found$|is not installed)"
        r"|(?P<library_missing>error while loading shared libraries|cannot open shared object file)"
        r"|(?P<gpu_lost>GPU is lost|unable to determine the device handle|fallen off the bus)"
        r"|(?P<gpu_access_blocked>access blocked by the operating system)"
        r"|(?P<permission>permission denied|not permitted|are you root|insufficient permissions)"
        r"|(?P<device_open_failed>(?:failed to|cannot|can't) open (?:the )?device)"
        r"|(?P<no_devices>no devices? (?:were |was )?found|no data available)"
        r"|(?P<crashed>segmentation fault|core dumped|bus error|^killed$)"
        r"|(?P<usage>invalid combination of input arguments|unrecognized (?:option|argument)|invalid option"
        r"|^usage:)",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<nvml_failed>failed to initialize NVML)|(?P<timeout>timed out|timeout)"
        r"|(?P<unsupported>not supported|unsupported)",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<failed>^-E-|^error\b|\bfailed\b|^unable to)", re.IGNORECASE),
)
"""From the cause that a message names to the mere fact that something went wrong."""
_SHELL = re.compile(r"(?:\$|#|>|%|```|~~~|\[\S{1,80}@|\S{1,80}@\S{1,80}[:~])", re.ASCII)


def error_kind(line: str) -> str | None:
    """The kind of error that a line states, None when it states none that is known."""
    text = line[:1000].strip()
    return next((found.lastgroup for pattern in _ERRORS if (found := pattern.search(text)) is not None), None)


class Damage:
    """Problems of one text: one per kind and place, each with the first line that shows it."""

    def __init__(self, text: str = "") -> None:
        self._problems: dict[tuple[str, str], Problem] = {}
        self._places: set[str] = set()
        self._cut = False
        self._torn = ""
        self._open_end = "" if text.endswith("\n") else text.rpartition("\n")[2]
        self._foreign = 0

    def add(self, kind: str, where: str = "", line: str = "") -> None:
        if kind == "truncated":
            if self._cut:  # a text ends once: what is missing behind that place is no further damage
                return
            self._cut = True
        elif kind != "too_many" and len(self._problems) >= MOST_KEPT:
            return
        key = (kind, where[-_LINE_CHARS:])
        if key not in self._problems:
            self._places.add(key[1])
            self._problems[key] = Problem(*key, line.strip()[:_LINE_CHARS])

    def has(self, where: str) -> bool:
        """Whether damage is known at that place; past MOST_KEPT pieces no further place becomes known."""
        return where[-_LINE_CHARS:] in self._places

    def foreign(self, line: str, where: str = "") -> None:
        """Notes a line that the tool does not print: an error, or text that cannot be read. What a shell puts around a
        command (prompt, fence) is no damage."""
        self._foreign += 1
        if self._foreign > _LOOKED_AT:
            return
        text = line.strip()
        if not text or _SHELL.match(text):
            return
        kind = error_kind(text)
        if kind is None and self._open_end and line == self._open_end:
            self._torn = text
        else:
            self.add(kind or "unparsable", where, text)

    def close(self, cut: bool) -> None:
        """Notes that the text ends inside a line, or that the input was longer than what was read."""
        if self._torn or cut:
            self.add("truncated", "end of the text", self._torn)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())


def listing_text(raw: bytes) -> str:
    """`raw` as text, without the marks that an undecodable byte-order mark leaves in front."""
    return clean(raw).lstrip("\ufffd\ufeff")


def conclude(raw: bytes, text: str, facts: F, nothing: F, damage: Damage) -> Reading[F]:
    """The reading of a listing. `facts` is `nothing` (the same object) when no line of the tool was seen."""
    if not text.strip():
        blank = b"\0" not in raw
        return Reading("empty", nothing) if blank else Reading("error", nothing, {"kind": "unparsable", "message": ""})
    if facts is nothing:
        return Reading("error", nothing, _error(text))
    damage.close(was_cut(raw))
    status: Status = "partial" if damage.problems else "ok"
    return Reading(status, facts, None, damage.problems)


def _error(text: str) -> dict[str, Any]:
    known = error_of(text)
    if known is not None:
        return known
    for line in text[:4096].split("\n"):
        kind = error_kind(line)
        if kind is not None:
            return {"kind": kind, "message": line.strip()[:_LINE_CHARS]}
    return {"kind": "unparsable", "message": first_line(text[:4096])}
