"""How a rank's end reads."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epctl.ranks import causes


@pytest.mark.parametrize(
    ("code", "words", "exit_code"),
    [
        (-signal.SIGKILL, "memory runs out", 1),
        (-signal.SIGBUS, "/dev/shm is full", 1),
        (-signal.SIGALRM, "past its limit", 4),
        (128 + signal.SIGTERM, "somebody told it to (SIGTERM)", 1),
        (3, "it gave no reason", 1),
        (0, "it left without an error", 1),
    ],
)
def test_each_end_has_a_reason_and_what_to_look_at(code: int, words: str, exit_code: int) -> None:
    child = SimpleNamespace(rank=2, stage="middle", code=code, fate="ended")
    failure = causes.died(cast("Any", child))
    assert words in failure.why
    assert failure.todo
    assert (failure.rank, failure.exit_code) == (2, exit_code)
    assert failure.what.startswith('rank 2 ended in stage "middle"')
