"""Why a communicator has no GIN: each gate by itself, and all of them together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from epctl.comm import gin_gates
from epctl.comm.gin import GinDomain, RankFacts
from epctl.comm.gin_gates import Asked, closed, gates
from epctl.core.context import Context
from epctl.core.errors import EpctlError
from epctl.core.views import gin
from epctl.core.views.gates import Gate
from epctl.native.communicator import GinWish, Properties
from epctl.ops.gin import absence
from tests.support.nodes import edit, env, ib_node
from tests.support.worlds import layout

WELL = Properties(
    rank=0,
    num_ranks=16,
    device_idx=0,
    nvml_idx=0,
    device_api=True,
    multimem=False,
    gin_type=3,
    railed_gin_type=3,
    gin_types=(2, 3),
    gin_connection=1,
    gin_min_stride=1,
    num_lsa_teams=2,
    host_rma=True,
    comm_hash=1,
    lsa_rank=0,
    lsa_size=8,
)
NONE = structs.replace(WELL, device_api=False, gin_type=0, railed_gin_type=0, gin_types=())
SAME = Asked(offered_by_rank=((2, 3), (2, 3)))


def by_name(properties: Properties, asked: Asked = SAME, **environ: str) -> dict[str, Gate]:
    return {gate.name: gate for gate in gates(properties, (), asked, environ)}


def test_all_gates_are_open_on_a_good_machine() -> None:
    every = by_name(WELL)
    assert {gate.state for gate in every.values()} == {"open"}
    assert every["GIN type"].text == "asked for auto, offered: proxy, gdaki; NCCL takes gdaki"
    assert closed(tuple(every.values())) == ""


@pytest.mark.parametrize(
    ("properties", "asked", "gate", "says"),
    [
        (NONE, SAME, "device API", "2 load/store domains of 8 ranks"),
        (NONE, SAME, "GIN type", "asked for auto, offered: none"),
        (WELL, Asked("efa_gda"), "GIN type", "asked for efa_gda, offered: proxy, gdaki"),
        (structs.replace(WELL, gin_type=0, gin_min_stride=8), SAME, "cross-NIC", "rails alone (stride 8)"),
        (
            WELL,
            Asked(offered_by_rank=((2, 3), (2, 3), (2,))),
            "same on all ranks",
            "rank 0: proxy, gdaki and rank 2: proxy",
        ),
    ],
)
def test_each_gate_can_be_closed(properties: Properties, asked: Asked, gate: str, says: str) -> None:
    found = by_name(properties, asked)[gate]
    assert found.state == "closed"
    assert says in found.text
    assert found.fix


def test_rails_are_enough_for_who_asks_for_rails() -> None:
    rail = structs.replace(WELL, gin_type=0)
    every = by_name(rail, Asked("auto", "rail", ((2, 3),)))
    assert (every["cross-NIC"].state, every["GIN type"].state) == ("open", "open")


def test_what_was_not_looked_at_is_unknown() -> None:
    assert by_name(WELL, Asked())["same on all ranks"].state == "unknown"
    assert by_name(NONE)["cross-NIC"].state == "unknown"
    sharing = by_name(NONE, Asked(num_ranks_sharing=2))["ranks on a GPU"]
    assert (sharing.state, sharing.fix) == ("unknown", "Start one rank on each GPU.")
    assert by_name(WELL, Asked(num_ranks_sharing=2))["ranks on a GPU"].state == "open"


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [
        ("NCCL_GIN_ENABLE", "0", "closed"),
        ("NCCL_GIN_ENABLE", "1", "open"),
        ("NCCL_CUMEM_ENABLE", "0", "closed"),
        ("NCCL_CUMEM_HOST_ENABLE", "0", "open"),
        ("NCCL_RMA_DISABLE", "1", "closed"),
        ("NCCL_RMA_DISABLE", "0", "open"),
        ("NCCL_RMA_PLUGIN", "none", "closed"),
        ("NCCL_RMA_PLUGIN", "/x/lib.so", "open"),
        ("NCCL_GIN_TYPE", "0", "closed"),
        ("NCCL_GIN_TYPE", "2", "open"),
        ("EP_DISABLE_GIN", "1", "open"),
        ("NCCL_HOSTID", "a", "open"),
    ],
)
def test_variables_are_gates_with_their_value(name: str, value: str, state: str) -> None:
    gate = by_name(WELL, SAME, **{name: value})[name]
    assert gate.state == state
    assert f"{name}={value}" in gate.text


def test_other_variables_are_none_of_its_business() -> None:
    assert set(by_name(WELL, PATH="/bin", NCCL_DEBUG="INFO", NCCL_GIN_TYPE="")) == set(by_name(WELL))


def test_gates_of_the_node_come_last() -> None:
    static = gin.gates(Context(env(ib_node(), NCCL_IB_DISABLE="1")))
    every = gates(NONE, static, SAME, {})
    assert every[-len(static) :] == static
    assert "IB enabled closed: NCCL_IB_DISABLE=1" in closed(every)


numbers: Any = st.integers(0, 5)


@given(
    st.builds(Properties, **dict.fromkeys(("gin_type", "railed_gin_type"), numbers)), st.sampled_from(("full", "rail"))
)
def test_a_type_that_is_offered_never_leaves_all_gates_shut(properties: Properties, connection: str) -> None:
    every = gates(properties, (), Asked("auto", connection), {})
    assert all(gate.text for gate in every)
    assert all(gate.fix for gate in every if gate.state == "closed")


def test_the_op_tells_the_gates_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    node = env(edit(ib_node(), "rdma.devices", ()), NCCL_CUMEM_ENABLE="0")
    monkeypatch.setattr(absence, "gates", lambda: absence.of_snapshot(node))
    told = absence.told(layout(2, tier="gpu"))
    assert told.startswith("NCCL offers no GIN between these 2 ranks: ")
    assert "network adapter closed (there is no active RDMA port)" in told
    assert "cuMem closed (NCCL_CUMEM_ENABLE=0 (environment))" in told
    assert absence.told(layout(2, tier="gpu", gin_type="proxy")) == absence.told(layout(2)) == ""
    assert absence.told(layout(1)) == "one rank has no peer"


def chosen(properties: Properties, wish: GinWish, *types: tuple[int, ...]) -> str:
    """The type that a domain would be made with, without one."""
    domain: Any = GinDomain.__new__(GinDomain)
    domain.domain = SimpleNamespace(comm=SimpleNamespace(properties=properties))
    domain.facts = tuple(RankFacts(found, f"GPU-{rank}") for rank, found in enumerate(types))
    domain._static = ()
    return str(domain._choose(wish))


def test_the_type_that_is_taken() -> None:
    assert chosen(WELL, GinWish(), (2, 3), (2, 3)) == "gdaki"
    assert chosen(WELL, GinWish("proxy"), (2, 3), (2, 3)) == "proxy"
    assert chosen(structs.replace(WELL, gin_type=0), GinWish(connection="rail"), (2, 3)) == "gdaki"


@pytest.mark.parametrize(
    ("properties", "wish", "types", "says"),
    [
        (NONE, GinWish(), ((), ()), "device API closed"),
        (WELL, GinWish("efa_gda"), ((2, 3), (2, 3)), "asked for efa_gda, offered: proxy, gdaki"),
        (WELL, GinWish(), ((2, 3), (2,)), "rank 0: proxy, gdaki and rank 1: proxy"),
        (structs.replace(WELL, gin_type=0), GinWish(), ((2, 3), (2, 3)), "rails alone"),
    ],
)
def test_a_type_that_is_not_there_for_all_is_refused_gate_by_gate(
    properties: Properties, wish: GinWish, types: tuple[tuple[int, ...], ...], says: str
) -> None:
    with pytest.raises(EpctlError, match="NCCL offers no GIN") as refused:
        chosen(properties, wish, *types)
    assert refused.value.exit_code == 4
    assert says in refused.value.why
    assert len(str(refused.value).splitlines()) == 3


def test_open_gates_alone_lead_to_nccls_own_words() -> None:
    assert "NCCL_DEBUG=INFO" in absence.gates_told((Gate("a", "open", "x"),))
    assert gin_gates.environment({}) == ()
