"""Slurm's short forms: lists of hosts (`gpu[01-03,7],login`), read and written, and counts a node (`8(x2),4`).

Sources: https://slurm.schedmd.com/srun.html (SLURM_TASKS_PER_NODE, SLURM_STEP_NODELIST) and
https://slurm.schedmd.com/scontrol.html (show hostnames, show hostlist).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from math import prod

MAX_HOSTS = 65536
_NAME = re.compile(r"[\w.:+@-]{1,255}", re.ASCII)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})\Z", re.ASCII)


def hosts(text: str, most: int = MAX_HOSTS) -> tuple[str, ...]:
    """Host names in order, zeros in front kept (`n[08-10]`). Raises ValueError, with the reason, on text that is no list of hosts or
    names more than `most`."""
    found: list[str] = []
    for word in _words(text):
        found += _expanded(word, most - len(found), most)
    if not found:
        raise ValueError("it names no host")
    return tuple(found)


def counts(text: str) -> tuple[int, ...]:
    """`8(x2),4` as (8, 8, 4). Raises ValueError on anything else."""
    found: list[int] = []
    for word in text.split(","):
        match = _COUNT.fullmatch(word.strip())
        if match is None:
            raise ValueError(f"{word.strip()!r} is no count such as 8 or 8(x2)")
        times = int(match[2] or 1)
        if times < 1 or len(found) + times > MAX_HOSTS:
            raise ValueError(f"{word.strip()!r} is repeated for {times} nodes")
        found += [int(match[1])] * times
    return tuple(found)


def _words(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    words, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in {0, 1}:
            raise ValueError(f"its brackets do not match at {text[max(0, at - 10) : at + 1]!r}")
        if letter == "," and depth == 0:
            words.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError("a bracket is left open")
    words.append(text[start:])
    return [word.strip() for word in words if word.strip()]


def _expanded(word: str, room: int, most: int) -> list[str]:
    parts = [_numbers(match[1], room, most) if match[1] is not None else [match[2]] for match in _PART.finditer(word)]
    if prod(map(len, parts)) > room:
        raise _too_many(most)
    names = ["".join(chosen) for chosen in product(*parts)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name of a host: letters, digits, dots and dashes make one")
    return names


def _numbers(inside: str, room: int, most: int) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7: zeros in front are kept."""
    found: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise ValueError(f"[{inside[:60]}] is no list of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise ValueError(f"{piece.strip()} is no range that counts up")
        if high - low >= room - len(found):
            raise _too_many(most)
        found += [f"{number:0{len(match[1])}d}" for number in range(low, high + 1)]
    return found


def _too_many(most: int) -> ValueError:
    return ValueError(f"it names more than {most:,} hosts")


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
