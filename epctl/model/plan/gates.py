"""What a plan's gate does: means for the plan, spreads for the report."""

from __future__ import annotations

from msgspec import UNSET

from epctl.model.gate import BalancedGate, expected_distinct
from epctl.model.plan.settle import Settled, value
from epctl.model.plan.types import GateReport
from epctl.model.sampling import DEFAULT_TOKENS, Trace, trace_from_rows
from epctl.model.spread import (
    BLIND,
    EXACT,
    Spread,
    best_estimate,
    closed_form,
    gate_named,
    mean_distinct,
    spread_of_gate,
    spread_of_trace,
)

MEASURED = "measured: mean over the tokens of the trace"
SAMPLED = f"Monte Carlo over {DEFAULT_TOKENS} tokens"


class Means:
    """Mean distinct ranks and nodes; None for a balanced gate, whose closed form the plan has itself."""

    __slots__ = ("nodes", "ranks", "slow_rank")

    def __init__(self, ranks: float | None, nodes: float | None, slow_rank: float) -> None:
        self.ranks = ranks
        self.nodes = nodes
        self.slow_rank = slow_rank


_BALANCED = Means(None, None, 1.0)


def means(found: Settled) -> Means:
    """Raises RefusalError as `spread` and `sampling` do."""
    name = found.request.gate
    if name is None:
        return _BALANCED
    ranks, nodes = found.domain.num_ranks, found.nodes
    key = ("gate", name, value(found.request, "seed"), found.experts, found.topk, ranks, nodes, _step(found))
    memo = found.files.memo
    if key not in memo:
        load = _spread(found, ranks).load
        busiest = min(max(1.0, load.step_max_mean), float(ranks))
        given = None if _balanced(found) else _mean(found, ranks)
        memo[key] = Means(given, None if given is None else _mean(found, nodes), busiest)
    return memo[key]  # type: ignore[no-any-return]


def report(found: Settled) -> GateReport:
    """The gate as the report shows it."""
    name = found.request.gate
    if name is None:
        expected_distinct(found.experts, found.domain.num_ranks, found.topk)
        return GateReport(name="balanced", kind=f"{EXACT} (closed form)")
    ranks, nodes = _spread(found, found.domain.num_ranks), _spread(found, found.nodes)
    return GateReport(name=name, kind=_kind(found), ranks=ranks, nodes=nodes if found.nodes > 1 else UNSET)


def _balanced(found: Settled) -> bool:
    name = str(found.request.gate)
    return name not in found.files.traces and isinstance(gate_named(name, found.experts), BalancedGate)


def _kind(found: Settled) -> str:
    name = str(found.request.gate)
    if name in found.files.traces:
        return MEASURED
    _, kind = closed_form(gate_named(name, found.experts), found.experts, found.domain.num_ranks, found.topk)
    return SAMPLED if kind == BLIND else f"{kind} (closed form), cross-checked by Monte Carlo"


def _mean(found: Settled, groups: int) -> float:
    trace = _trace(found)
    if trace is not None:
        return mean_distinct(trace, groups)
    gate = gate_named(str(found.request.gate), found.experts)
    return float(best_estimate(gate, found.experts, groups, found.topk, seed=value(found.request, "seed")))


def _spread(found: Settled, groups: int) -> Spread:
    key = ("spread", found.request.gate, value(found.request, "seed"), found.experts, found.topk, groups, _step(found))
    memo = found.files.memo
    if key not in memo:
        trace = _trace(found)
        if trace is not None:
            memo[key] = spread_of_trace(trace, groups, step_tokens=min(_step(found), trace.num_tokens))
        else:
            gate, seed = gate_named(str(found.request.gate), found.experts), value(found.request, "seed")
            memo[key] = spread_of_gate(gate, found.experts, groups, found.topk, seed=seed, step_tokens=_step(found))
    return memo[key]  # type: ignore[no-any-return]


def _step(found: Settled) -> int:
    """Tokens of one step of all ranks, as far as the sample goes."""
    return max(1, min(found.tokens * found.domain.num_ranks, DEFAULT_TOKENS))


def _trace(found: Settled) -> Trace | None:
    name = str(found.request.gate)
    rows = found.files.traces.get(name)
    if rows is None:
        return None
    key = ("trace", name, found.experts)
    if key not in found.files.memo:
        found.files.memo[key] = trace_from_rows(rows, found.experts)
    return found.files.memo[key]  # type: ignore[no-any-return]
