"""What a plan's gate does: means for the plan, spreads for the report."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from epctl.model.gate import BalancedGate, expected_distinct
from epctl.model.plan.loads import hit_counts, load_of_steps
from epctl.model.plan.settle import Settled, value
from epctl.model.plan.types import GateReport
from epctl.model.sampling import DEFAULT_TOKENS, Trace, sample_trace, trace_from_rows
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
    """Mean distinct ranks and nodes; None for a balanced gate, whose closed form the plan has itself. slow_rank and slow_node as in
    `Workload`, 1 for a balanced gate."""

    __slots__ = ("nodes", "ranks", "slow_node", "slow_rank")

    def __init__(self, ranks: float | None, nodes: float | None, slow_rank: float, slow_node: float) -> None:
        self.ranks = ranks
        self.nodes = nodes
        self.slow_rank = slow_rank
        self.slow_node = slow_node


_BALANCED = Means(None, None, 1.0, 1.0)


def means(found: Settled) -> Means:
    """Raises RefusalError as `spread` and `sampling` do."""
    name = found.request.gate
    if name is None or _balanced(found):
        return _BALANCED
    ranks, nodes = found.domain.num_ranks, found.nodes
    key = ("gate", name, value(found.request, "seed"), found.experts, found.topk, ranks, nodes, _step(found))
    memo = found.files.memo
    if key not in memo:
        memo[key] = Means(_mean(found, ranks), _mean(found, nodes), _busiest(found, ranks), _busiest(found, nodes))
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
    trace = _trace(found)
    if trace is not None:
        rows = f"{trace.padding} row{'s' if trace.padding > 1 else ''}"
        return f"{MEASURED}; {rows} of padding (-1 alone) left out" if trace.padding else MEASURED
    _, kind = closed_form(gate_named(name, found.experts), found.experts, found.domain.num_ranks, found.topk)
    return SAMPLED if kind == BLIND else f"{kind} (closed form), cross-checked by Monte Carlo"


def _mean(found: Settled, groups: int) -> float:
    key, memo = ("mean", *_gate_key(found, groups)), found.files.memo
    if key not in memo:
        trace = _trace(found)
        if trace is not None:
            memo[key] = mean_distinct(trace, groups)
        else:
            gate, seed = gate_named(str(found.request.gate), found.experts), value(found.request, "seed")
            memo[key] = float(best_estimate(gate, found.experts, groups, found.topk, seed=seed))
    return memo[key]  # type: ignore[no-any-return]


def _gate_key(found: Settled, groups: int) -> tuple[object, ...]:
    return found.request.gate, value(found.request, "seed"), found.experts, found.topk, groups


def _busiest(found: Settled, groups: int) -> float:
    """Load of the busiest group of a step over the mean."""
    if groups == 1:
        return 1.0
    return min(max(1.0, _spread(found, groups).load.step_max_mean), float(groups))


def _spread(found: Settled, groups: int) -> Spread:
    """Of one group size, whatever the step, once; a step's load is binned out of its hits."""
    mine, memo = _gate_key(found, groups), found.files.memo
    trace = _picks(found)
    of_hits, of_any = ("hits", *mine), ("spread of any step", *mine)
    if of_hits not in memo:
        memo[of_hits] = hit_counts(trace, groups)
    hits, step = memo[of_hits], min(_step(found), trace.num_tokens)
    key = ("spread", *mine, step)
    if key not in memo:
        if hits is None:
            memo[key] = _counted(found, trace, groups, step)
        else:
            if of_any not in memo:
                memo[of_any] = _counted(found, trace, groups, step)
            memo[key] = msgspec.structs.replace(memo[of_any], load=load_of_steps(hits, step))
    return memo[key]  # type: ignore[no-any-return]


def _picks(found: Settled) -> Trace:
    """The trace, or as many tokens as are drawn from a gate."""
    trace = _trace(found)
    if trace is not None:
        return trace
    gate = gate_named(str(found.request.gate), found.experts)
    return sample_trace(gate, found.experts, found.topk, DEFAULT_TOKENS, value(found.request, "seed"))


def _counted(found: Settled, trace: Trace, groups: int, step: int) -> Spread:
    if _trace(found) is not None:
        return spread_of_trace(trace, groups, step_tokens=step)
    gate, seed = gate_named(str(found.request.gate), found.experts), value(found.request, "seed")
    return spread_of_gate(gate, found.experts, groups, found.topk, seed=seed, step_tokens=step)


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
