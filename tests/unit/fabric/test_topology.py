"""Fabrics by numbers and link by link, whole and broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.fabric.lost import without
from epctl.fabric.topology import Fabric, Shape, build, from_graph
from epctl.model.refusal import RefusalError


def test_rail_and_tor_are_the_same_equipment_cabled_differently() -> None:
    rail, tor = build(Shape()), build(Shape(wiring="tor"))
    assert (rail.num_gpus, len(rail.spine_names), len(rail.leaf_names), len(tor.leaf_names)) == (32, 4, 8, 4)
    assert rail.num_uplinks == tor.num_uplinks == 32
    assert (rail.regular, tor.regular) == ((4, 1), (4, 2))
    for fabric in (rail, tor):
        ports = [sum(spine == s for group in fabric.uplinks for s, _ in group) for spine in range(4)]
        assert ports == [8, 8, 8, 8]


def test_nics_plug_into_the_leaf_of_their_rail_or_node() -> None:
    rail, tor = build(Shape()).leaf_of[0], build(Shape(wiring="tor")).leaf_of[0]
    split = build(Shape(nodes=8, nodes_per_leaf=4)).leaf_of[0]
    for gpu in range(32):
        assert (rail[gpu], tor[gpu]) == (gpu % 8, gpu // 8)
    for gpu in range(64):
        assert split[gpu] == gpu // 8 // 4 * 8 + gpu % 8


@given(
    nodes=st.integers(1, 12), gpus=st.integers(1, 9), spines=st.integers(1, 6), wiring=st.sampled_from(["rail", "tor"])
)
def test_a_shape_is_built_whole_or_refused_with_one_that_would_do(
    nodes: int, gpus: int, spines: int, wiring: str
) -> None:
    shape = Shape(nodes=nodes, gpus_per_node=gpus, spines=spines, wiring=wiring)
    ports = nodes if wiring == "rail" else gpus
    if ports % spines:
        with pytest.raises(RefusalError, match="lanes") as refused:
            build(shape)
        assert refused.value.code == "lanes_not_whole"
        told = int(refused.value.todo.rpartition(" ")[2])
        assert ports % told == 0
        return
    fabric = build(shape)
    assert fabric.num_uplinks == nodes * gpus
    assert {len(group) for group in fabric.uplinks} == {ports}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"spines": 3}, "lanes_not_whole"),
        ({"spines": 8}, "lanes_not_whole"),
        ({"oversubscription": "3"}, "lanes_not_whole"),
        ({"oversubscription": "0.5"}, "topology_invalid"),
        ({"oversubscription": "1:0"}, "topology_invalid"),
        ({"oversubscription": "two"}, "topology_invalid"),
        ({"spines": 0}, "topology_invalid"),
        ({"nodes": 0}, "topology_invalid"),
        ({"gpus_per_node": 0}, "topology_invalid"),
        ({"nodes": 1 << 20}, "absurd_argument"),
        ({"planes": 9}, "absurd_argument"),
        ({"nodes_per_leaf": 3}, "topology_invalid"),
        ({"nodes_per_leaf": 0}, "topology_invalid"),
        ({"wiring": "torus"}, "topology_invalid"),
        ({"lost": ("leaf9",)}, "topology_invalid"),
        ({"lost": ("leaf0-spine0.1",)}, "topology_invalid"),
        ({"lost": ("leaf0-spine0", "leaf0-spine0")}, "topology_invalid"),
        ({"lost": ("nic32",)}, "topology_invalid"),
    ],
)
def test_what_cannot_be_wired_is_refused(changes: dict[str, object], code: str) -> None:
    with pytest.raises(RefusalError) as refused:
        build(Shape(**changes))  # type: ignore[arg-type]
    assert refused.value.code == code


def test_oversubscription_takes_uplinks_away() -> None:
    fabric = build(Shape(nodes=8, oversubscription="2:1"))
    assert (fabric.num_uplinks, fabric.regular) == (32, (4, 1))
    assert build(Shape(nodes=6, spines=2, oversubscription="1.5")).regular == (2, 2)


def test_planes_have_their_own_leaves_and_spines() -> None:
    fabric = build(Shape(planes=2))
    assert (len(fabric.leaf_names), len(fabric.spine_names), fabric.num_uplinks) == (16, 8, 64)
    assert [leaf - 8 for leaf in fabric.leaf_of[1]] == list(fabric.leaf_of[0])
    assert {spine for group in fabric.uplinks[8:] for spine, _ in group} == {4, 5, 6, 7}


def test_a_lost_lane_leaves_the_other_and_a_lost_spine_none() -> None:
    tor = Shape(wiring="tor")
    assert build(Shape(wiring="tor", lost=("leaf0-spine1.0",))).uplinks[0].count((1, 1)) == 1
    assert len(build(Shape(wiring="tor", lost=("leaf0-spine1",))).uplinks[0]) == 6
    gone = without(build(tor), ("spine2",))
    assert all(spine != 2 for group in gone.uplinks for spine, _ in group)
    assert gone.regular is None


def test_a_leaf_stops_using_spines_that_do_not_reach_the_target() -> None:
    fabric = build(Shape(lost=("leaf1-spine3",)))
    assert fabric.next_hops(0, 1) == (0, 1, 2)
    assert fabric.next_hops(0, 2) == (0, 1, 2, 3)
    assert len(fabric.uplinks[0]) == 4


def test_a_lost_leaf_is_survived_by_the_second_plane_only() -> None:
    assert build(Shape(planes=2, lost=("leaf3",))).planes_of(3, 11) == (1,)
    assert build(Shape(planes=2, lost=("nic3.1",))).planes_of(3, 11) == (0,)
    assert build(Shape(lost=("leaf3",))).planes_of(3, 11) == ()


def rails(cables: list[tuple[str, str, int]]) -> Fabric:
    nics = [(node * 2 + rail, 0, f"l{rail}") for node in range(2) for rail in range(2)]
    return from_graph(2, 2, nics, cables)


def test_a_graph_is_read_link_by_link() -> None:
    fabric = rails([("l0", "s0", 2), ("l1", "s0", 1)])
    assert fabric.leaf_of == ((0, 1, 0, 1),)
    assert fabric.uplinks == (((0, 0), (0, 1)), ((0, 0),))
    assert (fabric.wiring, fabric.regular, fabric.num_uplinks) == ("custom", None, 3)


@pytest.mark.parametrize(
    ("cables", "told"),
    [
        ([("l0", "s0", 1), ("l0", "s0", 1)], "twice"),
        ([("l0", "l1", 1), ("l1", "l0", 1)], "leaf and as spine"),
        ([("l0", "l0", 1)], "leaf and as spine"),
        ([("l0", "s0", 1), ("s0", "core", 1)], "no NIC"),
        ([("l0", "s0", 0)], "0 lanes"),
        ([("l0", "s0", -1)], "-1 lanes"),
    ],
)
def test_duplicate_and_circular_links_are_refused(cables: list[tuple[str, str, int]], told: str) -> None:
    with pytest.raises(RefusalError, match=told) as refused:
        rails(cables)
    assert refused.value.code == "topology_invalid"


def test_a_nic_is_plugged_in_once_a_plane() -> None:
    with pytest.raises(RefusalError, match="twice"):
        from_graph(1, 2, [(0, 0, "a"), (0, 0, "b")], [])
    with pytest.raises(RefusalError, match="numbered"):
        from_graph(1, 2, [(2, 0, "a")], [])
