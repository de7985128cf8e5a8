"""What holds for every shape, layout, transfer and seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epctl.fabric import detail, ecmp, fairshare
from epctl.fabric.flows import Flows, Pairing, fixed, flows_of, link_loads
from epctl.fabric.request import Request, Settled, changed, settle
from epctl.fabric.routing import Sends
from epctl.fabric.streams import Stream, draw, streams
from epctl.model.refusal import RefusalError

SHAPES = st.fixed_dictionaries(
    {
        "nodes": st.sampled_from([1, 2, 4, 8]),
        "gpus_per_node": st.sampled_from([1, 2, 4]),
        "spines": st.sampled_from([1, 2, 4]),
        "layout": st.sampled_from(["unified", "pd", "af", "pd+af"]),
        "transfer": st.sampled_from(["default", "direct", "relay"]),
        "batch": st.integers(1, 24),
        "lengths": st.sampled_from(["1", "3", "5+-80%"]),
        "topk": st.integers(1, 6),
        "seed": st.integers(0, 1000),
        "qps": st.integers(1, 3),
        "planes": st.integers(1, 2),
    }
)


def settled(values: dict[str, Any], **more: Any) -> Settled:  # noqa: ANN401 - any field's
    try:
        return settle(changed(Request(experts=64), **{**values, **more}))
    except RefusalError:
        assume(condition=False)
        raise


def sent(found: Settled) -> list[tuple[Stream, Sends]]:
    every, _ = streams(found)
    rows = []
    for phase in dict.fromkeys(stream.phase for stream in every):
        mine = [stream for stream in every if stream.phase == phase]
        rows += list(zip(mine, draw(found, mine, found.request.seed, None), strict=True))
    return rows


def flows(found: Settled, sends: Sends) -> Flows:
    return flows_of(found.fabric, sends, found.pairing)


@given(values=SHAPES, wiring=st.sampled_from(["rail", "tor"]))
@settings(max_examples=80, deadline=None)
def test_1_what_goes_in_comes_out(values: dict[str, Any], wiring: str) -> None:
    found = settled(values, wiring=wiring)
    for _, sends in sent(found):
        mine = flows(found, sends)
        total = fixed(found.fabric, sends, mine)
        up, down = link_loads(found.fabric, mine, ecmp.Tables(values["seed"]))
        assert sum(total.nic_out) == sum(total.nic_in) == total.rdma == sum(sends.rdma.values())
        assert sum(up) == sum(down) == total.spine <= total.rdma


@given(values=SHAPES)
@settings(max_examples=80, deadline=None)
def test_2_tor_needs_spines_for_all_and_relay_on_rails_for_none(values: dict[str, Any]) -> None:
    tor, rail = settled(values, wiring="tor"), settled(values, wiring="rail")
    for _, sends in sent(tor):
        total = fixed(tor.fabric, sends, flows(tor, sends))
        assert total.spine == total.rdma
        assert total.hops == (3 if total.rdma else 0)
    for stream, sends in sent(rail):
        if stream.mode == "relay" or stream.traffic == "kv":
            total = fixed(rail.fabric, sends, flows(rail, sends))
            assert total.spine == 0
            assert total.hops == (1 if total.rdma else 0)


@given(values=SHAPES)
@settings(max_examples=60, deadline=None)
def test_3_rdma_and_nvlink_depend_on_neither_wiring_nor_hash(values: dict[str, Any]) -> None:
    rail, tor = settled(values, wiring="rail"), settled(values, wiring="tor")
    for (_, a), (_, b) in zip(sent(rail), sent(tor), strict=True):
        assert (a.rdma, a.nvlink) == (b.rdma, b.nvlink)
        totals = [fixed(found.fabric, a, flows(found, a)) for found in (rail, tor)]
        assert totals[0].rdma == totals[1].rdma
        assert totals[0].nvlink == totals[1].nvlink


@given(values=SHAPES, wiring=st.sampled_from(["rail", "tor"]))
@settings(max_examples=60, deadline=None)
def test_4_the_way_back_is_twice_the_way_there_with_all_arrows_turned(values: dict[str, Any], wiring: str) -> None:
    found = settled(values, wiring=wiring)
    by_kind = {(stream.phase, stream.traffic): sends for stream, sends in sent(found)}
    for there, back in (("dispatch", "combine"), ("a2f", "f2a")):
        for phase in ("prefill", "decode"):
            if (phase, there) not in by_kind:
                continue
            a, b = by_kind[phase, there], by_kind[phase, back]
            assert b.unit_bytes == 2 * a.unit_bytes
            assert {(t, s): units for (s, t), units in a.rdma.items()} == b.rdma
            assert {(t, s): units for (s, t), units in a.nvlink.items()} == b.nvlink
            if found.fabric.num_planes == 1:  # which plane a flow takes is a matter of its hash
                x, y = (fixed(found.fabric, sends, flows(found, sends)) for sends in (a, b))
                assert (x.nic_out, x.nic_in, x.spine) == (y.nic_in, y.nic_out, y.spine)


@given(values=SHAPES)
@settings(max_examples=60, deadline=None)
def test_5_relay_sends_no_more_than_direct_and_one_a_remote_node(values: dict[str, Any]) -> None:
    direct, relay = settled(values, transfer="direct"), settled(values, transfer="relay")
    for (stream, a), (_, b) in zip(sent(direct), sent(relay), strict=True):
        if stream.traffic == "kv":
            continue
        side = direct.roles.prefill if stream.phase == "prefill" else direct.roles.decode
        remote = len(side.experts) - (not side.split)
        tokens = sum(direct.lengths.of(direct.batch, values["seed"])) if stream.phase == "prefill" else direct.batch
        assert sum(b.rdma.values()) <= sum(a.rdma.values())
        assert sum(b.rdma.values()) <= tokens * min(remote, direct.topk)


@given(values=SHAPES)
@settings(max_examples=60, deadline=None)
def test_6_no_nvlink_between_attention_and_experts_and_no_rdma_in_one_node(values: dict[str, Any]) -> None:
    found = settled(values)
    for stream, sends in sent(found):
        if stream.traffic in ("a2f", "f2a") and stream.mode == "direct":
            assert not sends.nvlink
        if found.fabric.num_nodes == 1:
            assert not sends.rdma


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    seeds=st.lists(st.integers(0, 1 << 60), min_size=2, max_size=4),
    layout=st.sampled_from(["pd", "pd+af"]),
)
@settings(max_examples=60, deadline=None)
def test_7_kv_on_rails_does_not_know_the_hash_and_tor_is_never_better(
    lengths: list[int], seeds: list[int], layout: str
) -> None:
    values = {"layout": layout, "lengths": ",".join(map(str, lengths)), "batch": len(lengths), "traffic": ("kv",)}
    largest = {}
    for wiring in ("rail", "tor"):
        found = settled(values, wiring=wiring, experts=256)
        ((_, sends),) = sent(found)
        mine = flows(found, sends)
        total = fixed(found.fabric, sends, mine)
        loads = [link_loads(found.fabric, mine, ecmp.Tables(seed)) for seed in seeds]
        largest[wiring] = [max(total.largest_nic, *up, *down) for up, down in loads]
    assert len(set(largest["rail"])) == 1
    assert min(largest["tor"]) >= largest["rail"][0]


@given(values=SHAPES, wiring=st.sampled_from(["rail", "tor"]))
@settings(max_examples=40, deadline=None)
def test_loads_of_links_are_the_sums_of_the_flows_on_them(values: dict[str, Any], wiring: str) -> None:
    found = settled(values, wiring=wiring)
    tables = ecmp.Tables(values["seed"])
    for _, sends in sent(found):
        mine = flows(found, sends)
        loads = detail.loads(found.fabric, sends, mine, link_loads(found.fabric, mine, tables))
        up, down = Counter[int](), Counter[int]()
        for flow in detail.flow_rows(found.fabric, sends, mine, tables, found.pairing):
            half = len(flow.path) // 2
            up.update(dict.fromkeys(flow.path[:half], flow.bytes))
            down.update(dict.fromkeys(flow.path[half:], flow.bytes))
        assert {load.link: (load.up_bytes, load.down_bytes) for load in loads} == {
            link: (up[link], down[link]) for link in {*up, *down}
        }


PATHS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), min_size=1, max_size=20)


@given(PATHS)
def test_fair_rates_fill_a_link_of_every_flow_and_overfill_none(paths: list[list[int]]) -> None:
    rates = fairshare.rates(paths, 8)
    used = [sum(rate for rate, path in zip(rates, paths, strict=True) if link in path) for link in range(8)]
    assert all(load <= 1 + 1e-9 for load in used)
    for rate, path in zip(rates, paths, strict=True):
        # Max-min: on some full link of its path, no flow is faster.
        assert any(
            used[link] > 1 - 1e-9
            and rate >= max(r for r, other in zip(rates, paths, strict=True) if link in other) - 1e-9
            for link in path
        )


def test_fair_rates_of_a_textbook_case() -> None:
    # Three flows on link 0, one of which also shares link 1 with a fourth.
    assert fairshare.rates([[0], [0], [0, 1], [1]], 2) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert fairshare.slowdowns([(0, 2, 4), (1, 2, 5)], [(0, 4), (1, 5)], 6) == [2.0, 2.0]


def test_queue_pairs_take_every_plane() -> None:
    found = settled({"planes": 2, "batch": 32, "qps": 4})
    mine = flows(found, sent(found)[0][1])
    assert set(mine.plane) == {0, 1}
    assert {found.fabric.leaf_of[1][s] for s, p in zip(mine.source, mine.plane, strict=True) if p} == set(
        mine.leaf_from
    ) - set(range(8))
    assert Pairing().checked() == Pairing()
