from __future__ import annotations

import itertools
import math
import random
import statistics as standard

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.bench.statistics import CONFIDENCE, Rule, median, rank_of_bound

SAMPLES = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=200)


@given(SAMPLES)
def test_the_median_is_the_middle_and_lies_in_its_interval(samples: list[float]) -> None:
    found = median(samples)
    assert found.value == pytest.approx(standard.median(samples), rel=1e-12)
    assert found.num_samples == len(samples)
    if found.low is None or found.high is None:
        assert len(samples) < 6
        assert found.width == math.inf
    else:
        assert len(samples) >= 6
        assert min(samples) <= found.low <= found.value <= found.high <= max(samples)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[float], chance: random.Random) -> None:
    mixed = list(samples)
    chance.shuffle(mixed)
    assert median(mixed) == median(samples)


def missed(num_samples: int, k: int) -> float:
    """Probability that fewer than k, or more than n - k, samples lie below the median, counted exactly."""
    below = sum(math.comb(num_samples, count) for count in range(k))
    return 2 * below / 2**num_samples


@pytest.mark.parametrize("num_samples", [*range(1, 120), 999, 1000, 1001, 1500])
def test_the_bound_is_the_tightest_that_keeps_the_confidence(num_samples: int) -> None:
    k = rank_of_bound(num_samples)
    assert missed(num_samples, k) <= 1 - CONFIDENCE
    assert k >= num_samples // 2 or missed(num_samples, k + 1) > 1 - CONFIDENCE


def test_known_bounds() -> None:
    """Of tables of the sign test at 95 %."""
    assert [rank_of_bound(count) for count in (5, 6, 9, 10, 20, 50, 100)] == [0, 1, 2, 2, 6, 18, 40]


@given(st.integers(6, 3000))
def test_more_samples_never_widen_the_share_of_order_statistics(count: int) -> None:
    assert 1 <= rank_of_bound(count) <= rank_of_bound(count + 1) <= rank_of_bound(count) + 1


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    chance = random.Random(7)  # noqa: S311 - a known sequence is wanted
    held = 0
    for _ in range(2000):
        found = median([chance.expovariate(1.0) for _ in range(25)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= math.log(2) <= found.high
    assert held / 2000 >= CONFIDENCE - 0.015


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_as_many_samples_as_were_asked_for() -> None:
    rule, samples = Rule(num_samples=70, budget_s=0.001), list[float]()
    batches = []
    while count := rule.next_batch(samples, spent_s=100.0):
        batches.append(count)
        samples += [1.0, 2.0] * (count // 2) + [1.0] * (count % 2)
    assert sum(batches) == len(samples) == 70


def test_it_ends_when_the_median_is_known_to_one_percent() -> None:
    assert Rule().next_batch([100.0 + 0.01 * idx for idx in range(10)], spent_s=0.0) == 0
    assert Rule().next_batch([100.0 + idx for idx in range(10)], spent_s=0.0) > 0


def test_it_ends_with_the_budget_and_with_the_most_samples() -> None:
    wide = [float(idx) for idx in range(1, 11)]
    assert Rule(budget_s=1.0).next_batch(wide, spent_s=1.0) == 0
    assert Rule(budget_s=1.0).next_batch(wide, spent_s=0.5) == 10
    assert Rule(max_samples=10).next_batch(wide, spent_s=0.0) == 0


@given(st.floats(0.001, 100.0), st.floats(1e-6, 1.0))
def test_a_run_ends_whatever_a_sample_takes(budget_s: float, sample_s: float) -> None:
    rule, samples, spent = Rule(budget_s=budget_s), list[float](), 0.0
    for batches in itertools.count():
        count = rule.next_batch(samples, spent)
        if not count:
            break
        samples += [float(1 + idx % 7) for idx in range(count)]
        spent += count * sample_s
        assert batches < 500
    assert len(samples) <= rule.max_samples
    assert spent <= max(budget_s, 10 * sample_s) + 2 * sample_s
