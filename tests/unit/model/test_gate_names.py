"""Short names of gates, as they are given on the command line."""

from __future__ import annotations

import pytest

from epctl.model.gate import BalancedGate, Gate, GroupLimitedGate, hot_gate, zipf_gate
from epctl.model.refusal import RefusalError
from epctl.model.spread import gate_named


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("balanced", BalancedGate()),
        ("uniform", BalancedGate()),
        ("group_limited_8_top4", GroupLimitedGate(8, 4)),
        ("group_limited_8_top4_sum2:uniform", GroupLimitedGate(8, 4, "uniform")),
        ("zipf:1.5", zipf_gate(16, 1.5)),
        ("zipf:1.5:shuffled", zipf_gate(16, 1.5, shuffle_seed=0)),
        ("hot:2:8", hot_gate(16, 2, 8.0)),
    ],
)
def test_gates_have_names(text: str, gate: Gate) -> None:
    assert gate_named(text, 16) == gate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zipf",
        "zipf:x",
        "hot:2",
        "group_limited_8",
        "group_limited_8_4",
        "group_limited_8_top4:gamma",
        "zipf:1:sorted",
        "turbo",
    ],
)
def test_unknown_gates_are_refused(text: str) -> None:
    with pytest.raises(RefusalError) as caught:
        gate_named(text, 16)
    assert caught.value.code == "unknown_gate"
