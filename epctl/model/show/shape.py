"""A section: lines of text, then a table."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Mark = Literal["", "binding", "bad", "more"]


class Line(Struct, frozen=True):
    """A row of a table. binding: it decides; bad: it does not fit; more: it belongs to the row above."""

    cells: tuple[str, ...]
    mark: Mark = ""


class Section(Struct, frozen=True):
    """One section. `right`: columns aligned to the right; the last column wraps."""

    title: str
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[Line, ...] = ()
    right: frozenset[int] = frozenset()
    bullets: bool = False
    """Lines are items of a list."""
