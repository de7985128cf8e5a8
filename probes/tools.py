"""One tool, one reader: from a file, from this machine, or from a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.probes import load, paths
from epctl.probes.readers import TOOLS, read
from epctl.probes.reading import MAX_BYTES, Reading
from epctl.probes.source import LiveSource, RecordedSource, Source

__all__ = ["TOOLS", "probe"]

_STREAM = re.compile(r"/dev/stdin|(?:/dev/fd|/proc/self/fd)/\d+")
"""Pipes that the shell holds open, `<(command)` among them. Any other pipe may never get a writer."""


def probe(tool: str, file: Path | None, path: Path | None = None, sample: str | None = None) -> Reading[Any]:
    """What the reader of `tool` sees. Raises EpctlError for an unknown tool, an unreadable file, or a tool that could not be run."""
    if tool not in TOOLS:
        raise EpctlError(f"there is no reader for {tool!r}", f"readers: {', '.join(TOOLS)}", "give one of these")
    if file is not None:
        return read(tool, _content(file))
    source: Source = LiveSource()
    if path is not None or sample is not None:
        source = RecordedSource(load.bundle_at(path, sample).recording)
    return read(tool, _run(tool, source))


def _content(file: Path) -> bytes:
    todo = "check the path given to --file"
    if not _STREAM.fullmatch(str(file)):
        return paths.content(file, MAX_BYTES, todo)
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise paths.unreadable(file, error, todo) from None


def _run(tool: str, source: Source) -> bytes:
    argv = load.PRINTED.get(tool)
    if argv is None:
        raise EpctlError(
            f"epctl does not run {tool} by itself",
            f"its text comes from: {TOOLS[tool]}",
            "save that text and give it with --file",
        )
    found = source.run(*argv)
    if isinstance(found, Absent):
        raise EpctlError(
            f"`{' '.join(argv)}` gave nothing",
            str(found),
            "install the tool, or give a saved output with --file",
            exit_code=4,
        )
    return found.raw
