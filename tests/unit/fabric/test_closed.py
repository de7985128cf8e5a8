"""Closed forms against the table of golden values, against each other, and against brute force."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.fabric import closed
from epctl.fabric.ecmp import max_law
from epctl.model.refusal import RefusalError

GOLDEN = [
    (4, 8, 256, 8, 1.589612, 5.450100, 4.768837, 6.358450, 2.710661),
    (2, 8, 256, 8, 2.853935, 3.261640, 2.853935, 5.707870, 0.996510),
    (8, 8, 256, 8, 0.839535, 6.716281, 5.876746, 6.716281, 4.632821),
    (16, 8, 256, 8, 0.431495, 7.397059, 6.472426, 6.903922, 6.115575),
    (32, 8, 256, 8, 0.218750, 7.750000, 6.781250, 7.000000, 7.039712),
    (4, 4, 64, 6, 0.996761, 3.987044, 2.990283, 3.987044, 2.508972),
    (4, 8, 128, 8, 1.609862, 5.519528, 4.829587, 6.439449, 2.721758),
    (8, 4, 160, 6, 0.528010, 4.928091, 3.696068, 4.224078, 3.901275),
    (8, 8, 384, 9, 0.934213, 7.473702, 6.539489, 7.473702, 4.923842),
    (4, 1, 64, 4, 0, 2.081268, 0, 0, 2.081268),
    (1, 8, 256, 8, 4.632821, 0, 0, 4.632821, 0),
]
"""Nodes, GPUs a node, experts, top-k; NVLink, RDMA and spine (rail) direct; NVLink and RDMA by relay. Sends per token."""


def sends(
    nodes: int, gpus: int, experts: int, topk: int, near: int, *, relay: bool, split: bool = False
) -> closed.PerToken:
    return closed.sends(
        num_nodes=nodes,
        gpus_per_node=gpus,
        num_experts=experts,
        num_topk=topk,
        relay=relay,
        split=split,
        near=Fraction(near),
    )


def close(value: Fraction, golden: float) -> bool:
    return abs(float(value) - golden) < 5.1e-7


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: "x".join(map(str, row[:4])))
def test_sends_per_token_are_the_golden_ones(row: tuple[float, ...]) -> None:
    nodes, gpus, experts, topk = map(int, row[:4])
    nvlink, rdma, spine, nvlink_relay, rdma_relay = row[4:]
    direct = sends(nodes, gpus, experts, topk, nodes - 1, relay=False)
    relayed = sends(nodes, gpus, experts, topk, nodes - 1, relay=True)
    assert close(direct.nvlink, nvlink)
    assert close(direct.rdma, rdma)
    assert close(direct.spine, spine)
    assert close(relayed.nvlink, nvlink_relay)
    assert close(relayed.rdma, rdma_relay)
    assert relayed.spine == 0
    assert sends(nodes, gpus, experts, topk, 0, relay=False).spine == direct.rdma
    assert sends(nodes, gpus, experts, topk, 0, relay=True).spine == relayed.rdma


@pytest.mark.parametrize(
    ("span", "direct", "relayed"), [(2, 6.596348, 3.970989), (4, 6.356481, 2.647326), (8, 5.876746, 0)]
)
def test_rails_of_several_leaves_cross_more_spines(span: int, direct: float, relayed: float) -> None:
    assert close(sends(8, 8, 256, 8, span - 1, relay=False).spine, direct)
    assert close(sends(8, 8, 256, 8, span - 1, relay=True).spine, relayed)


@pytest.mark.parametrize(
    ("nodes", "rdma", "spine", "relayed"),
    [(1, 5.294652, 4.632821, 1), (2, 6.523280, 5.707870, 1.993020), (4, 7.266800, 6.358450, 3.614214)],
)
def test_attention_and_experts_apart(nodes: int, rdma: float, spine: float, relayed: float) -> None:
    direct = sends(nodes, 8, 256, 8, nodes, relay=False, split=True)
    assert close(direct.rdma, rdma)
    assert close(direct.spine, spine)
    assert direct.nvlink == 0
    by_relay = sends(nodes, 8, 256, 8, nodes, relay=True, split=True)
    assert close(by_relay.rdma, relayed)
    assert by_relay.spine == 0
    assert close(by_relay.nvlink, spine)


@pytest.mark.parametrize(
    ("name", "block", "named", "mean", "low", "high"),
    [
        ("decode dispatch direct, RDMA", 16, 8, 104.4, 84, 125),
        ("decode dispatch direct, spine on rails", 16, 7, 91.3, 71, 111),
        ("decode dispatch relay, RDMA", 128, 1, 31.89, 30, 32),
        ("A to F direct, spine on rails", 32, 7, 148.3, 131, 165),
    ],
)
def test_intervals_of_32_tokens(name: str, block: int, named: int, mean: float, low: int, high: int) -> None:
    law = closed.hit_law(256, 8, block, named)
    assert abs(32 * float(sum(j * chance for j, chance in enumerate(law))) - mean) < 0.05
    assert closed.interval(law, 32) == (low, high)


def test_all_32_tokens_reach_the_other_node_with_the_published_chance() -> None:
    assert abs(float(closed.hit_law(256, 8, 128, 1)[1]) ** 32 - 0.894) < 0.0005


@given(groups=st.integers(2, 4), block=st.integers(1, 3), topk=st.integers(1, 4), named=st.integers(1, 4))
def test_the_law_of_hits_is_that_of_all_choices(groups: int, block: int, topk: int, named: int) -> None:
    experts, named = groups * block, min(named, groups)
    if topk > experts:
        return
    counts = [0] * (named + 1)
    for picks in combinations(range(experts), topk):
        counts[len({pick // block for pick in picks if pick // block < named})] += 1
    law = closed.hit_law(experts, topk, block, named)
    assert law == tuple(Fraction(count, sum(counts)) for count in counts)
    mean = sum(j * chance for j, chance in enumerate(law))
    assert closed.variance(experts, topk, block, named) == sum((j - mean) ** 2 * chance for j, chance in enumerate(law))


def test_more_named_groups_than_experts_are_refused() -> None:
    with pytest.raises(RefusalError) as refused:
        closed.hit_law(16, 2, 8, 3)
    assert refused.value.code == "experts_not_divisible"


@pytest.mark.parametrize(
    ("flows", "links", "mean", "first", "law"),
    [
        (4, 4, 2.125, 1, (0.09375, 0.703125, 0.1875, 0.015625)),
        (8, 4, 3.538, 2, (0.0385, 0.5127, 0.3397, 0.0923, 0.0154, 0.0015, 0.0001)),
        (8, 8, 2.597, 1, (0.0024, 0.4984, 0.4094, 0.0800, 0.0092, 0.0007)),
        (16, 8, 4.201, 2, (0.0003, 0.2080, 0.4796, 0.2326, 0.0640, 0.0131, 0.0021)),
        (32, 8, 7.048, 5, (0.0538, 0.3049, 0.3400, 0.1898, 0.0765, 0.0254, 0.0073, 0.0018)),
    ],
)
def test_the_law_of_the_fullest_link_is_the_golden_one(
    flows: int, links: int, mean: float, first: int, law: tuple[float, ...]
) -> None:
    found = max_law(flows, links)
    assert sum(found) == 1
    assert abs(float(sum(j * chance for j, chance in enumerate(found))) - mean) < 0.0006
    for j, chance in enumerate(law, first):
        assert abs(float(found[j]) - chance) < 5.1e-5


@given(flows=st.integers(0, 5), links=st.integers(1, 3))
def test_the_law_of_the_fullest_link_is_that_of_all_placements(flows: int, links: int) -> None:
    counts = [0] * (flows + 1)
    for placed in product(range(links), repeat=flows):
        counts[max((placed.count(link) for link in range(links)), default=0)] += 1
    assert max_law(flows, links) == tuple(Fraction(count, links**flows) for count in counts)
