"""The hash, and the fast ways of going through its seeds."""

from __future__ import annotations

import random
from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.fabric import ecmp
from epctl.fabric.counting import arranged
from epctl.fabric.engine import Loaded
from epctl.fabric.flows import Flows, Pairing, fixed, flows_of, link_loads
from epctl.fabric.law import LawRedraw, binomial, split
from epctl.fabric.redraw import Redraw, can_redraw
from epctl.fabric.routing import Sends
from epctl.fabric.topology import Fabric, Shape, build


def test_the_crc_is_that_of_the_five_tuple_on_the_wire() -> None:
    wire = bytes([10, 0, 0, 3, 10, 0, 1, 0, 17]) + (0xC123).to_bytes(2, "big") + (4791).to_bytes(2, "big")
    assert ecmp.flow_crc(3, 256, 0xC123) == crc32(wire)
    assert ecmp.salted(ecmp.flow_crc(3, 256, 0xC123), 7) == crc32(wire + (7).to_bytes(4, "big"))


def test_source_ports_are_those_of_a_qp_pair() -> None:
    # QP 64 + 5 at GPU 2, QP 64 + 2 at GPU 5: 69 x 66 = 4554, below 2**14, so nothing folds.
    assert ecmp.source_port(2, 5, 0, 1, ecmp.NUM_PORTS) == 0xC000 + 4554
    product = (64 + 4000 * 8 + 3) * (64 + 3000 * 8 + 3)
    product ^= product >> 20
    label = (product ^ product >> 40) & 0xFFFFF
    assert ecmp.source_port(3000, 4000, 3, 8, ecmp.NUM_PORTS) == 0xC000 + ((label & 0x3FFF) ^ label >> 14)


def test_one_port_puts_all_qps_of_a_pair_on_one_path() -> None:
    fabric = build(Shape(nodes=16, spines=16))
    sends = Sends({(0, 9): 64}, {}, 1)
    assert len(set(flows_of(fabric, sends, Pairing(8, 1)).crc)) == 1
    assert len(set(flows_of(fabric, sends, Pairing(8)).crc)) == 8
    up, _ = link_loads(fabric, flows_of(fabric, sends, Pairing(8, 1)), ecmp.Tables(1))
    assert sorted(up)[-2:] == [0, 64]


@given(total=st.integers(1, 200), qps=st.integers(1, 16))
def test_queue_pairs_share_a_pairs_units_evenly(total: int, qps: int) -> None:
    units = flows_of(build(Shape()), Sends({(0, 9): total}, {}, 1), Pairing(qps)).units
    assert sum(units) == total
    assert len(units) == min(qps, total)
    assert max(units) - min(units) <= 1


@pytest.mark.parametrize("choices", [2, 3, 4, 7, 12, 85, 100, 300])
def test_every_choice_is_as_likely_over_seeds(choices: int) -> None:
    seeds = min(200 * choices, 3000)
    found = Counter(ecmp.Tables(seed).choice(ecmp.LEAF, choices, 0x123456) for seed in range(seeds))
    mean = seeds / choices
    chi2 = sum((found[i] - mean) ** 2 / mean for i in range(choices))
    assert chi2 < choices - 1 + 4.5 * (2 * (choices - 1)) ** 0.5 + 8


def crossing(fabric: Fabric, num_flows: int) -> Flows:
    """Flows of one unit from leaf 0 to all others, as the ToR wiring has them."""
    gpus = fabric.gpus_per_node
    pairs = [(source, target) for target in range(gpus, fabric.num_gpus) for source in range(gpus)]
    return flows_of(fabric, Sends(dict.fromkeys(pairs[:num_flows], 1), {}, 1), Pairing())


@pytest.mark.parametrize(("num_flows", "links"), [(4, 4), (8, 4), (8, 8), (16, 8), (32, 8)])
@pytest.mark.slow
def test_the_fullest_uplink_over_seeds_follows_the_law(num_flows: int, links: int) -> None:
    fabric = build(Shape(nodes=8, gpus_per_node=links, spines=links, wiring="tor"))
    flows, seeds = crossing(fabric, num_flows), 3000
    found = Counter(max(link_loads(fabric, flows, ecmp.Tables(seed))[0]) for seed in range(seeds))
    law = [float(chance) for chance in ecmp.max_law(num_flows, links)]
    for most, chance in enumerate(law):
        error = (chance * (1 - chance) / seeds) ** 0.5
        assert abs(found[most] / seeds - chance) <= 4.5 * error + 2 / seeds
    mean = sum(most * count for most, count in found.items()) / seeds
    expected = sum(most * chance for most, chance in enumerate(law))
    spread = sum((most - expected) ** 2 * chance for most, chance in enumerate(law))
    assert abs(mean - expected) < 4 * (spread / seeds) ** 0.5


SHAPES = [
    Shape(),
    Shape(wiring="tor"),
    Shape(wiring="tor", planes=2),
    Shape(nodes=6, gpus_per_node=3, spines=3, nodes_per_leaf=3),
    Shape(nodes=4, gpus_per_node=12, spines=2, wiring="tor", oversubscription="2"),
    Shape(nodes=80, gpus_per_node=2, spines=1),
    Shape(nodes=20, gpus_per_node=2, spines=10, planes=3),
    Shape(nodes=3, gpus_per_node=70, spines=1, wiring="tor"),
]


def some_sends(fabric: Fabric, seed: int, count: int, most: int) -> Sends:
    rng = random.Random(seed)  # noqa: S311
    pairs = {}
    for _ in range(count):
        source, target = rng.randrange(fabric.num_gpus), rng.randrange(fabric.num_gpus)
        if source // fabric.gpus_per_node != target // fabric.gpus_per_node:
            pairs[source, target] = rng.randint(1, most)
    return Sends(pairs, {}, 1)


@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 1 << 40),
    count=st.integers(0, 400),
    most=st.sampled_from([1, 3, 1000]),
)
@settings(max_examples=60, deadline=None)
def test_columns_give_what_the_hash_of_each_flow_gives(shape: Shape, seed: int, count: int, most: int) -> None:
    fabric = build(shape)
    flows = flows_of(fabric, some_sends(fabric, seed, count, most), Pairing())
    assert can_redraw(fabric)
    redraw = Redraw(fabric, flows)
    for hash_seed in (seed, seed + 1):
        tables = ecmp.Tables(hash_seed)
        assert redraw.loads(tables) == link_loads(fabric, flows, tables)


def test_more_uplinks_than_a_byte_adds_up_are_hashed_one_by_one() -> None:
    fabric = build(Shape(nodes=128, gpus_per_node=2, spines=64))
    assert not can_redraw(fabric)
    flows = flows_of(fabric, some_sends(fabric, 1, 3000, 1), Pairing())
    up, down = link_loads(fabric, flows, ecmp.Tables(3))
    assert sum(up) == sum(down) == sum(1 for _ in flows.crossing())
    # Both digits are in use.
    assert len({link % 2 for link, units in enumerate(up) if units}) == 2
    assert len({link // 2 % 64 for link, units in enumerate(up) if units}) == 64


@given(number=st.integers(0, 5000), total=st.integers(1, 90), seed=st.integers(0, 999))
def test_a_split_loses_nothing(number: int, total: int, seed: int) -> None:
    parts = split(number, total, random.Random(seed).getrandbits)  # noqa: S311
    assert (len(parts), sum(parts)) == (total, number)
    assert min(parts) >= 0


@pytest.mark.parametrize(("number", "ones", "total"), [(40, 1, 2), (40, 1, 3), (30, 5, 7), (1, 3, 4), (200, 1, 85)])
def test_binomials_have_their_mean_and_variance(number: int, ones: int, total: int) -> None:
    bits = random.Random(5).getrandbits  # noqa: S311
    draws = [binomial(number, ones, total, bits) for _ in range(4000)]
    chance = ones / total
    mean, variance = number * chance, number * chance * (1 - chance)
    found = sum(draws) / len(draws)
    assert abs(found - mean) < 4 * (variance / len(draws)) ** 0.5
    spread = sum((draw - found) ** 2 for draw in draws) / (len(draws) - 1)
    assert abs(spread / variance - 1) < 0.15


def test_certain_and_impossible_events() -> None:
    bits = random.Random(5).getrandbits  # noqa: S311
    assert binomial(100, 0, 7, bits) == 0
    assert split(100, 1, bits) == [100]
    assert split(0, 5, bits) == [0] * 5


@pytest.mark.slow
def test_loads_from_the_law_are_distributed_as_those_of_the_hash() -> None:
    fabric = build(Shape(nodes=16, spines=4))
    flows = flows_of(fabric, some_sends(fabric, 2, 3000, 3), Pairing())
    law, redraw, seeds = LawRedraw(fabric, flows), Redraw(fabric, flows), 600
    drawn = [max(map(max, law.loads(seed))) for seed in range(seeds)]
    hashed = [max(map(max, redraw.loads(ecmp.Tables(seed)))) for seed in range(seeds)]
    means = [sum(values) / seeds for values in (drawn, hashed)]
    error = sum(
        sum((v - mean) ** 2 for v in values) / (seeds - 1) / seeds
        for values, mean in zip((drawn, hashed), means, strict=True)
    )
    assert abs(means[0] - means[1]) < 4 * error**0.5
    for share in (0.1, 0.5, 0.9):
        cut = sorted(hashed)[int(share * seeds)]
        below = sum(value <= cut for value in drawn) / seeds
        reference = sum(value <= cut for value in hashed) / seeds
        assert abs(below - reference) < 0.09
    up, down = law.loads(9)
    assert sum(up) == sum(down) == sum(units for *_, units in flows.crossing())


def test_big_sets_of_flows_between_few_leaves_are_drawn_from_the_law() -> None:
    fabric = build(Shape(nodes=64, spines=8))
    pairs = dict.fromkeys(
        ((s, t) for s in range(fabric.num_gpus) for t in range(fabric.num_gpus) if s // 8 != t // 8), 1
    )
    sends = Sends(pairs, {}, 1)
    flows = flows_of(fabric, sends, Pairing())
    total = fixed(fabric, sends, flows)
    assert Loaded(fabric, 1, total, flows, 100).way == "law"
    assert Loaded(fabric, 1, total, flows, 1).way == "hash"
    few = flows_of(fabric, Sends({(0, 9): 1}, {}, 1), Pairing())
    assert Loaded(fabric, 1, total, few, 100).way == "hash"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 70)), max_size=60))
def test_arranged_flows_keep_their_units_and_pad_at_most_as_much(flows: list[tuple[int, int]]) -> None:
    matrices, order = arranged(((leaf, units, i) for i, (leaf, units) in enumerate(flows)), range(0, 70, 10))
    units = Counter[int]()
    for matrix in matrices:
        for number in order[matrix.begin : matrix.end]:
            if number >= 0:
                units[number] += matrix.weight
    assert units == Counter({i: flow[1] for i, flow in enumerate(flows)})
    blocks = 8 * sum(len(matrix.firsts) for matrix in matrices)
    assert len(order) <= 2 * sum(number >= 0 for number in order) + blocks


@given(st.integers(1, 85), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 255)), max_size=300))
def test_links_are_counted_for_every_number_of_links(num_links: int, flows: list[tuple[int, int, int]]) -> None:
    firsts = range(0, 6 * num_links, num_links)
    matrices, order = arranged(((leaf, units, i) for i, (leaf, units, _) in enumerate(flows)), firsts)
    chosen = bytes([flows[number][2] if number >= 0 else 255 for number in order])
    loads = [0] * (6 * num_links)
    for matrix in matrices:
        matrix.add(chosen, num_links, loads)
    expected = [0] * (6 * num_links)
    for leaf, units, choice in flows:
        expected[leaf * num_links + choice % num_links] += units
    assert loads == expected
