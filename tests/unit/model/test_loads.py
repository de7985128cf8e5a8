"""Loads by step, binned out of hits that are counted once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.model.plan import loads
from epctl.model.plan.loads import hit_counts, load_of_steps
from epctl.model.sampling import sample_trace, trace_from_rows
from epctl.model.spread import gate_named, spread_of_trace


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["zipf:1.0", "hot:2:8", "balanced"]), st.sampled_from([1, 2, 4, 16]), st.integers(1, 400))
def test_loads_are_those_of_the_whole_way(gate: str, groups: int, step: int) -> None:
    trace = sample_trace(gate_named(gate, 16), 16, 4, 300, 1)
    counts = hit_counts(trace, groups)
    assert counts is not None
    assert load_of_steps(counts, step) == spread_of_trace(trace, groups, step_tokens=step).load


def test_entries_without_a_pick_hit_nothing() -> None:
    trace = trace_from_rows([[0, -1], [1, 3], [2, 3]], 4)
    counts = hit_counts(trace, 2)
    assert counts is not None
    assert [list(count) for count in counts] == [[0, 1, 2, 2], [0, 0, 1, 2]]


def test_a_trace_past_the_memory_is_not_counted_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "MAX_CELLS", 4000)
    trace = sample_trace(gate_named("balanced", 16), 16, 4, 300, 1)
    assert hit_counts(trace, 16) is None
    assert hit_counts(trace, 8) is not None
