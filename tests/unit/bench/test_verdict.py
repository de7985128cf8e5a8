from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.bench.verdict import ABOVE_LIMIT, AT_LIMIT, functional, judge
from tests.support.worlds import layout

TIMES = st.floats(0.01, 1e7)


@pytest.mark.parametrize(
    ("measured", "predicted", "limit", "word"),
    [
        (100.0, 100.0, 98.0, "at-limit"),
        (100.0, 50.0, 97.0, "at-limit"),
        (100.0, 95.0, 80.0, "as-predicted"),
        (112.0, 100.0, 80.0, "slower"),
        (88.0, 100.0, 60.0, "faster"),
        (100.0, 100.0, 110.0, "above-limit"),
        (100.0, None, 50.0, "unrated"),
        (100.0, None, None, "unrated"),
        (100.0, 104.0, None, "as-predicted"),
    ],
)
def test_words(measured: float, predicted: float | None, limit: float | None, word: str) -> None:
    assert judge(measured, predicted, limit).word == word


@given(TIMES, st.none() | TIMES, st.none() | TIMES)
def test_without_kernels_there_is_no_other_word(measured: float, predicted: float | None, limit: float | None) -> None:
    found = judge(measured, predicted, limit, functional_because="x")
    assert (found.word, found.warns) == ("functional", False)


def test_times_that_say_nothing_about_speed() -> None:
    assert "no kernel ran" in functional(layout(2))
    assert "emulated" in functional(layout(2, tier="gpu", emulated=True))
    assert "share" in functional(layout(4, tier="gpu", num_gpus=2))
    assert functional(layout(2, tier="gpu")) == ""


@given(TIMES, st.none() | TIMES, TIMES)
def test_the_limit_decides_first(measured: float, predicted: float | None, limit: float) -> None:
    found = judge(measured, predicted, limit)
    share = limit / measured
    assert (found.word == "above-limit") == (share > ABOVE_LIMIT)
    assert (found.word == "at-limit") == (AT_LIMIT <= share <= ABOVE_LIMIT)


@given(TIMES, TIMES)
def test_only_what_is_slow_or_impossible_warns(measured: float, predicted: float) -> None:
    found = judge(measured, predicted, None)
    assert found.warns == (measured > predicted * 1.1 and found.word == "slower")
    assert f"{measured / predicted:.2f} x" in found.why
