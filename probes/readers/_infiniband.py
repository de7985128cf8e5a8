"""What the readers of InfiniBand and RoCE texts share: numbers, cut last lines, complaints of tools, the final verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from epctl.probes.reading import Problem, Reading, error_of, first_line, was_cut

F = TypeVar("F")

LINK_LAYERS = frozenset({"InfiniBand", "Ethernet", "Unspecified", "Unknown", "IB"})
"""Every name of a link layer that a kernel or a library prints: a last word outside of them was cut."""

_DECIMAL = re.compile(r"[0-9]{1,20}")
_LARGEST = 2**64 - 1
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_REAL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_GID = re.compile(r"(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}")
_MODULE = re.compile(r"is (\w{1,40}) module loaded", re.ASCII)
_TOOL_PREFIXES = ("grep: ", "cat: ", "ls: ", "find: ", "head: ", "tail: ", "readlink: ")
_PROMPT = re.compile(r"\+{1,5} |\[?[\w.-]{1,64}@[^#$>]{1,200}[#$>]|[#$] ", re.ASCII)
_GENERAL_ERRORS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("library_missing", re.compile(r"error while loading shared libraries: (?P<library>[\w.+-]{1,128})", re.ASCII)),
    (
        "command_not_found",
        re.compile(
            r"not found, but can be installed|executable file not found|failed to run command|(?:Kommando|Befehl) nicht"
            r" gefunden|commande introuvable|orden no encontrada|comando non trovato|\A\S{1,100}:[^\n]{0,100}: No such file",
            re.IGNORECASE,
        ),
    ),
    ("timeout", re.compile(r"timed out", re.IGNORECASE)),
)
_MESSAGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("permission", re.compile(r"permi|berechtigung|not permitted|access denied", re.I)),
    ("unsupported", re.compile(r"invalid argument|not supported|no such device|no data available", re.I)),
    ("missing", re.compile(r"no such file|nicht gefunden|cannot access|aucun fichier", re.I)),
    ("harmless", re.compile(r"is a directory|recursive directory loop|binary file", re.I)),
)


class Problems:
    """The damage of one text: for each kind and place the first line, and of thousands the first ones."""

    MOST_KEPT = 200
    MOST_STRANGE_LINES = 1000

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}
        self._n_strange = 0

    def looks_at_strange_line(self) -> bool:
        """False once so many lines fit nowhere that further ones add nothing but time."""
        self._n_strange += 1
        return self._n_strange <= self.MOST_STRANGE_LINES

    def add(self, kind: str, where: str, line: str = "") -> None:
        """Notes one piece of damage unless its kind is known at this place."""
        key = (kind, where[-200:])
        if key not in self._found and len(self._found) < self.MOST_KEPT:
            self._found[key] = Problem(kind, where[-200:], line.strip()[:200])

    def is_cut(self) -> bool:
        """True where the end of the text, or of a part of it, is missing."""
        return any(kind == "truncated" and where != "start" for kind, where in self._found)

    def places(self) -> set[str]:
        """Where something is wrong."""
        return {where for _, where in self._found}

    def listed(self) -> tuple[Problem, ...]:
        """All of them, in the order in which they were noted."""
        return tuple(self._found.values())


def integer(value: str | None) -> int | None:
    """`value` as a number without a sign, decimal or 0x…; None where it is something else, or more than 64 bits hold."""
    if value is None:
        return None
    if _DECIMAL.fullmatch(value):
        number = int(value)
        return number if number <= _LARGEST else None
    return int(value, 16) if _HEX.fullmatch(value) else None


def real(value: str) -> float | None:
    """`value` as a number that is finite and not negative, else None."""
    return float(value) if _REAL.fullmatch(value) else None


def is_full_gid(value: str) -> bool:
    """True for eight groups of four hexadecimal digits."""
    return _GID.fullmatch(value) is not None


def lines_and_tail(text: str) -> tuple[list[str], str]:
    """The lines that end with a line end, less the blank ones, and what follows the last line end: it may be cut."""
    lines = text.split("\n")
    tail = lines.pop().rstrip()
    return [line for line in lines if line and not line.isspace()], tail


def is_shell(line: str) -> bool:
    """True for a prompt with a command behind it and for the trace of `set -x`."""
    may_be_one = line[:1] in "+#$[" or "@" in line[:128]
    return may_be_one and _PROMPT.match(line[:300]) is not None


def complaint(line: str) -> tuple[str, str] | None:
    """Kind and path where `line` is a complaint of grep, cat, … about a file; None for any other line. Kinds:
    `permission`, `unsupported`, `missing`, `harmless`, `unreadable`."""
    if not line.startswith(_TOOL_PREFIXES):
        return None
    _, _, rest = line.partition(": ")
    path, _, message = rest.rpartition(": ")
    kind = next((kind for kind, pattern in _MESSAGES if pattern.search((message or rest)[-200:])), "unreadable")
    return kind, path.removeprefix("cannot access ").strip("'\"\u2018\u2019 ")


def missing_module(text: str) -> dict[str, Any] | None:
    """The error where a text says that a kernel module is not there."""
    if found := _MODULE.search(text[:4096]):
        return {"kind": "module_not_loaded", "module": found.group(1), "message": first_line(text)}
    return None


def named_error(text: str, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> dict[str, Any] | None:
    """The first of `patterns` that the head of `text` shows, with the pattern's named groups as further keys."""
    for kind, pattern in patterns:
        if found := pattern.search(text[:4096]):
            return {"kind": kind, **found.groupdict(), "message": first_line(text[found.start() :])}
    return None


def conclude(
    raw: bytes,
    text: str,
    facts: F,
    *,
    found: bool,
    problems: Problems,
    error_in: Callable[[str], dict[str, Any] | None],
) -> Reading[F]:
    """The reading of `text`: `facts` where something was found (empty ones are expected otherwise), else the reason."""
    if not text.strip():
        return Reading("empty", facts)
    if not found:
        error = error_in(text) or error_of(text) or named_error(text, _GENERAL_ERRORS)
        return Reading("error", facts, error=error or {"kind": "unparsable", "message": first_line(text)})
    if was_cut(raw):
        problems.add("truncated", "input is longer than what is read")
    listed = problems.listed()
    return Reading("partial" if listed else "ok", facts, problems=listed)
