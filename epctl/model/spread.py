"""How many groups (ranks, nodes) a token reaches, and how unevenly they are hit: closed form where there is one, and from a trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from msgspec import UNSET, Struct, UnsetType

from epctl.model import gate as gates
from epctl.model.gate import BalancedGate, Gate, GroupLimitedGate, SkewedGate
from epctl.model.refusal import RefusalError, positive
from epctl.model.sampling import DEFAULT_TOKENS, Trace, sample_trace

EXACT = "exact"
NUMERIC = "numeric (arrival of exponential clocks, integrated to 1e-12)"
BLIND = "approximation (kept groups drawn blindly); no closed form for the real gate"


class RankLoad(Struct, frozen=True):
    """Copies that a group receives, over the mean of all groups (1 = even)."""

    p50: float
    p99: float
    max: float
    step_tokens: int
    """Tokens of a step (all ranks together) that are counted together."""
    step_max_mean: float
    """The hottest group of each step, averaged over steps: what a step waits for."""
    step_max_p99: float


class Spread(Struct, frozen=True, kw_only=True):
    """Groups reached per token. z and relative_gap compare the mean with the closed form, where there is one."""

    groups: int
    mean: float
    standard_error: float
    p50: int
    p99: int
    tokens: int
    load: RankLoad
    closed_form: float | UnsetType = UNSET
    closed_form_kind: str | UnsetType = UNSET
    z: float | UnsetType = UNSET
    """Standard errors between mean and an exact (or numeric) closed form."""
    relative_gap: float | UnsetType = UNSET
    """(mean - closed form) / closed form of an approximation."""


def closed_form(gate: Gate, num_experts: int, num_groups: int, num_topk: int) -> tuple[Fraction | float, str]:
    """Expected groups per token and how it was had: EXACT, NUMERIC or BLIND. Raises RefusalError as the functions of `gate` do."""
    if isinstance(gate, GroupLimitedGate):
        value = gates.expected_distinct_blind(num_experts, num_groups, num_topk, gate.num_groups, gate.num_kept)
        return value, EXACT if gate.num_kept == gate.num_groups else BLIND
    if isinstance(gate, SkewedGate):
        if len(gate.weights) != num_experts:
            what = f"the gate has {len(gate.weights)} weights for {num_experts} experts"
            raise RefusalError(
                "gate_weights_invalid", what, "there is one weight an expert", f"give {num_experts} weights"
            )
        return gates.expected_distinct_skewed(gate.weights, num_groups, num_topk), NUMERIC
    return gates.expected_distinct(num_experts, num_groups, num_topk), EXACT


def best_estimate(gate: Gate, num_experts: int, num_groups: int, num_topk: int, *, seed: int = 0) -> Fraction | float:
    """Expected groups per token: the closed form unless it is an approximation, then the seeded Monte-Carlo mean."""
    value, kind = closed_form(gate, num_experts, num_groups, num_topk)
    return mean_distinct(sample_trace(gate, num_experts, num_topk, seed=seed), num_groups) if kind == BLIND else value


def spread_of_gate(
    gate: Gate,
    num_experts: int,
    num_groups: int,
    num_topk: int,
    *,
    tokens: int = DEFAULT_TOKENS,
    seed: int = 0,
    step_tokens: int = 0,
) -> Spread:
    """Monte Carlo over `tokens` tokens drawn with `seed`, beside the closed form. `step_tokens` as in spread_of_trace."""
    value, kind = closed_form(gate, num_experts, num_groups, num_topk)
    found = spread_of_trace(
        sample_trace(gate, num_experts, num_topk, tokens, seed), num_groups, step_tokens=step_tokens
    )
    expected = float(value)
    z: float | UnsetType = UNSET
    gap: float | UnsetType = UNSET
    if kind == BLIND:
        gap = (found.mean - expected) / expected
    else:
        z = standard_score(found.mean, expected, found.standard_error, found.tokens)
    fields = {
        name: getattr(found, name) for name in ("groups", "mean", "standard_error", "p50", "p99", "tokens", "load")
    }
    return Spread(**fields, closed_form=expected, closed_form_kind=kind, z=z, relative_gap=gap)


def standard_score(mean: float, expected: float, standard_error: float, tokens: int) -> float:
    """Standard errors between a mean over `tokens` and its expectation.

    Where hardly any token differs from the others, the error measured from them is too small (zero if none does): a gap of g then
    stands for about g x tokens rare events that did not come, which vary by the root of their number.
    """
    gap = mean - expected
    if math.isclose(mean, expected, rel_tol=1e-9):
        return 0.0
    return gap / max(standard_error, math.sqrt(abs(gap) / tokens))


def spread_of_trace(trace: Trace, num_groups: int, *, step_tokens: int = 0) -> Spread:
    """Groups per token and load by group of a trace, experts in equal contiguous groups. `step_tokens`: how many tokens make up one
    step of all ranks together (0: the whole trace is one). Raises RefusalError experts_not_divisible."""
    hit = _groups_hit(trace, num_groups)
    counts = [len(groups) for groups in hit]
    mean = math.fsum(counts) / len(counts)
    variance = math.fsum((count - mean) ** 2 for count in counts) / max(1, len(counts) - 1)
    counts.sort()
    return Spread(
        groups=num_groups,
        mean=mean,
        standard_error=math.sqrt(variance / len(counts)),
        p50=int(quantile(counts, 0.5)),
        p99=int(quantile(counts, 0.99)),
        tokens=len(counts),
        load=_load(hit, num_groups, step_tokens or len(hit)),
    )


def mean_distinct(trace: Trace, num_groups: int) -> float:
    """Mean groups per token of a trace. Raises RefusalError experts_not_divisible."""
    hit = _groups_hit(trace, num_groups)
    return math.fsum(len(groups) for groups in hit) / len(hit)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def _groups_hit(trace: Trace, num_groups: int) -> list[set[int]]:
    gates.check_groups(trace.num_experts, num_groups)
    size, k, experts = trace.num_experts // num_groups, trace.num_topk, trace.experts
    owner = [expert // size for expert in range(trace.num_experts)]
    return [{owner[e] for e in experts[i : i + k] if e >= 0} for i in range(0, len(experts), k)]


def _load(hit: list[set[int]], num_groups: int, step_tokens: int) -> RankLoad:
    positive("the number of tokens a step", step_tokens)
    totals: Counter[int] = Counter()
    hottest = []
    for begin in range(0, len(hit) - len(hit) % min(step_tokens, len(hit)), step_tokens):
        step: Counter[int] = Counter()
        for groups in hit[begin : begin + step_tokens]:
            step.update(groups)
        totals += step
        hottest.append(max(step.values(), default=0) * num_groups / (sum(step.values()) or 1))
    mean = sum(totals.values()) / num_groups or 1.0
    loads = sorted(totals[group] / mean for group in range(num_groups))
    hottest.sort()
    return RankLoad(
        p50=quantile(loads, 0.5),
        p99=quantile(loads, 0.99),
        max=loads[-1],
        step_tokens=step_tokens,
        step_max_mean=math.fsum(hottest) / len(hottest),
        step_max_p99=quantile(hottest, 0.99),
    )


def gate_named(text: str, num_experts: int) -> Gate:
    """A gate from its short name: balanced (or uniform), group_limited_8_top4[_sum2][:law], zipf:1.0[:shuffled], hot:4:8 (4 experts
    8 times as likely). Raises RefusalError unknown_gate or for values that cannot be."""
    name, *args = text.split(":")
    try:
        if name in ("balanced", "uniform") and not args:
            return BalancedGate()
        if name.startswith("group_limited_"):
            return _group_limited_named(name, args)
        if name == "zipf" and len(args) in (1, 2) and args[1:] in ([], ["shuffled"]):
            return gates.zipf_gate(num_experts, float(args[0]), shuffle_seed=0 if args[1:] else None)
        if name == "hot" and len(args) == 2:
            return gates.hot_gate(num_experts, int(args[0]), float(args[1]))
    except ValueError:
        pass
    known = "balanced, group_limited_8_top4, zipf:1.0, zipf:1.0:shuffled, hot:4:8"
    raise RefusalError(
        "unknown_gate", f"no gate is called {text!r}", f"gates are written {known}", "give --gate balanced"
    )


def _group_limited_named(name: str, args: list[str]) -> GroupLimitedGate:
    groups, kept, *rest = name.removeprefix("group_limited_").split("_")
    law = args[0] if args else "sigmoid_normal"
    if rest not in ([], ["sum2"]) or not kept.startswith("top") or len(args) > 1:
        raise ValueError(name)
    for known in gates.SCORE_LAWS:
        if law == known:
            return GroupLimitedGate(int(groups), int(kept.removeprefix("top")), known)
    raise ValueError(law)
