"""What a reader of one tool's text gives back: facts, or the reason why there are none.

A reader is a pure function `read(raw: bytes) -> Reading[Facts]`. It never raises on any input, takes time linear in the
size of the input, and treats the text as data.
"""

from __future__ import annotations

import re
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

Status = Literal["ok", "partial", "error", "empty"]
F = TypeVar("F")

MAX_BYTES = 16 * 1024 * 1024
"""Longer input is cut, and the cut is reported as a problem."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Problem(Struct, frozen=True):
    """One piece of damage in a text: what kind (`truncated`, `unparsable`, `permission`, …), where, and the first line
    that could not be read."""

    kind: str
    where: str = ""
    line: str = ""


class Reading(Struct, Generic[F], frozen=True):
    """`ok`: whole text. `partial`: cut or damaged, every entry of `problems` says where, the facts that were there are
    there. `error`: an error message or unusable text, `error` says which kind; facts are empty. `empty`: no text."""

    status: Status
    facts: F
    error: dict[str, Any] | None = None
    problems: tuple[Problem, ...] = ()


def clean(raw: bytes) -> str:
    """Text of `raw`: UTF-8 with replacement marks, line ends as \\n, escape sequences and control characters gone
    (tabs stay). Input past MAX_BYTES is dropped; see `was_cut`."""
    text = raw[:MAX_BYTES].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    text = text.removeprefix("\ufeff")
    return _CONTROL.sub("", _ANSI.sub("", text)) if "\x1b" in text or _CONTROL.search(text) else text


def was_cut(raw: bytes) -> bool:
    """True when `clean` dropped a tail."""
    return len(raw) > MAX_BYTES


_ERRORS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("driver_library_mismatch", re.compile(r"driver/library version mismatch", re.I)),
    ("driver_not_loaded", re.compile(r"couldn't communicate with the NVIDIA driver|NVIDIA driver is not loaded", re.I)),
    (
        "command_not_found",
        re.compile(r"command not found|: not found$|No such file or directory: '|is not installed", re.I | re.M),
    ),
    ("gpu_lost", re.compile(r"GPU is lost|Unable to determine the device handle", re.I)),
    ("permission", re.compile(r"permission denied|operation not permitted|are you root", re.I)),
)


def error_of(text: str) -> dict[str, Any] | None:
    """The error that a text consists of, where it is one that any tool may print; None otherwise. The first kilobytes
    are looked at only."""
    head = text[:4096]
    for kind, pattern in _ERRORS:
        if pattern.search(head):
            error: dict[str, Any] = {"kind": kind, "message": first_line(head)}
            if kind == "driver_library_mismatch" and (found := re.search(r"library version:? *([0-9.]+)", head, re.I)):
                error["library_version"] = found.group(1).rstrip(".")
            return error
    return None


def first_line(text: str, limit: int = 200) -> str:
    """First line that is not blank, at most `limit` characters."""
    return next((line.strip()[:limit] for line in text.splitlines() if line.strip()), "")
