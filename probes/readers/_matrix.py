"""Text of `nvidia-smi topo -m` as lines of a matrix: where its header, rows and cells are."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

GPU = re.compile(r"GPU\d{1,5}\Z", re.ASCII)
NUMBERED = re.compile(r"(?:GPU|NIC)\d{1,5}\Z", re.ASCII)
_NUMBERED = re.compile(r"(?:GPU|NIC)\d{1,5}", re.ASCII)
_LEVEL = re.compile(r"NV\d{1,3}|NODE|SYS|PHB|PXB|PIX|PSB|SOC|C2C|X", re.ASCII)
_AFFINITY = re.compile(r"\bCPU\s{1,4}Affinity|\bNUMA\s{1,4}Affinity|\bGPU\s{1,4}NUMA\s{1,4}ID", re.IGNORECASE)
_STYLE_REMAINS = re.compile(r"\[\d{0,3}m")
"""Escape sequences whose escape character got lost on the way, as in pasted text."""
_WORD = re.compile(r"\S+")
_TAB = 8
MAX_LINE = 1 << 16


@dataclass
class Header:
    labels: list[str]
    tail: list[str]
    """Columns behind the matrix, `cpu`, `numa` and `id`, in the order of the text."""
    line: str
    known: frozenset[str]
    """The labels, to look one up."""


@dataclass
class Row:
    label: str
    cells: list[str]
    tail: list[str] | None
    """Fields behind the matrix, blank ones included; None when blank and filled ones cannot be told apart."""
    line: str


@dataclass
class Matrix:
    header: Header | None
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return self.header.labels if self.header else list(self.rows)


def header_of(line: str) -> Header | None:
    """`line` as the header of a matrix, None when it is not one."""
    if "GPU" not in line or len(line) > MAX_LINE:
        return None
    plain = _STYLE_REMAINS.sub("", line)
    tails = list(_AFFINITY.finditer(plain))
    words = (plain[: tails[0].start()] if tails else plain).split()
    labels = [label for word in words for label in _unmerged(word)]
    if not labels or not GPU.match(labels[0]) or any(is_level(word) for word in words):
        return None
    if not tails and not all(NUMBERED.match(label) or "_" in label or label[-1].isdigit() for label in labels):
        return None
    if not tails and len(labels) == 1 and not line[:1].isspace():
        return None  # the beginning of a row
    kinds = [found[0].split()[0].lower() for found in tails]
    return Header(labels, ["id" if kind == "gpu" else kind for kind in kinds], line, frozenset(labels))


def is_level(word: str) -> bool:
    return _LEVEL.fullmatch(word) is not None


def _unmerged(word: str) -> list[str]:
    parts = _NUMBERED.findall(word)
    return parts if "".join(parts) == word else [word]


def cells_of(line: str) -> list[tuple[str, int, int]]:
    """Words of a row with their places; levels that stand without a blank between them are taken apart."""
    words: list[tuple[str, int, int]] = []
    for found in _WORD.finditer(line):
        parts = _LEVEL.findall(found[0])
        if len(parts) > 1 and "".join(parts) == found[0]:
            at = found.start()
            for part in parts:
                words.append((part, at, at + len(part)))
                at += len(part)
        else:
            words.append((found[0], found.start(), found.end()))
    return words


def row_of(line: str, n_columns: int | None, labels: Collection[str], n_tail: int) -> Row | None:
    """`line` as a row of a matrix of `n_columns` columns (None when there is no header), None when it is not one."""
    if len(line) > MAX_LINE:
        return None
    words = cells_of(line)
    if not words or not (words[0][0] in labels or NUMBERED.match(words[0][0])):
        return None
    if len(words) > 1 and not is_level(words[1][0]) and words[1][0] != "N/A":
        return None
    if n_columns is None:
        n_columns = next((i for i, word in enumerate(words[1:]) if not is_level(word[0])), len(words) - 1)
    cells = words[1 : 1 + n_columns]
    tail = _tail(line, cells[-1], words[1 + n_columns :], n_tail) if cells else []
    return Row(words[0][0], [cell[0] for cell in cells], tail, line)


def _tail(line: str, last: tuple[str, int, int], words: list[tuple[str, int, int]], n_tail: int) -> list[str] | None:
    """Fields behind the last cell. With tabs they are as written; tabs that became blanks are restored from the places
    of the words: a tab stop every 8 columns, counted from the last cell."""
    level, start, end = last
    rest = line[end:]
    if "\t" in rest:
        return [part.strip() for part in rest.split("\t")[1:]]
    base = start - 1 if level == "X" and line[start - 1 : start] == " " else start
    fields: list[str] = []
    stop = _next_stop(end - base)
    for word, at, word_end in words:
        while stop + _TAB <= at - base:
            fields.append("")
            stop += _TAB
        fields.append(word)
        stop = _next_stop(word_end - base)
    aligned = all((at - base) % _TAB == 0 for _, at, _ in words)
    return fields if aligned or len(words) in {0, n_tail} else None


def _next_stop(width: int) -> int:
    return (width // _TAB + 1) * _TAB
