"""Expected distinct groups: closed form = enumeration = Monte Carlo, bounds, and what is refused."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.model import gate as gates
from epctl.model.gate import BalancedGate, GroupLimitedGate, SkewedGate, hot_gate, zipf_gate
from epctl.model.refusal import RefusalError
from epctl.model.sampling import sample_trace, trace_from_rows
from epctl.model.spread import (
    BLIND,
    NUMERIC,
    best_estimate,
    closed_form,
    mean_distinct,
    spread_of_gate,
    spread_of_trace,
    standard_score,
)


@st.composite
def small_gates(draw: st.DrawFn) -> tuple[int, int, int]:
    """(experts, groups, top-k), few enough to enumerate."""
    groups = draw(st.integers(1, 5))
    experts = groups * draw(st.integers(1, 3))
    return experts, groups, draw(st.integers(1, experts))


@st.composite
def large_gates(draw: st.DrawFn) -> tuple[int, int, int]:
    groups = draw(st.sampled_from((1, 2, 3, 4, 8, 16, 72, 144)))
    experts = groups * draw(st.integers(1, 16))
    return experts, groups, draw(st.integers(1, min(experts, 16)))


def distinct(picks: tuple[int, ...], size: int) -> int:
    return len({expert // size for expert in picks})


@given(small_gates())
def test_balanced_equals_enumeration(case: tuple[int, int, int]) -> None:
    experts, groups, topk = case
    sets = list(itertools.combinations(range(experts), topk))
    mean = Fraction(sum(distinct(picks, experts // groups) for picks in sets), len(sets))
    assert gates.expected_distinct(experts, groups, topk) == mean


@given(large_gates())
def test_balanced_is_within_bounds_and_grows(case: tuple[int, int, int]) -> None:
    experts, groups, topk = case
    value = gates.expected_distinct(experts, groups, topk)
    assert 1 <= value <= min(topk, groups)
    if topk < experts:
        assert gates.expected_distinct(experts, groups, topk + 1) >= value
    for divisor in (d for d in range(1, groups) if groups % d == 0):
        assert gates.expected_distinct(experts, divisor, topk) <= value


@st.composite
def small_blind_gates(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """(experts, groups, top-k, gate groups, kept); gate groups need not line up with the groups."""
    experts = draw(st.sampled_from((4, 6, 8, 9, 12)))
    divisors = [d for d in range(1, experts + 1) if experts % d == 0]
    groups, gate_groups = draw(st.sampled_from(divisors)), draw(st.sampled_from(divisors))
    kept = draw(st.integers(1, gate_groups))
    return experts, groups, draw(st.integers(1, min(4, kept * experts // gate_groups))), gate_groups, kept


@given(small_blind_gates())
def test_blind_equals_enumeration(case: tuple[int, int, int, int, int]) -> None:
    experts, groups, topk, gate_groups, kept = case
    gate_size, total, number = experts // gate_groups, 0, 0
    for chosen in itertools.combinations(range(gate_groups), kept):
        pool = [expert for expert in range(experts) if expert // gate_size in chosen]
        for picks in itertools.combinations(pool, topk):
            total += distinct(picks, experts // groups)
            number += 1
    assert gates.expected_distinct_blind(experts, groups, topk, gate_groups, kept) == Fraction(total, number)


def test_keeping_all_groups_is_the_balanced_gate() -> None:
    for groups in (2, 8, 64):
        assert gates.expected_distinct_blind(256, groups, 8, 8, 8) == gates.expected_distinct(256, groups, 8)
    assert closed_form(GroupLimitedGate(8, 8), 256, 8, 8)[1] == "exact"


@st.composite
def small_weights(draw: st.DrawFn) -> tuple[tuple[float, ...], int, int]:
    groups = draw(st.integers(1, 3))
    size = draw(st.integers(1, 2))
    weights = draw(
        st.lists(st.sampled_from((0.01, 0.5, 1.0, 3.0, 40.0)), min_size=groups * size, max_size=groups * size)
    )
    return tuple(weights), groups, draw(st.integers(1, min(4, len(weights))))


@settings(deadline=None, max_examples=60)
@given(small_weights())
def test_skewed_equals_enumeration_of_draws(case: tuple[tuple[float, ...], int, int]) -> None:
    weights, groups, topk = case
    size, mean = len(weights) // groups, 0.0
    for picks in itertools.permutations(range(len(weights)), topk):
        chance, left = 1.0, math.fsum(weights)
        for expert in picks:
            chance *= weights[expert] / left
            left -= weights[expert]
        mean += chance * distinct(picks, size)
    assert math.isclose(gates.expected_distinct_skewed(weights, groups, topk), mean, rel_tol=1e-9)


@pytest.mark.parametrize("groups", [2, 8, 64])
def test_equal_weights_are_the_balanced_gate(groups: int) -> None:
    skewed = gates.expected_distinct_skewed((3.0,) * 256, groups, 8)
    assert math.isclose(skewed, gates.expected_distinct(256, groups, 8), rel_tol=1e-11)


@settings(deadline=None, max_examples=25)
@given(large_gates(), st.integers(0, 1000))
def test_balanced_monte_carlo_holds_the_closed_form(case: tuple[int, int, int], seed: int) -> None:
    experts, groups, topk = case
    found = spread_of_gate(BalancedGate(), experts, groups, topk, tokens=2000, seed=seed)
    assert abs(found.z) < 7


def test_rare_events_that_did_not_come_are_no_surprise() -> None:
    """2,000 tokens that all reach 4 groups, against an expectation of 3.999: 2 rare tokens are missing, which is 1.4 of their spread."""
    assert math.isclose(standard_score(4.0, 3.999, 0.0, 2000), math.sqrt(2), rel_tol=1e-9)
    assert standard_score(4.0, 3.9, 0.0, 2000) > 10
    assert standard_score(2.02, 2.0, 0.01, 2000) == pytest.approx(2.0)
    assert standard_score(1.0, 1.0, 0.0, 10) == 0.0


@pytest.mark.parametrize(
    "gate", [zipf_gate(64, 1.0), zipf_gate(64, 2.5), zipf_gate(64, 1.0, shuffle_seed=3), hot_gate(64, 4, 50.0)]
)
@pytest.mark.parametrize("groups", [1, 4, 16])
def test_skewed_monte_carlo_holds_the_integral(gate: SkewedGate, groups: int) -> None:
    found = spread_of_gate(gate, 64, groups, 6, tokens=8000, seed=5)
    assert found.closed_form_kind == NUMERIC
    assert abs(found.z) < 5
    assert groups > 1 or (found.mean, found.standard_error, found.z) == (1.0, 0.0, 0.0)


def brute_group_limited(gate: GroupLimitedGate, experts: int, topk: int, tokens: int, seed: int) -> list[list[int]]:
    """The gate as it is written down: all scores drawn, groups ranked by their best two, the best k of the kept."""
    import random

    rng, size = random.Random(seed), experts // gate.num_groups  # noqa: S311
    law = {"uniform": rng.random, "exponential": lambda: rng.expovariate(1.0)}
    draw = law.get(gate.score_law, lambda: 1 / (1 + math.exp(-rng.gauss(0, 1))))
    rows = []
    for _ in range(tokens):
        scores = [draw() for _ in range(experts)]
        ranked = sorted(range(gate.num_groups), key=lambda g: -sum(sorted(scores[g * size : (g + 1) * size])[-2:]))
        pool = [expert for g in ranked[: gate.num_kept] for expert in range(g * size, (g + 1) * size)]
        rows.append(sorted(pool, key=lambda expert: -scores[expert])[:topk])
    return rows


@pytest.mark.parametrize(
    "gate", [GroupLimitedGate(4, 2), GroupLimitedGate(8, 3, "uniform"), GroupLimitedGate(16, 5, "exponential")]
)
def test_group_limited_sampling_follows_the_gate(gate: GroupLimitedGate) -> None:
    experts, topk = 32, 4
    rows = brute_group_limited(gate, experts, topk, 6000, 1)
    trace, brute = sample_trace(gate, experts, topk, 12000, 2), trace_from_rows(rows, experts)
    for groups in (2, 4, 8, 16, 32):
        ours, theirs = spread_of_trace(trace, groups), spread_of_trace(brute, groups)
        assert abs(ours.mean - theirs.mean) <= 5 * math.hypot(ours.standard_error, theirs.standard_error)
    per_group = spread_of_trace(trace, gate.num_groups)
    assert per_group.mean <= gate.num_kept


@settings(deadline=None, max_examples=40)
@given(small_blind_gates(), st.integers(0, 100))
def test_group_limited_rows_are_valid(case: tuple[int, int, int, int, int], seed: int) -> None:
    experts, _, topk, gate_groups, kept = case
    trace = sample_trace(GroupLimitedGate(gate_groups, kept), experts, topk, 50, seed)
    for begin in range(0, len(trace.experts), topk):
        row = list(trace.experts[begin : begin + topk])
        assert len(set(row)) == topk
        assert all(0 <= expert < experts for expert in row)
        assert len({expert // (experts // gate_groups) for expert in row}) <= kept


def test_same_seed_same_numbers() -> None:
    sample_trace.cache_clear()
    first = list(sample_trace(GroupLimitedGate(8, 4), 256, 8, 100, 7).experts)
    sample_trace.cache_clear()
    assert list(sample_trace(GroupLimitedGate(8, 4), 256, 8, 100, 7).experts) == first
    assert list(sample_trace(GroupLimitedGate(8, 4), 256, 8, 100, 8).experts) != first


def test_best_estimate_takes_the_exact_value_or_the_mean() -> None:
    assert best_estimate(BalancedGate(), 256, 8, 8) == gates.expected_distinct(256, 8, 8)
    gate = GroupLimitedGate(8, 4)
    assert closed_form(gate, 256, 8, 8)[1] == BLIND
    assert best_estimate(gate, 256, 8, 8) == mean_distinct(sample_trace(gate, 256, 8), 8)


def test_trace_counts_and_load() -> None:
    found = spread_of_trace(trace_from_rows([[0, 1], [0, 4], [0, -1], [0, 1]], 8), 4, step_tokens=2)
    assert (found.mean, found.p50, found.p99, found.tokens) == (1.25, 1, 2, 4)
    assert found.load.max == 3.2
    assert (found.load.step_max_mean, found.load.step_max_p99) == ((8 / 3 + 4) / 2, 4.0)


def test_padding_counted_as_tokens_that_reach_no_rank() -> None:
    trace = trace_from_rows([[0, 1], [-1, -1], [0, 4], [-1, -1], [2, -1]], 8)
    assert (trace.num_tokens, trace.padding) == (3, 2)
    assert mean_distinct(trace, 1) == 1.0
    with pytest.raises(RefusalError, match="all 1 rows of the gate trace are padding"):
        trace_from_rows([[-1, -1]], 8)


def test_hot_ranks_show_in_the_load() -> None:
    even = spread_of_gate(BalancedGate(), 64, 8, 4, tokens=4000)
    hot = spread_of_gate(hot_gate(64, 2, 40.0), 64, 8, 4, tokens=4000)
    assert 1.0 <= even.load.max < 1.15 < hot.load.max
    assert hot.mean < even.mean


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([], "no row"),
        ([[]], "is empty"),
        ([[0, 1], [2]], "entries"),
        ([[0, 8]], "expert 8"),
        ([[3, 3]], "twice"),
        ([[-2]], "expert -2"),
    ],
)
def test_bad_traces_are_refused(rows: list[list[int]], word: str) -> None:
    with pytest.raises(RefusalError) as caught:
        trace_from_rows(rows, 8)
    assert caught.value.code == "trace_invalid"
    assert word in caught.value.what


@pytest.mark.parametrize(
    ("call", "code", "hint"),
    [
        (lambda: gates.expected_distinct(256, 72, 8), "experts_not_divisible", "288"),
        (lambda: gates.expected_distinct(16, 8, 17), "topk_exceeds_experts", "16"),
        (lambda: gates.expected_distinct(16, 8, 0), "topk_too_small", "1"),
        (lambda: gates.expected_distinct(1 << 17, 8, 1), "absurd_argument", "256"),
        (lambda: gates.expected_distinct_blind(4096, 8, 1, 2048, 1), "absurd_argument", "8"),
        (lambda: gates.expected_distinct(0, 8, 1), "non_positive_argument", "1"),
        (lambda: gates.expected_distinct_blind(256, 8, 8, 8, 9), "gate_groups_invalid", "8"),
        (lambda: gates.expected_distinct_blind(64, 8, 17, 8, 2), "topk_exceeds_experts", "16"),
        (lambda: gates.expected_distinct_skewed((1.0, 0.0), 2, 1), "gate_weights_invalid", "positive"),
        (lambda: closed_form(zipf_gate(8, 1.0), 16, 2, 1), "gate_weights_invalid", "16"),
        (lambda: sample_trace(zipf_gate(8, 1.0), 16, 2), "gate_weights_invalid", "16"),
        (lambda: hot_gate(8, 9, 2.0), "gate_weights_invalid", "8"),
        (lambda: hot_gate(8, 1, math.nan), "gate_weights_invalid", "2"),
        (lambda: zipf_gate(8, -1.0), "gate_weights_invalid", "1"),
    ],
)
def test_refusals_name_the_rule_and_a_value_that_would_do(call: object, code: str, hint: str) -> None:
    assert callable(call)
    with pytest.raises(RefusalError) as caught:
        call()
    assert caught.value.code == code
    assert hint in caught.value.todo
