"""How much of a communication's time a computation beside it hides."""

from __future__ import annotations

from epctl.core.op import Told


def hidden_share(told: tuple[Told, ...]) -> float | None:
    """1 when both together take no longer than the computation alone, 0 when they take as long as one after the other. Of each time the
    slowest rank counts. None where nothing was computed."""
    if not told or not all(one.communication_us > 0 and one.together_us > 0 for one in told):
        return None
    alone = max(one.communication_us for one in told)
    computation = max(one.computation_us for one in told)
    both = max(one.together_us for one in told)
    return min(1.0, max(0.0, (alone + computation - both) / alone))
