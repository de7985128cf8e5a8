"""Closed forms of a balanced gate: expected sends per token, and the exact law of the number of groups that a token reaches."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb

from msgspec import Struct

from epctl.model.gate import check_experts, expected_distinct
from epctl.model.refusal import RefusalError


class PerToken(Struct, frozen=True):
    """Expected sends of one token, in multiples of what one send weighs."""

    rdma: Fraction
    spine: Fraction
    nvlink: Fraction


def sends(
    *, num_nodes: int, gpus_per_node: int, num_experts: int, num_topk: int, relay: bool, split: bool, near: Fraction
) -> PerToken:
    """Expected sends of one token to `num_nodes` expert nodes.

    `near`: of the expert nodes other than the sender's own, how many have their NIC of the sender's rail on the sender's leaf (p - 1 on
    rails of p nodes a leaf, 0 where no two nodes share a leaf), a mean where senders differ; ToR leaves of several nodes have no such
    form. `split`: the sender's node holds no experts. Raises RefusalError as `expected_distinct`. Source: linearity of expectation; a
    GPU (a node) is hit with the chance h (H) that not all k picks miss its experts.
    """
    gpus = num_nodes * gpus_per_node
    hit_gpu = expected_distinct(num_experts, gpus, num_topk) / gpus
    hit_node = expected_distinct(num_experts, num_nodes, num_topk) / num_nodes
    others = num_nodes if split else num_nodes - 1
    if relay:
        nvlink = num_nodes * (gpus_per_node - 1) * hit_gpu
        return PerToken(others * hit_node, (others - near) * hit_node, nvlink)
    nvlink = Fraction(0) if split else (gpus_per_node - 1) * hit_gpu
    return PerToken(others * gpus_per_node * hit_gpu, (others * gpus_per_node - near) * hit_gpu, nvlink)


def hit_law(num_experts: int, num_topk: int, block: int, num_named: int) -> tuple[Fraction, ...]:
    """Chances that a token reaches 0, 1, … `num_named` of as many named groups of `block` experts.

    Raises RefusalError experts_not_divisible where the groups hold more experts than there are. Source: inclusion and exclusion over
    the groups that are missed.
    """
    check_experts(num_experts)
    if num_named * block > num_experts:
        why = "groups have no expert in common"
        what = f"{num_named} groups of {block} experts are named among {num_experts}"
        raise RefusalError("experts_not_divisible", what, why, f"name at most {num_experts // block} groups")
    total = comb(num_experts, num_topk)
    inside = [comb(num_experts - (num_named - i) * block, num_topk) for i in range(num_named + 1)]
    return tuple(
        Fraction(comb(num_named, j) * sum((-1) ** (j - i) * comb(j, i) * inside[i] for i in range(j + 1)), total)
        for j in range(num_named + 1)
    )


def variance(num_experts: int, num_topk: int, block: int, num_named: int) -> Fraction:
    """Of the number of named groups that a token reaches."""
    total = comb(num_experts, num_topk)
    one = Fraction(comb(num_experts - block, num_topk), total)
    two = Fraction(comb(num_experts - 2 * block, num_topk), total) if num_named > 1 else Fraction(0)
    return num_named * one * (1 - one) + num_named * (num_named - 1) * (two - one * one)


def interval(law: Sequence[Fraction], num_tokens: int, share: float = 0.999) -> tuple[int, int]:
    """Smallest and largest sum of `num_tokens` independent draws that equal tails of (1 - share) / 2 leave in."""
    one, total = [float(chance) for chance in law], [1.0]
    for _ in range(num_tokens):
        grown = [0.0] * (len(total) + len(one) - 1)
        for i, chance in enumerate(total):
            if chance > 0.0:
                for j, step in enumerate(one):
                    grown[i + j] += chance * step
        total = grown
    tail, low, below = (1 - share) / 2, 0, total[0]
    while below < tail:
        low += 1
        below += total[low]
    high, above = len(total) - 1, total[-1]
    while above < tail:
        high -= 1
        above += total[high]
    return low, high
