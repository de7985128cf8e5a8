"""Traces of picked experts, drawn from a gate (seeded) or given, and the spread that they show over tokens and ranks.

Pure Python on purpose: the same seed gives the same numbers on every machine.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from msgspec import Struct

from epctl.model import gate as gates
from epctl.model.gate import Gate, GroupLimitedGate, SkewedGate
from epctl.model.refusal import RefusalError, positive

DEFAULT_TOKENS = 20_000
"""Standard error of about 0.1 % of the mean, in half a second."""
_ALMOST_ONE = 1.0 - 2.0**-53


class Trace(Struct, frozen=True, eq=False):
    """The experts that tokens picked: k a token, -1 where nothing was picked."""

    num_experts: int
    num_topk: int
    experts: Sequence[int]
    """Tokens one after another, num_topk each."""
    padding: int = 0
    """Rows without any pick that were left out."""

    @property
    def num_tokens(self) -> int:
        return len(self.experts) // self.num_topk


def trace_from_rows(rows: Iterable[Iterable[int]], num_experts: int) -> Trace:
    """A trace from rows of top-k indices (lists, or an array that iterates over rows); -1 means nothing picked.
    Rows of -1 alone are padding of a batch, not tokens: they are left out and counted.

    Raises RefusalError trace_invalid where rows differ in length, are empty, hold an expert twice, or one outside [-1, num_experts).
    """
    gates.check_experts(num_experts)
    experts = array("i")
    num_topk = padding = 0
    for row_idx, row in enumerate(rows):
        picks = [int(expert) for expert in row]
        num_topk = num_topk or len(picks)
        fault = _row_fault(picks, num_topk, num_experts)
        if fault:
            todo = f"give rows of top-k expert indices from 0 to {num_experts - 1}, or -1 where nothing is picked"
            raise RefusalError(
                "trace_invalid", f"row {row_idx} of the gate trace {fault}", "a token picks k distinct experts", todo
            )
        if max(picks) < 0:
            padding += 1
        else:
            experts.extend(picks)
    if not experts:
        what = f"all {padding} rows of the gate trace are padding" if padding else "the gate trace has no row"
        raise RefusalError("trace_invalid", what, "there is nothing to average over", "give at least one token")
    return Trace(num_experts, num_topk, experts, padding)


def _row_fault(picks: list[int], num_topk: int, num_experts: int) -> str:
    """'' or what is wrong with a row."""
    if len(picks) != num_topk or not picks:
        return f"has {len(picks)} entries, not {num_topk}" if num_topk else "is empty"
    outside = [expert for expert in picks if not -1 <= expert < num_experts]
    if outside:
        return f"names expert {outside[0]}, but there are {num_experts}"
    chosen = [expert for expert in picks if expert >= 0]
    return "names an expert twice" if len(set(chosen)) < len(chosen) else ""


@lru_cache(maxsize=8)
def sample_trace(gate: Gate, num_experts: int, num_topk: int, num_tokens: int = DEFAULT_TOKENS, seed: int = 0) -> Trace:
    """Tokens drawn independently from a gate. Raises RefusalError for a gate that cannot pick k of E experts."""
    gates.check_topk(num_experts, num_topk)
    positive("the number of tokens", num_tokens)
    rng = random.Random(seed)  # noqa: S311
    if isinstance(gate, GroupLimitedGate):
        rows = _group_limited_rows(gate, num_experts, num_topk, rng)
    elif isinstance(gate, SkewedGate):
        rows = _skewed_rows(gate, num_experts, num_topk, rng)
    else:
        rows = _balanced_rows(num_experts, num_topk, rng)
    experts = array("i")
    for _ in range(num_tokens):
        experts.extend(next(rows))
    return Trace(num_experts, num_topk, experts)


def _balanced_rows(num_experts: int, num_topk: int, rng: random.Random) -> Iterator[Iterable[int]]:
    if num_topk * 4 > num_experts:
        while True:
            yield rng.sample(range(num_experts), num_topk)
    draw = rng.random
    while True:
        row: set[int] = set()
        while len(row) < num_topk:
            row.add(int(draw() * num_experts))
        yield row


def _skewed_rows(gate: SkewedGate, num_experts: int, num_topk: int, rng: random.Random) -> Iterator[Iterable[int]]:
    """One expert after another in proportion to the weights; a pick that was there already is drawn again, which leaves the law as it
    is. Where few experts have almost all weight that would take long: there, the k first of E exponential clocks (the same law)."""
    if len(gate.weights) != num_experts:
        what = f"the gate has {len(gate.weights)} weights for {num_experts} experts"
        raise RefusalError("gate_weights_invalid", what, "there is one weight an expert", f"give {num_experts} weights")
    gates.check_weights(gate.weights)
    draw = rng.random
    if sum(sorted(gate.weights)[-num_topk:]) > 0.9 * sum(gate.weights):
        while True:
            clocks = sorted((-math.log(1.0 - draw()) / weight, expert) for expert, weight in enumerate(gate.weights))
            yield [expert for _, expert in clocks[:num_topk]]
    ends = list(accumulate(gate.weights))
    total, last = ends[-1], num_experts - 1
    while True:
        row: set[int] = set()
        while len(row) < num_topk:
            row.add(bisect(ends, draw() * total, 0, last))
        yield row


def _group_limited_rows(
    gate: GroupLimitedGate, num_experts: int, num_topk: int, rng: random.Random
) -> Iterator[Iterable[int]]:
    """Draws only the scores that matter: the best two of each group as order statistics of uniforms, then further ones of kept
    groups as they are reached. Which expert of a group has its n-th best score is uniform."""
    gates.check_limits(num_experts, num_topk, gate.num_groups, gate.num_kept)
    size = num_experts // gate.num_groups
    draw, value = rng.random, _quantile(gate.score_law)
    best = 1.0 / size
    second = 1.0 / (size - 1) if size > 1 else 0.0
    while True:
        tops = []
        for group in range(gate.num_groups):
            u = min((1.0 - draw()) ** best, _ALMOST_ONE)
            v = u * (1.0 - draw()) ** second if size > 1 else 0.0
            tops.append((value(u) + value(v) if size > 1 else value(u), u, v, group))
        tops.sort(reverse=True)
        yield _merge([(u, v, group) for _, u, v, group in tops[: gate.num_kept]], size, num_topk, rng)


def _merge(kept: list[tuple[float, float, int]], size: int, num_topk: int, rng: random.Random) -> list[int]:
    """The k best experts of the kept groups, given each one's best two scores as uniforms."""
    heads = [[u, v, float(size - 1), group * size] for u, v, group in kept]
    used: set[int] = set()
    while len(used) < num_topk:
        head = max(heads)
        expert = int(head[3]) + int(rng.random() * size)
        while expert in used:
            expert = int(head[3]) + int(rng.random() * size)
        used.add(expert)
        head[2] -= 1.0
        left = head[2]
        head[0] = head[1] if left >= 0 else -1.0
        head[1] = head[1] * (1.0 - rng.random()) ** (1.0 / left) if left >= 1 else -1.0
    return list(used)


def _quantile(law: str) -> Callable[[float], float]:
    """The score of the law below which a share u of all scores lies."""
    if law == "uniform":
        return float
    if law == "exponential":
        return lambda u: -math.log1p(-u)
    from statistics import NormalDist

    normal = NormalDist().inv_cdf
    return lambda u: 1.0 / (1.0 + math.exp(-normal(u)))
