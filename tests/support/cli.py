"""Runs of the command line, for tests."""

from __future__ import annotations

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
