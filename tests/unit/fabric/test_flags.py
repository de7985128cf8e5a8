"""Requests from text, TOML files, and the words of compare."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.fabric.flags import FIELDS, MAX_FILE_BYTES, parsed, variant, with_file, with_flags
from epctl.fabric.lengths import lengths_of
from epctl.fabric.models import model_named
from epctl.fabric.placement import expert_owners, roles
from epctl.fabric.request import Request, changed, settle
from epctl.fabric.simulate import simulate
from epctl.fabric.topology import Shape
from epctl.model.refusal import RefusalError


def refusal(request: Request) -> str:
    with pytest.raises(RefusalError) as refused:
        settle(request)
    return refused.value.code


def test_flags_become_fields() -> None:
    found = with_flags(
        Request(),
        {"nodes": "8", "lost": "leaf0, spine1", "traffic": "kv,dispatch,kv", "gate": "zipf:1.0", "seed": None},
    )
    assert (found.shape.nodes, found.shape.lost) == (8, ("leaf0", "spine1"))
    assert (found.traffic, found.gate, found.seed) == (("kv", "dispatch"), "zipf:1.0", 0)


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "", "9" * 30, "\u0661"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(RefusalError) as refused:
        parsed("nodes", text)
    assert refused.value.code == "value_invalid"


@given(st.sampled_from(FIELDS), st.text(max_size=30))
@settings(max_examples=300)
def test_any_text_is_a_value_or_a_refusal(field: str, text: str) -> None:
    try:
        settle(with_flags(Request(), {field: text}))
    except RefusalError as refused:
        assert refused.todo


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("tor", "wiring", "tor"),
        ("relay", "transfer", "relay"),
        ("pd+af", "layout", "pd+af"),
        ("--qps=4", "qps", 4),
        ("nodes-per-leaf=2,nodes=8", "nodes_per_leaf", 2),
        ("lengths=10+20", "lengths", "10,20"),
        ("lengths=82+-50%", "lengths", "82+-50%"),
        ("phase=kv+decode", "phases", ("kv", "decode")),
    ],
)
def test_words_of_compare(word: str, field: str, value: object) -> None:
    found = variant(Request(), word)
    assert (getattr(found, field) if hasattr(found, field) else getattr(found.shape, field)) == value


@pytest.mark.parametrize("word", ["", "rails", "nodes", "x=1", "nodes=x", "=", "tor,relay"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(RefusalError) as refused:
        variant(Request(), word)
    assert refused.value.code == "value_invalid"


REGULAR = 'nodes = 8\nwiring = "tor"\noversubscription = 2\nlost = ["leaf0-spine1"]\n'
GRAPH = """
nodes = 2
gpus_per_node = 2
leaf = [{name = "a", gpus = [0, 2]}, {name = "b", gpus = [1, 3]}]
[[link]]
leaf = "a"
spine = "top"
lanes = 2
[[link]]
leaf = "b"
spine = "top"
"""


def test_a_file_describes_a_regular_fabric() -> None:
    shape = with_file(Request(), REGULAR, "f.toml").shape
    assert shape == Shape(nodes=8, wiring="tor", oversubscription="2", lost=("leaf0-spine1",))


def test_a_file_describes_a_fabric_link_by_link() -> None:
    request = with_file(Request(), GRAPH, "f.toml")
    report = simulate(Request(graph=request.graph, batch=4, phases=("decode",), traffic=("dispatch",)))
    assert (report.fabric.wiring, report.fabric.uplinks) == ("custom", 3)
    # One spine with two lanes up from a: what crosses is split over them, or on one.
    (found,) = report.traffic
    assert found.hops == 3
    assert {link.upper for link in report.links if link.kind == "uplink"} == {"top"}


def test_a_lane_that_the_graph_loses_carries_nothing() -> None:
    request = with_file(Request(), 'lost = ["a-top.0"]\n' + GRAPH, "f.toml")
    assert request.graph is not None
    assert request.graph.uplinks[0] == ((0, 1),)


def test_a_graph_without_a_way_is_refused_when_it_is_needed() -> None:
    request = with_file(Request(), 'lost = ["b-top"]\n' + GRAPH, "f.toml")
    with pytest.raises(RefusalError) as refused:
        simulate(Request(graph=request.graph, batch=4))
    assert refused.value.code == "cut_off"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (GRAPH + '[[link]]\nleaf = "a"\nspine = "top"\n', "topology_invalid"),
        (GRAPH + '[[link]]\nleaf = "a"\nspine = "b"\n', "topology_invalid"),
        (GRAPH + '[[link]]\nleaf = "top"\nspine = "a"\n', "topology_invalid"),
        (GRAPH.replace("lanes = 2", "lanes = 1.5"), "file_invalid"),
        (GRAPH.replace('name = "b"', 'name = "a"'), "topology_invalid"),
        (GRAPH.replace("[1, 3]", "[1, 4]"), "topology_invalid"),
        (
            GRAPH.replace("nodes = 2", "nodes = -2").replace("gpus_per_node = 2", "gpus_per_node = -2"),
            "topology_invalid",
        ),
        (GRAPH.replace("nodes = 2", "nodes = 0"), "topology_invalid"),
        (
            "\n".join([GRAPH, *(f'[[link]]\nleaf = "a"\nspine = "s{i}"\nlanes = 65536' for i in range(40))]),
            "topology_invalid",
        ),
        ("spines = 7\n" + GRAPH, "file_invalid"),
        ("", "file_invalid"),
        ("# nothing", "file_invalid"),
        ("nodes = ", "file_invalid"),
        ("nodes = 4\nnodes = 5", "file_invalid"),
        ("leaves = 3", "file_invalid"),
        ("nodes = '4'", "file_invalid"),
        ("a = " + "[" * 100_000, "file_invalid"),
        ("#" * (10 << 20), "file_invalid"),
    ],
    ids=["duplicate", "leaf as spine", "spine as leaf", "lanes", "leaf twice", "GPU", *"abcdefghijkl"],
)
def test_bad_files_are_refused_in_words(text: str, code: str) -> None:
    with pytest.raises(RefusalError) as refused:
        with_file(Request(), text, "f.toml")
    assert refused.value.code == code
    assert len(str(refused.value)) < 1000


def test_the_largest_graph_fits_in_a_file() -> None:
    numbers = ", ".join(map(str, range(1 << 16)))
    assert len(numbers) < MAX_FILE_BYTES


@given(st.binary(max_size=300))
def test_any_bytes_are_a_file_or_a_refusal(raw: bytes) -> None:
    try:
        with_file(Request(), raw.decode("utf-8", "replace"), "f.toml")
    except RefusalError as refused:
        assert refused.code in ("file_invalid", "topology_invalid")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request(experts=250), "experts_not_placeable"),
        (Request(experts=16), "experts_not_placeable"),
        (Request(experts=8, topk=9), "topk_exceeds_experts"),
        (Request(topk=0), "topk_too_small"),
        (Request(layout="pd", shape=Shape(nodes=3, spines=3)), "layout_invalid"),
        (Request(layout="pd+af", shape=Shape(nodes=6, spines=2)), "layout_invalid"),
        (Request(layout="ap"), "layout_invalid"),
        (Request(traffic=("kv",)), "no_traffic"),
        (Request(traffic=("a2f",), layout="pd"), "no_traffic"),
        (Request(traffic=("x",)), "value_invalid"),
        (Request(transfer="both"), "value_invalid"),
        (Request(model="gpt-2"), "unknown_model"),
        (Request(gate="x"), "unknown_gate"),
        (Request(lengths="0"), "lengths_invalid"),
        (Request(lengths="1,2", batch=3), "lengths_invalid"),
        (Request(lengths="82+-150%"), "lengths_invalid"),
        (Request(batch=0), "lengths_invalid"),
        (Request(seeds=0), "value_invalid"),
        (Request(qps=0), "value_invalid"),
        (Request(ports=1 << 15), "value_invalid"),
        (Request(hidden=0), "value_invalid"),
        (Request(redraw="all"), "value_invalid"),
        (Request(together=("x",)), "value_invalid"),
        (Request(batch=1 << 22), "too_much"),
        (Request(lengths="4194304", batch=1000), "too_much"),
    ],
)
def test_requests_that_cannot_be_are_refused(request_: Request, code: str) -> None:
    assert refusal(request_) == code


def test_a_refusal_of_experts_names_a_number_that_can_be_placed() -> None:
    with pytest.raises(RefusalError) as refused:
        settle(Request(experts=250))
    told = int(refused.value.todo.split()[2].rstrip(","))
    assert len(expert_owners(roles("unified", 4).decode, 8, told)) == told == 256


def test_work_is_bounded_in_the_phases_that_are_asked_for() -> None:
    with pytest.raises(RefusalError, match="prefill has 343932928 tokens"):
        settle(Request(batch=1 << 22))
    assert settle(Request(batch=1 << 22, phases=("decode",))).batch == 1 << 22
    assert settle(Request(batch=1 << 22, layout="pd", traffic=("kv",))).kinds == (("kv", "kv"),)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", ["", " ", ","])
def test_a_refusal_of_an_empty_value_proposes_one_that_is_taken(field: str, text: str) -> None:
    try:
        parsed(field, text)
    except RefusalError as refused:
        flag, value = refused.todo.removeprefix("give ").split()
        assert flag.startswith("--")
        assert parsed(field, value)
    else:
        assert text == ","  # a word as any other


@pytest.mark.parametrize("field", ["nodes", "gpus_per_node", "spines", "planes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 20])
def test_a_refusal_of_a_count_proposes_one_that_is_taken(field: str, value: int) -> None:
    with pytest.raises(RefusalError) as refused:
        settle(changed(Request(), **{field: value}))
    proposed = int(refused.value.todo.split()[-1])
    settle(changed(Request(), **{field: proposed}))


def test_lengths() -> None:
    even, batch = lengths_of("82", None)
    assert (batch, even.of(batch, 0)) == (32, (82,) * 32)
    each, batch = lengths_of("3, 1,2", None)
    assert (batch, each.of(batch, 5)) == (3, (3, 1, 2))
    drawn, batch = lengths_of("82+-50%", 2000)
    values = drawn.of(batch, 1)
    assert (min(values), max(values)) == (41, 123)
    assert abs(sum(values) / 2000 - 82) < 4 * 23.7 / 2000**0.5
    assert values == drawn.of(batch, 1) != drawn.of(batch, 2)


def test_models_have_near_names() -> None:
    assert model_named("DeepSeek-V3-like").num_experts == 256
    with pytest.raises(RefusalError, match="qwen3-30b-a3b"):
        model_named("qwen3-30b")


def test_a_trace_stands_for_the_gate() -> None:
    rng = random.Random(1)  # noqa: S311
    rows = [rng.sample(range(64), 4) for _ in range(10)]
    report = simulate(Request(experts=64, batch=20, phases=("decode",)), rows)
    again = simulate(Request(experts=64, batch=20, phases=("decode",), seed=5), rows)
    assert report.inputs["topk"] == 4
    assert report.traffic[0].rdma_bytes == again.traffic[0].rdma_bytes
    by_hand = sum(len({e // 2 for e in rows[i % 10] if e // 2 // 8 != i // 8}) for i in range(20))
    assert report.traffic[0].sends == by_hand
    with pytest.raises(RefusalError, match="trace"):
        simulate(Request(experts=64, topk=5), rows)


def test_a_short_trace_starts_again() -> None:
    rows = [[0, 8], [0, 1]]
    report = simulate(Request(experts=64, batch=4, phases=("decode",), traffic=("dispatch",)), rows)
    # All tokens are on node 0; experts 0 and 1 are on GPU 0, expert 8 on GPU 4.
    assert (report.traffic[0].sends, report.traffic[0].nvlink_bytes) == (0, (3 + 2) * 7168)
