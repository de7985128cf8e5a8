"""What the command hands to each rank, and the events that come back."""

from __future__ import annotations

from msgspec import Struct

from epctl.bench.statistics import Rule
from epctl.core.op import Request, Tier

BENCH_TASK = "epctl.bench.task:bench"
SELFTEST_TASK = "epctl.bench.task:selftest"
HEADER, ROW, PROOF, CASE, END = "bench.header", "bench.row", "bench.proof", "bench.case", "bench.end"
"""Kinds of events, all of rank 0: layout and number of cases; one timed case; one proof; one checked case; what is known at the end."""


class Job(Struct, frozen=True):
    """A run of bench or selftest, the same on all ranks."""

    tier: Tier
    ops: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    """Names or patterns; all without any."""
    request: Request = Request()
    rule: Rule = Rule()
    seed: int = 0
    emulate_nodes: int | None = None
    ranks: int | None = None
    """As the user must give it to repeat the run; None under a launcher."""
    num_stress: int = 0
    """Random shapes that the self-test tries in place of its sweep; 0: the sweep."""
    budget_s: float = 0.0
    """Seconds after which the self-test begins no case any more; 0: no limit."""
