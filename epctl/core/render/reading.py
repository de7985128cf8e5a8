"""What a reader saw, as JSON or as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from epctl.core.jsontext import dump
from epctl.core.render.safe import plain


def render(tool: str, reading: Any, format: str) -> str:  # noqa: A002, ANN401
    """`reading` is a Reading of epctl.probes.reading; JSON has `schema`, `tool`, `status`, `error`, `problems`, `facts`."""
    tree = msgspec.to_builtins(reading, str_keys=True)
    if format == "json":
        whole = {"schema": {"name": "epctl.probe", "version": 1}, "tool": tool, **tree}
        return dump(whole).decode()
    lines = [f"{tool}: {reading.status}"]
    if reading.error:
        lines.append("error: " + ", ".join(f"{key} {plain(str(value))}" for key, value in reading.error.items()))
    lines += [f"problem: {plain(f'{entry.kind} {entry.where} {entry.line}'.strip())}" for entry in reading.problems]
    lines += _tree(tree["facts"], 0)
    return "\n".join(lines) + "\n"


def listing(tools: dict[str, str], format: str) -> str:  # noqa: A002
    """The readers and the commands whose text they read."""
    if format == "json":
        return dump({"schema": {"name": "epctl.readers", "version": 1}, "readers": tools}).decode()
    return "".join(f"{name:16} {command}\n" for name, command in tools.items())


def _tree(thing: Any, depth: int) -> Iterator[str]:  # noqa: ANN401
    pad = "  " * depth
    pairs = thing.items() if isinstance(thing, dict) else enumerate(thing)
    for key, value in pairs:
        if isinstance(value, dict | list) and value and (isinstance(value, dict) or isinstance(value[0], dict | list)):
            yield f"{pad}{plain(str(key))}:"
            yield from _tree(value, depth + 1)
        else:
            shown = (
                ", ".join(map(str, value))
                if isinstance(value, list)
                else "-"
                if value is None or value == {}
                else str(value)
            )
            yield f"{pad}{plain(str(key))}: {plain(shown)}"
