"""Runs of the command line, for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def three_lines(ran: Ran, code: int = 2) -> None:
    """One error of three lines, and nothing else."""
    assert ran.code == code, ran
    assert ran.out == ""
    assert re.fullmatch(r"error: .+\n  why: .+\n  do:  .+\n", ran.err, re.S), ran.err
    assert "Traceback" not in ran.err


def json_error(ran: Ran, error_code: str, code: int = 2) -> None:
    """One error: an object for programs on standard output, three lines for people on the other."""
    found = json.loads(ran.out)
    three_lines(ran._replace(out=""), code)
    assert (found["status"], found["error_code"]) == ("error", error_code)
    assert set(found) == {"schema", "status", "error_code", "error"}
    what, why, todo = (found["error"][name] for name in ("what", "why", "do"))
    assert ran.err == f"error: {what}\n  why: {why}\n  do:  {todo}\n"
