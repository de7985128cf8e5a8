"""Gates: which experts a token picks, and how many distinct groups of experts (ranks, nodes) that reaches on average.

Closed forms, exact where the gate allows it; `sampling` draws from the same gates where there is none, and for the spread.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from epctl.model.refusal import ASSERTS, DIVIDES_BY_ZERO, RefusalError, positive

ScoreLaw = Literal["sigmoid_normal", "uniform", "exponential"]
"""How a group-limited gate's scores are distributed: the sum of the best two depends on it. sigmoid_normal: DeepSeek-V3's sigmoid of
a normal logit."""


SCORE_LAWS: tuple[ScoreLaw, ...] = ("sigmoid_normal", "uniform", "exponential")


class BalancedGate(Struct, frozen=True, tag="balanced"):
    """Every set of k experts is as likely as any other."""


class GroupLimitedGate(Struct, frozen=True, tag="group_limited"):
    """Experts in `num_groups` equal groups, of which a token keeps the `num_kept` with the largest sum of their best two scores, and
    picks its k best experts there. Source: DeepSeek-V3's gate (8 groups, 4 kept)."""

    num_groups: int
    num_kept: int
    score_law: ScoreLaw = "sigmoid_normal"


class SkewedGate(Struct, frozen=True, tag="skewed"):
    """k experts drawn one after another without putting back, each with a chance in proportion to its weight."""

    weights: tuple[float, ...]
    """By expert; positive."""


Gate = BalancedGate | GroupLimitedGate | SkewedGate


MAX_EXPERTS = 1 << 16
"""Beyond any model (DeepEP's kernels stop at 2,048), and where exact binomials begin to take seconds."""
MAX_GATE_GROUPS = 1024
MAX_FACTOR = 1e6
"""Of the chances of two experts; sums of chances stay exact enough below it."""


def check_experts(num_experts: int) -> None:
    """Raises RefusalError non_positive_argument or absurd_argument."""
    if num_experts > MAX_EXPERTS:
        why = f"no model has that many; the largest number taken is {MAX_EXPERTS}"
        raise RefusalError("absurd_argument", f"the number of experts is {num_experts}", why, "give --experts 256")
    positive("the number of experts", num_experts)


def check_topk(num_experts: int, num_topk: int) -> None:
    """Raises RefusalError topk_too_small, topk_exceeds_experts, non_positive_argument or absurd_argument."""
    check_experts(num_experts)
    if num_topk < 1:
        why = "a token goes to at least one expert"
        raise RefusalError(
            "topk_too_small", f"top-k is {num_topk}", why, "give --topk 1 or more", deepep_2_5_0=DIVIDES_BY_ZERO
        )
    if num_topk > num_experts:
        what = f"top-k is {num_topk}, but there are {num_experts} experts"
        todo = f"give --topk {num_experts} or less"
        raise RefusalError(
            "topk_exceeds_experts", what, "a token picks distinct experts", todo, deepep_2_5_0=DIVIDES_BY_ZERO
        )


def check_groups(num_experts: int, num_groups: int) -> None:
    """Experts must fill groups evenly. Raises RefusalError experts_not_divisible or non_positive_argument."""
    positive("the number of groups of experts", num_groups)
    if num_experts % num_groups:
        up = -(-num_experts // num_groups) * num_groups
        fewer = max(d for d in range(1, min(num_groups, num_experts + 1)) if num_experts % d == 0)
        what = f"{num_experts} experts do not divide by {num_groups}"
        why = "every rank (node, group) holds the same number of experts"
        ranks = f"--nodes and --gpus-per-node that make {fewer} instead of {num_groups}"
        todo = (
            f"give --experts {up} ({up - num_experts} redundant), or {ranks}" if up <= MAX_EXPERTS else f"give {ranks}"
        )
        raise RefusalError("experts_not_divisible", what, why, todo, deepep_2_5_0=ASSERTS)


@lru_cache(maxsize=4096)
def expected_distinct(num_experts: int, num_groups: int, num_topk: int) -> Fraction:
    """Expected number of groups that a token of a balanced gate reaches: g (1 - C(E - E/g, k) / C(E, k)), exact.

    Raises RefusalError as check_topk and check_groups do. Source: linearity of expectation over the groups, each missed with the
    hypergeometric chance of no pick; the same as get_expected_topk in deepinfer-ep 2.5.0, deep_ep/buffers/ep.py.
    """
    check_topk(num_experts, num_topk)
    check_groups(num_experts, num_groups)
    missed = Fraction(math.comb(num_experts - num_experts // num_groups, num_topk), math.comb(num_experts, num_topk))
    return num_groups * (1 - missed)


@lru_cache(maxsize=1024)
def expected_distinct_blind(
    num_experts: int, num_groups: int, num_topk: int, gate_groups: int, gate_kept: int
) -> Fraction:
    """As expected_distinct for a gate that first keeps `gate_kept` of its own `gate_groups` groups blindly, then k of the experts left.

    An approximation of a group-limited gate, which keeps groups that score well: that spreads picks more evenly, so the real value is
    larger (by 9 % at worst in DeepSeek-V3's gate). Source: hypergeometric chances given how many kept experts each group holds.
    """
    check_limits(num_experts, num_topk, gate_groups, gate_kept)
    check_groups(num_experts, num_groups)
    kept_experts = num_experts // gate_groups * gate_kept
    total = math.comb(kept_experts, num_topk) * math.comb(gate_groups, gate_kept)
    missed = Fraction(0)
    for overlaps, blocks in _overlaps(num_experts, num_groups, gate_groups).items():
        missed += blocks * sum(
            ways * math.comb(kept_experts - inside, num_topk)
            for inside, ways in _kept_inside(overlaps, gate_groups, gate_kept).items()
        )
    return num_groups - missed / total


def check_limits(num_experts: int, num_topk: int, gate_groups: int, gate_kept: int) -> None:
    """Raises RefusalError where a group-limited gate cannot pick k experts: gate_groups_invalid, topk_exceeds_experts and so on."""
    check_experts(num_experts)
    check_groups(num_experts, gate_groups)
    if gate_groups > MAX_GATE_GROUPS:
        why = f"gates have 8 or so; the largest number taken is {MAX_GATE_GROUPS}"
        raise RefusalError("absurd_argument", f"the gate has {gate_groups} groups", why, "give 8")
    if not 1 <= gate_kept <= gate_groups:
        what = f"{gate_kept} of {gate_groups} gate groups are kept"
        raise RefusalError(
            "gate_groups_invalid", what, "a token keeps at least one group, at most all", f"keep 1 to {gate_groups}"
        )
    check_topk(num_experts // gate_groups * gate_kept, num_topk)


def check_weights(weights: tuple[float, ...]) -> None:
    """Raises RefusalError gate_weights_invalid where a weight is not a positive number."""
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        why = "an expert's chance is its share of the weights"
        raise RefusalError(
            "gate_weights_invalid", "a gate weight is zero, negative or no number", why, "give positive weights"
        )


def _overlaps(num_experts: int, num_groups: int, gate_groups: int) -> Counter[tuple[int, ...]]:
    """How many experts a group shares with each gate group that it touches → how many groups are like that."""
    size, gate_size = num_experts // num_groups, num_experts // gate_groups
    found: Counter[tuple[int, ...]] = Counter()
    for begin in range(0, num_experts, size):
        end = begin + size
        touched = range(begin // gate_size, -(-end // gate_size))
        found[tuple(sorted(min(end, (g + 1) * gate_size) - max(begin, g * gate_size) for g in touched))] += 1
    return found


def _kept_inside(overlaps: tuple[int, ...], gate_groups: int, gate_kept: int) -> dict[int, int]:
    """Number of kept experts inside the group → number of choices of kept gate groups that give it."""
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for shared in overlaps:
        ways.update({(count + 1, inside + shared): number for (count, inside), number in ways.items()})
    others = gate_groups - len(overlaps)
    result: Counter[int] = Counter()
    for (count, inside), number in ways.items():
        if count <= gate_kept:
            result[inside] += number * math.comb(others, gate_kept - count)
    return dict(result)


@lru_cache(maxsize=256)
def expected_distinct_skewed(weights: tuple[float, ...], num_groups: int, num_topk: int) -> float:
    """As expected_distinct for experts drawn in proportion to `weights` without putting back, to about 1e-12.

    Source: such draws are the order of arrival of independent exponential clocks (rates = weights). A group is missed if k clocks of
    others ring before its own first, so its chance is the integral over t of W e^(-W t) P(at least k others have rung by t); the
    trapezoid rule over log t converges geometrically because the integrand is analytic and decays at both ends.
    """
    check_topk(len(weights), num_topk)
    check_groups(len(weights), num_groups)
    check_weights(weights)
    scale, size = math.fsum(weights), len(weights) // num_groups
    groups = [[w / scale for w in weights[i : i + size]] for i in range(0, len(weights), size)]
    if size * (num_groups - 1) < num_topk:
        return float(num_groups)
    sums = [math.fsum(group) for group in groups]
    # Below `first`, k clocks have rung with a chance under t^k, so what is left out stays under e^-36; above `last`, under e^-40.
    first, last, step = -36.0 / (num_topk + 1), math.log(40.0 / min(sums)), 0.125
    missed = 0.0
    for index in range(math.ceil((last - first) / step) + 1):
        t = math.exp(first + index * step)
        others = _rung_outside([_rung(group, t, num_topk) for group in groups], num_topk)
        missed += step * math.fsum(
            total * t * math.exp(-total * t) * max(0.0, 1.0 - math.fsum(rung))
            for total, rung in zip(sums, others, strict=True)
        )
    return num_groups - missed


def _rung(rates: list[float], t: float, limit: int) -> list[float]:
    """Chances that 0, 1, … limit - 1 of the clocks have rung by t."""
    chances = [1.0] + [0.0] * (limit - 1)
    for rate in rates:
        silent = math.exp(-rate * t)
        rings, before = 1.0 - silent, 0.0
        for count, chance in enumerate(chances):
            chances[count] = chance * silent + before * rings
            before = chance
    return chances


def _times(left: list[float], right: list[float], limit: int) -> list[float]:
    """Product of two polynomials up to degree limit - 1."""
    product = [0.0] * min(limit, len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right[: max(0, len(product) - i)]):
            product[i + j] += a * b
    return product


def _rung_outside(rung: list[list[float]], limit: int) -> list[list[float]]:
    """For each group, the chances that 0, 1, … of all other groups' clocks have rung."""
    after = [[1.0]]
    for chances in reversed(rung[1:]):
        after.append(_times(after[-1], chances, limit))
    before, found = [1.0], []
    for chances, rest in zip(rung, reversed(after), strict=True):
        found.append(_times(before, rest, limit))
        before = _times(before, chances, limit)
    return found


def zipf_gate(num_experts: int, exponent: float, *, shuffle_seed: int | None = None) -> SkewedGate:
    """Weights 1 / (i + 1)^exponent. Expert i is the i-th hottest (all hot ones on the first rank, the worst placement), or they are
    dealt in an order shuffled by the seed. Raises RefusalError gate_weights_invalid."""
    check_experts(num_experts)
    if not 0 <= exponent <= 8:
        raise RefusalError(
            "gate_weights_invalid",
            f"the Zipf exponent is {exponent}",
            "0 is balanced, past 8 one expert has all",
            "give 1",
        )
    weights = [(i + 1.0) ** -exponent for i in range(num_experts)]
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(weights)  # noqa: S311
    return SkewedGate(tuple(weights))


def hot_gate(num_experts: int, num_hot: int, factor: float) -> SkewedGate:
    """The first `num_hot` experts are `factor` times as likely as the others. Raises RefusalError gate_weights_invalid."""
    check_experts(num_experts)
    if not 0 <= num_hot <= num_experts:
        what = f"{num_hot} of {num_experts} experts are hot"
        raise RefusalError(
            "gate_weights_invalid", what, "there are no more hot experts than experts", f"give 0 to {num_experts}"
        )
    if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
        why = f"it multiplies a chance; past {MAX_FACTOR:g} times the other experts get nothing"
        raise RefusalError("gate_weights_invalid", f"the hot experts' factor is {factor}", why, "give --gate hot:4:2")
    return SkewedGate((float(factor),) * num_hot + (1.0,) * (num_experts - num_hot))
