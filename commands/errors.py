"""Errors of commands that can answer with JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from epctl.core.errors import EpctlError

_CODES = {1: "failed", 4: "not_measured"}
"""error_code of an error that has none of its own, by exit code; every other one is of the input."""


@contextmanager
def told(format: str, schema: Mapping[str, object]) -> Iterator[None]:  # noqa: A002
    """With --format json, a program that reads standard output gets an error there, too; people get their three lines in any case."""
    try:
        yield
    except EpctlError as error:
        if format == "json":
            from epctl.commands import options
            from epctl.core.jsontext import dump

            code = getattr(error, "code", _CODES.get(error.exit_code, "input_invalid"))
            words = {"what": error.what, "why": error.why, "do": error.todo}
            whole = {"schema": schema, "status": "error", "error_code": code, "error": words}
            options.emit(dump(whole).decode(), None)
        raise
