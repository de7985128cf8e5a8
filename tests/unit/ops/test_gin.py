"""The GIN op: its cases, who talks to whom, what it counts, and that its checks see each damage."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.bench import selftest
from epctl.bench.selftest import Checked, Proof, Reproduction, Selftest
from epctl.bench.together import Together
from epctl.core.errors import EpctlError
from epctl.core.op import Case, Hardware, Layout, Request, Running, World
from epctl.native.gin_args import KERNELS
from epctl.ops.gin import OP, GinOp, cases, gpu, roles
from tests.support import played_gin
from tests.support.worlds import ThreadWorld, layout, on_ranks, torch_or_skip

TWO = layout(2, tier="gpu", scale_out=2, scale_up=1, gin_type="proxy")
FOUR = layout(4, tier="gpu", scale_out=2, scale_up=2, gin_type="gdaki")


def names(found: tuple[Case, ...]) -> list[str]:
    return [case.name for case in found]


def everything() -> tuple[Case, ...]:
    return (*OP.cases(Request(), TWO), *OP.selftest_cases(TWO, 0, "gpu"))


def test_names_are_one_word_and_unique() -> None:
    for several in (OP.cases(Request(), TWO), OP.selftest_cases(TWO, 0, "gpu"), OP.selftest_cases(layout(2), 0, "cpu")):
        assert len(set(names(several))) == len(several) > 20
        assert all(re.fullmatch(r"[a-z0-9/-]{1,64}", name) for name in names(several))


def test_the_modes_and_sizes_of_the_issue_are_there() -> None:
    low = OP.cases(Request(mode="low-latency"), TWO)
    high = OP.cases(Request(mode="high-throughput"), TWO)
    assert names(OP.cases(Request(), TWO)) == [*dict.fromkeys(names(low) + names(high))]
    forth = {case.whole("bytes") for case in low if case.word("kind") == cases.ROUND_TRIP}
    assert {0, 8, 64 << 20} <= forth
    assert {case.whole("contexts") for case in high if case.word("kind") == cases.PUT} == {1, 4, 16}
    assert {case.params["strong"] for case in high if case.word("kind") == cases.SIGNAL} == {True, False}


def test_without_gin_there_is_nothing_to_run() -> None:
    none = layout(2, tier="gpu")
    assert OP.cases(Request(), none) == ()
    assert OP.selftest_cases(none, 0, "gpu") == ()
    assert OP.cases(Request(), layout(1, tier="cpu")) == ()
    with pytest.raises(EpctlError, match="out of range"):
        OP.cases(Request(sizes=(1 << 31,)), TWO)


def test_no_message_waits_for_a_full_queue_and_no_region_is_too_large() -> None:
    for case in everything():
        assert cases.region_bytes(case) <= cases.MAX_REGION_BYTES
        assert cases.num_slots(case) * cases.slot_bytes(case) * case.whole("contexts") == cases.region_bytes(case)
        assert case.whole("contexts") <= cases.MAX_CONTEXTS
        assert case.word("kind") in gpu.KERNELS
    assert set(gpu.KERNELS.values()) <= set(KERNELS)


def test_signals_of_all_uses_have_numbers() -> None:
    uses = {(case.whole("contexts"), case.params.get("adds") is True) for case in everything()}
    assert len(uses) <= gpu.NUM_SIGNALS


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(cases.KINDS))
def test_who_sends_is_who_is_waited_for(scale_out: int, scale_up: int, kind: str) -> None:
    size = scale_out * scale_up
    where = layout(size, tier="gpu", scale_out=scale_out, scale_up=scale_up, gin_type="proxy")
    case = cases.make(kind, 8)
    if size < 2:
        return
    found = [roles.roles(case, where, rank) for rank in range(size)]
    for rank, one in enumerate(found):
        if one.takes_part:
            assert found[one.to].sender == rank
            assert found[one.to].takes_part
            if scale_out > 1:
                assert one.to // scale_up != rank // scale_up, "GIN is for ranks of other domains"
    serving = [one for one in found if one.serves]
    assert len(serving) == (kind == cases.ROUND_TRIP)


def test_traffic_and_limits() -> None:
    hardware = Hardware(rdma_gbs=50.0, rdma_source="400 Gb/s (sysfs)")
    put = cases.make(cases.PUT, 1000, messages=7, contexts=4)
    assert OP.traffic(put, TWO).rdma_out_bytes == 4000, "of one message of each context"
    limit = OP.limit(put, TWO, hardware)
    assert limit is not None
    assert (limit.value, limit.us(OP.traffic(put, TWO))) == (50.0, 0.08)
    half = OP.limit(cases.make(cases.ROUND_TRIP, 1000), TWO, hardware)
    assert half is not None
    assert half.value == 25.0
    emulated = layout(2, tier="gpu", scale_out=2, scale_up=1, gin_type="proxy", emulated=True)
    assert OP.limit(put, emulated, hardware) is None
    assert OP.limit(cases.make(cases.SIGNAL, 0), TWO, hardware) is None


class Played(GinOp):
    """As on a GPU, in a world of the host."""

    def make(self, case: Case, world: World) -> Running:
        return gpu.make(case, world)


class Told:
    """What one rank saw."""

    def __init__(self, world: ThreadWorld) -> None:
        self.proofs: list[Proof] = []
        self.cases: list[Checked] = []
        self.test = Selftest(
            world, Together(world.meeting), Reproduction(3, "gpu", 2, None), self.proofs.append, self.cases.append
        )


def chosen(where: Layout) -> tuple[Case, ...]:
    return tuple(case for case in OP.selftest_cases(where, 3, "gpu") if case.whole("bytes") < 1 << 20)


@pytest.mark.parametrize(("scale_out", "scale_up"), [(2, 1), (1, 2), (2, 2), (3, 1)])
def test_every_case_of_the_self_test(monkeypatch: pytest.MonkeyPatch, scale_out: int, scale_up: int) -> None:
    torch_or_skip()
    network = played_gin.play(monkeypatch)
    monkeypatch.setattr(gpu, "LOST_SIGNAL_S", 0.2)

    def work(world: ThreadWorld) -> tuple[Told, list[int]]:
        domain = played_gin.join(world, network)
        told, op = Told(world), Played()
        selftest.run((op,), {op.name: chosen(TWO)}, told.test)
        return told, domain.released

    seen = on_ranks(scale_out * scale_up, work, scale_out=scale_out, scale_up=scale_up)
    for told, released in seen:
        assert [case for case in told.cases if not case.ok] == []
        assert len(told.cases) == len(chosen(TWO))
        assert [proof.kind for proof in told.proofs] == ["byte", "signal"]
        assert all(proof.noticed for proof in told.proofs), told.proofs
        assert released, "memory is given back"
    assert "waited 0.2 s for rank" in " ".join(proof.message for proof in seen[0][0].proofs)


@pytest.mark.parametrize("case", chosen(TWO), ids=lambda case: case.name)
def test_each_damage_of_each_case_is_seen_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    torch_or_skip()
    network = played_gin.play(monkeypatch)
    monkeypatch.setattr(gpu, "LOST_SIGNAL_S", 0.05)

    def work(world: ThreadWorld) -> list[bool]:
        played_gin.join(world, network)
        running, seen = gpu.make(case, world), []

        def once() -> bool:
            world.barrier()
            running.run()
            world.barrier()
            well = running.check().ok
            world.barrier()
            return well

        seen.append(once())
        for kind in OP.corruptions(case):
            running.corrupt(kind)
            seen += [once(), once()]
        assert running.measured_us() is not None
        running.close()
        return seen

    first, second = on_ranks(2, work, scale_out=2, scale_up=1)
    together = [one and other for one, other in zip(first, second, strict=True)]
    assert together == [True, *[False, True] * len(OP.corruptions(case))]


def test_no_communicator_is_an_absence() -> None:
    with pytest.raises(EpctlError, match="no NCCL communicator") as refused:
        on_ranks(1, lambda world: gpu.make(cases.make(cases.PUT, 8), world))
    assert refused.value.exit_code == 4


def test_more_contexts_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network = played_gin.play(monkeypatch)
    monkeypatch.setattr(played_gin.PlayedGin, "num_contexts", 2)

    def work(world: ThreadWorld) -> Any:  # noqa: ANN401
        played_gin.join(world, network)
        return gpu.make(cases.make(cases.PUT, 8, contexts=4), world)

    with pytest.raises(EpctlError, match="NCCL gives 2 GIN contexts") as refused:
        on_ranks(1, work)
    assert refused.value.exit_code == 4
