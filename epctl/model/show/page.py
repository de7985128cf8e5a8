"""Text for a terminal or a log: headings, paragraphs and tables whose last column wraps. Without rich, which takes longer to load than
a plan takes to make."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from msgspec import Struct

from epctl.core.render.safe import plain

STYLES = {"bold": "\033[1m", "dim": "\033[2m", "red": "\033[1;31m", "green": "\033[1;32m", "yellow": "\033[33m"}
RESET = "\033[0m"
OVERLONG_INDENT = 6
MIN_LAST = 16
"""The last column of a table keeps at least this width."""


class Look(Struct, frozen=True):
    """How text may look."""

    width: int = 80
    colour: bool = False


class Page:
    """Lines, collected."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.lines: list[str] = []

    def text(self) -> str:
        """All lines, with a final newline."""
        return "\n".join(line.rstrip() for line in self.lines) + "\n"

    def blank(self) -> None:
        """An empty line."""
        self.lines.append("")

    def line(self, text: str, style: str = "") -> None:
        """`text`, wrapped to the width."""
        self.put(text, "", style)

    def put(self, text: str, indent: str = "", style: str = "", first: str | None = None) -> None:
        """`text` wrapped, with `first` before its first line and `indent` before the others."""
        start = indent if first is None else first
        for i, line in enumerate(wrapped(text, self.look.width - max(len(start), len(indent)))):
            self.lines.append((indent if i else start) + self.styled(line, style))

    def styled(self, text: str, style: str) -> str:
        """`text` in a style, where there are colours."""
        return f"{STYLES[style]}{text}{RESET}" if self.look.colour and style and text else text

    def table(self, rows: Sequence[tuple[Sequence[str], str]], right: frozenset[int], head: Sequence[str] = ()) -> None:
        """Rows of cells with a style each. Columns are as wide as their widest cell, the last one wraps. `right`: right-aligned ones."""
        every = [cells for cells, _ in rows] + ([head] if any(head) else [])
        if not every:
            return
        widths = [max(len(cells[i]) for cells in every) for i in range(len(every[0]) - 1)]
        room = max(self.look.width - sum(width + 2 for width in widths), MIN_LAST)
        widths.append(min(room, max(len(cells[-1]) for cells in every)))
        if any(head):
            self._row(head, widths, room, right, "bold")
        for cells, style in rows:
            self._row(cells, widths, room, right, style)

    def _row(self, cells: Sequence[str], widths: list[int], room: int, right: frozenset[int], style: str) -> None:
        *front, last = cells
        parts = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(front, widths[:-1], strict=True))
        ]
        start = "".join(part + "  " for part in parts)
        lines = wrapped(last, room) or [""]
        if len(front) in right and len(lines) == 1:
            lines = [lines[0].rjust(widths[-1])]
        for i, line in enumerate(lines):
            indent = start if i == 0 else " " * len(start)
            if len(line) > room and indent.isspace():
                indent = " " * OVERLONG_INDENT
            self.lines.append(self.styled((indent + line).rstrip(), style))


def wrapped(text: str, width: int) -> list[str]:
    """`text` on one line or more. A word longer than the width (an address) stays whole, on a line of its own: it is there to be copied."""
    return textwrap.wrap(plain(text), max(width, MIN_LAST), break_on_hyphens=False, break_long_words=False)


def bar(share: float, width: int = 10) -> str:
    """A bar of # and dots; more than full ends in >."""
    if share > 1:
        return "#" * (width - 1) + ">"
    filled = round(max(0.0, share) * width)
    return ("#" * max(filled, 1 if share > 0 else 0)).ljust(width, ".")
