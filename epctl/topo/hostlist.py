"""Slurm's host lists: `tux[0-3,12],login1` for tux0, tux1, tux2, tux3, tux12, login1. Leading zeros count: `n[08-10]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from epctl.core.errors import EpctlError

MOST_NAMES = 200_000
_NAME = re.compile(r"[\w.:+@-]{1,255}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})\Z", re.ASCII)


def expand(text: str, where: str) -> tuple[str, ...]:
    """The names in a list, in its order. Raises EpctlError, naming `where`, for what is no list and for ranges beyond all bounds."""
    found: list[str] = []
    for part in _split(text, where):
        found += _names(part, where, MOST_NAMES - len(found))
    return tuple(found)


def _split(text: str, where: str) -> list[str]:
    """At the commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise EpctlError(f"{where}: {text[:60]!r} is no host list", "its brackets do not match", _TODO)
        if char == "," and not depth:
            parts.append(text[begin:i])
            begin = i + 1
    if depth:
        raise EpctlError(f"{where}: {text[:60]!r} is no host list", "a bracket is left open", _TODO)
    return [part for part in (*parts, text[begin:]) if part]


def _names(part: str, where: str, room: int) -> list[str]:
    names = [""]
    for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part):
        endings = _numbers(piece[1:-1], where, room) if piece.startswith("[") else [piece]
        if len(names) * len(endings) > room:
            raise EpctlError(f"{where}: {part[:60]!r} is refused", f"it names more than {MOST_NAMES:,} nodes", _TODO)
        names = [front + ending for front in names for ending in endings]
    for name in names:
        if not _NAME.fullmatch(name):
            raise EpctlError(
                f"{where}: {name[:60]!r} is no name of a node", "letters, digits, dots and dashes make one", _TODO
            )
    return names


def _numbers(text: str, where: str, room: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise EpctlError(f"{where}: [{text[:60]}] is no range", "it is made of numbers, commas and dashes", _TODO)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= room - len(found):
            raise EpctlError(f"{where}: [{text[:60]}] is no range", "it counts down, or names too many nodes", _TODO)
        found += [str(number).rjust(len(match[1]), "0") for number in range(first, last + 1)]
    return found


def collapse(names: Iterable[str]) -> str:
    """The shortest usual form: names that differ in their last number alone share one pair of brackets."""
    listed = list(dict.fromkeys(names))
    padded = {
        match[1]
        for name in listed
        if (match := _NUMBERED.fullmatch(name)) and match[2].startswith("0") and len(match[2]) > 1
    }
    groups: dict[tuple[str, int], list[int]] = {}
    order: list[tuple[str, int] | str] = []
    for name in listed:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            order.append(name)
            continue
        key = (match[1], len(match[2]) if match[1] in padded else 0)
        if key not in groups:
            groups[key] = []
            order.append(key)
        groups[key].append(int(match[2]))
    return ",".join(entry if isinstance(entry, str) else _group(*entry, groups[entry]) for entry in order)


def _group(front: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    return front + (words[0] if len(numbers) == 1 else f"[{','.join(words)}]")


_TODO = "write it as Slurm does: tux[0-3,12],login1"
