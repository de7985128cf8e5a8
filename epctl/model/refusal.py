"""How the model turns a request down: a code for programs, three lines for people, and what DeepEP 2.5.0 does with the same input."""

from __future__ import annotations

import math

from epctl.core.errors import EpctlError

ASSERTS = "AssertionError"
DIVIDES_BY_ZERO = "ZeroDivisionError"


class RefusalError(EpctlError):
    """A request that no plan fits. `code` names the rule; `deepep_2_5_0` is the release's behaviour, '' where it is not known."""

    def __init__(self, code: str, what: str, why: str, todo: str, *, deepep_2_5_0: str = "") -> None:
        super().__init__(what, why, todo)
        self.code = code
        self.deepep_2_5_0 = deepep_2_5_0


MAX_COUNT = 1 << 40
"""Counts past this are typing errors (and would make the arithmetic crawl), not clusters."""
MIN_GBS, MAX_GBS = 0.01, 20_000.0
"""Rates that are planned with: 10 MB/s is less than any adapter or SM moves, 20 TB/s more than a GPU's HBM. Others have another unit."""
RATES = f"rates are in GB/s (1e9 bytes/s), from {MIN_GBS:g} to {MAX_GBS:g}"
MAX_SEED = 1 << 63
_LARGEST: dict[str, int] = {
    "nodes": 1 << 16,
    "gpus_per_node": 1 << 12,
    "hidden": 1 << 20,
    "tokens": 1 << 24,
    "max_qp": 1 << 30,
    "contexts": 1 << 20,
    "inflight": 1 << 16,
    "layers": 1 << 16,
    "entries_per_token": 1 << 16,
    "max_reads_per_qp": 1 << 16,
    "seed": MAX_SEED,
}
"""Field of a request → the largest value that can be meant; what kernels and memory take is judged by the plan."""


def largest(field: str) -> int:
    """The largest count that `field` of a request can have."""
    return _LARGEST.get(field, MAX_COUNT)


def positive(name: str, value: int) -> int:
    """`value` as a count of at least 1. Raises RefusalError non_positive_argument or absurd_argument."""
    if value < 1:
        raise RefusalError(
            "non_positive_argument", f"{name} is {value}", f"{name} must be at least 1", f"give {name} 1 or more"
        )
    if value > MAX_COUNT:
        why = f"no machine has or holds that many; the largest value taken is {MAX_COUNT}"
        raise RefusalError("absurd_argument", f"{name} is {value}", why, f"give {name} {MAX_COUNT} or less")
    return value


def rate(name: str, value: float, code: str, *, example: str, deepep_2_5_0: str = "") -> float:
    """`value` as a bandwidth in GB/s. Raises RefusalError `code` where it is zero, negative or no number, absurd_argument outside of
    MIN_GBS to MAX_GBS."""
    if not math.isfinite(value) or value <= 0:
        why = "this plan divides by it, and a rate that is not known cannot be planned for"
        raise RefusalError(
            code, f"{name} is {value}", why, f"give {name} in GB/s, such as {example}", deepep_2_5_0=deepep_2_5_0
        )
    if not MIN_GBS <= value <= MAX_GBS:
        raise RefusalError("absurd_argument", f"{name} is {value}", RATES, f"give {name} in GB/s, such as {example}")
    return value
