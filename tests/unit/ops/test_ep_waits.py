"""How long ranks waited for each other: what a call is given to write into, and what is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from epctl.ops.ep.checks import check_waits
from epctl.ops.ep.trial import waits
from tests.support.worlds import torch_or_skip


@pytest.mark.parametrize("num_ranks", [1, 2, 72])
def test_each_call_gets_a_place_that_the_buffer_takes_and_means_are_told(num_ranks: int) -> None:
    torch = torch_or_skip()
    calls = 0
    engine: Any = SimpleNamespace(domain=SimpleNamespace(num_ranks=num_ranks), device=torch.device("cpu"))

    def call(*, waited_ns: Any) -> None:  # noqa: ANN401
        nonlocal calls
        check_waits(engine, waited_ns)
        waited_ns.copy_(1000 * torch.arange(num_ranks) + calls * 100)
        calls += 1

    world: Any = SimpleNamespace(torch=torch, device=torch.device("cpu"), size=num_ranks, barrier=lambda: None)
    found = waits.measured(world, call)
    assert calls == waits.NUM_CALLS
    assert found == tuple(pytest.approx(rank + 0.05 * (waits.NUM_CALLS - 1)) for rank in range(num_ranks))
