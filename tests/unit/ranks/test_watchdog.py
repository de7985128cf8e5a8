"""Stages and their limits, without a process that has to end."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from epctl.ranks.watchdog import ALARM_AFTER_S, Watchdog


def watched() -> tuple[Watchdog, list[Any]]:
    told: list[Any] = []
    return Watchdog(3, lambda kind, **fields: told.append((kind, fields.get("name"), fields.get("limit_s")))), told


def test_stages_nest_and_are_told() -> None:
    dog, told = watched()
    assert dog.current == "start"
    with dog.stage("outer", 60.0):
        with dog.stage("inner", 30.0):
            assert dog.current == "inner"
        assert dog.current == "outer"
    assert dog.current == "start"
    assert told == [("rank.stage", "outer", 60.0), ("rank.stage", "inner", 30.0), ("rank.stage", "outer", 60.0)]
    dog.close()


def test_an_error_keeps_the_innermost_stage_out_of_which_it_came() -> None:
    dog, _ = watched()
    with pytest.raises(ValueError, match="x") as caught, dog.stage("outer", 60.0), dog.stage("inner", 60.0):
        raise ValueError("x")
    assert dog.where(caught.value) == "inner"
    assert dog.current == "start"
    assert dog.where(ValueError("another")) == "start"
    dog.close()


def test_the_kernels_timer_stands_behind_the_nearest_limit_and_is_off_in_the_end() -> None:
    dog, _ = watched()
    with dog.stage("outer", 10.0):
        with dog.stage("inner", 100.0):
            assert 9.0 < signal.getitimer(signal.ITIMER_REAL)[0] - ALARM_AFTER_S <= 10.0
        with dog.stage("short", 5.0):
            assert 4.0 < signal.getitimer(signal.ITIMER_REAL)[0] - ALARM_AFTER_S <= 5.0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    dog.close()
