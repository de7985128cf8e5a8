"""How evenly groups of experts are hit, for many step sizes of one trace: hits are counted once, steps only re-binned."""

from __future__ import annotations

import math
from array import array
from itertools import accumulate

from epctl.model.gate import check_groups
from epctl.model.refusal import positive
from epctl.model.sampling import Trace
from epctl.model.spread import RankLoad, quantile

MAX_CELLS = 4_000_000
"""Tokens x groups that are counted ahead: 16 MB. Larger traces are gone through anew for each step size."""

HitCounts = tuple["array[int]", ...]
"""By group, how many of the first n tokens reach it, for n from 0 to all of them."""


def hit_counts(trace: Trace, num_groups: int) -> HitCounts | None:
    """None past MAX_CELLS. Raises RefusalError experts_not_divisible."""
    check_groups(trace.num_experts, num_groups)
    tokens, topk, size = trace.num_tokens, trace.num_topk, trace.num_experts // num_groups
    if tokens * num_groups > MAX_CELLS:
        return None
    hit = [bytearray(tokens) for _ in range(num_groups)]
    for place, expert in enumerate(trace.experts):
        if expert >= 0:
            hit[expert // size][place // topk] = 1
    return tuple(array("I", accumulate(flags, initial=0)) for flags in hit)


def load_of_steps(counts: HitCounts, step_tokens: int) -> RankLoad:
    """The same as `spread_of_trace(...).load` for steps of that many tokens."""
    positive("the number of tokens a step", step_tokens)
    groups, tokens = len(counts), len(counts[0]) - 1
    whole = tokens - tokens % min(step_tokens, tokens)
    ends = [[*count[0:whole:step_tokens], count[whole]] for count in counts]
    hottest = []
    for begin, end in zip(list(zip(*ends, strict=True))[:-1], list(zip(*ends, strict=True))[1:], strict=True):
        step = [after - before for before, after in zip(begin, end, strict=True)]
        hottest.append(max(step) * groups / (sum(step) or 1))
    hottest.sort()
    totals = [end[-1] for end in ends]
    mean = sum(totals) / groups or 1.0
    loads = sorted(total / mean for total in totals)
    return RankLoad(
        p50=quantile(loads, 0.5),
        p99=quantile(loads, 0.99),
        max=loads[-1],
        step_tokens=step_tokens,
        step_max_mean=math.fsum(hottest) / len(hottest),
        step_max_p99=quantile(hottest, 0.99),
    )
