"""Slurm's short forms: lists of hosts (`gpu[01-03,7],login`) and counts a node (`8(x2),4`).

Sources: https://slurm.schedmd.com/srun.html (SLURM_TASKS_PER_NODE, SLURM_STEP_NODELIST) and
https://slurm.schedmd.com/scontrol.html (show hostnames).
"""

from __future__ import annotations

import re
from itertools import product

MAX_HOSTS = 65536
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")


def hosts(text: str) -> tuple[str, ...]:
    """Host names in order. Raises ValueError, with the reason, on text that is no list of hosts."""
    found: list[str] = []
    for word in _words(text):
        found += _expanded(word)
        if len(found) > MAX_HOSTS:
            raise ValueError(f"it names more than {MAX_HOSTS} hosts")
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
        raise ValueError("a bracket is not closed")
    words.append(text[start:])
    return [word.strip() for word in words if word.strip()]


def _expanded(word: str) -> list[str]:
    parts = [_numbers(match[1]) if match[1] is not None else [match[2]] for match in _PART.finditer(word)]
    size = 1
    for part in parts:
        size *= len(part)
    if size > MAX_HOSTS:
        raise ValueError(f"{word!r} stands for more than {MAX_HOSTS} hosts")
    return ["".join(chosen) for chosen in product(*parts)]


def _numbers(inside: str) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7: zeros in front are kept."""
    found: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise ValueError(f"[{inside}] is no list of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < low + MAX_HOSTS:
            raise ValueError(f"{piece.strip()} is no range that counts up")
        found += [f"{number:0{len(match[1])}d}" for number in range(low, high + 1)]
    return found
