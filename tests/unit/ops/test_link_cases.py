from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl import ops
from epctl.core.errors import EpctlError
from epctl.core.op import Case, Request
from epctl.native.families import LINK, link_variant
from epctl.ops.link import OP, cases, kernels, roles
from tests.support.worlds import ThreadWorld, layout, on_ranks

GPU2 = layout(2, tier="gpu")


def names(found: tuple[Case, ...]) -> list[str]:
    return [case.name for case in found]


def all_cases() -> tuple[Case, ...]:
    found = [*OP.selftest_cases(GPU2, 0, "gpu"), *OP.cases(Request(sms=(8, 24)), layout(4, tier="gpu"))]
    return tuple(found)


def test_names_are_one_word_and_unique() -> None:
    for several in (
        OP.selftest_cases(GPU2, 0, "gpu"),
        OP.cases(Request(), GPU2),
        OP.cases(Request(), layout(8, tier="gpu")),
    ):
        assert len(set(names(several))) == len(several)
        assert all(re.fullmatch(r"[a-z0-9/-]{1,64}", name) for name in names(several))


def test_every_kernel_variant_is_compiled_ahead() -> None:
    for case in all_cases():
        if case.word("kind") in kernels.FUNCTIONS:
            variant = link_variant(case.whole("row_bytes"), case.whole("block_threads"))
            assert variant in LINK.variants, case
            assert f"epctl_link_{kernels.FUNCTIONS[case.word('kind')]}" in LINK.kernels


def test_transfers_are_whole_rows() -> None:
    for case in all_cases():
        if "row_bytes" in case.params:
            assert case.whole("bytes") % case.whole("row_bytes") == 0


def test_the_modes() -> None:
    low = names(OP.cases(Request(mode="low-latency"), GPU2))
    high = names(OP.cases(Request(mode="high-throughput"), GPU2))
    assert "round-trip/0-to-1/1000" in low
    assert not set(low) & set(high)
    assert names(OP.cases(Request(), GPU2)) == low + high


def test_a_rank_alone_has_its_memory() -> None:
    found = OP.cases(Request(), layout(1, tier="gpu"))
    assert {case.word("kind") for case in found} == set(cases.LOCAL)
    assert {case.word("kind") for case in OP.selftest_cases(layout(1), 0, "cpu")} == set(cases.LOCAL)


def test_every_ordered_pair_is_measured() -> None:
    found = OP.cases(Request(), layout(4, tier="gpu"))
    moved = [case.params for case in found if case.word("kind") == "bulk-write" and "source" in case.params]
    pairs = {(params["source"], params["target"]) for params in moved}
    assert pairs == {(source, target) for source in range(4) for target in range(4) if source != target}


def test_sizes_and_sms_as_asked_for() -> None:
    found = OP.cases(Request(mode="high-throughput", sizes=(1 << 20, 1 << 24), sms=(12,)), GPU2)
    moved = [case for case in found if case.word("kind") == "bulk-read" and case.word("way") == "both"]
    assert [(case.whole("sms"), case.whole("bytes")) for case in moved] == [(12, 73 * 14336), (12, 1170 * 14336)]


@pytest.mark.parametrize(
    ("request_", "what"), [(Request(sizes=(100,)), "--sizes 100"), (Request(sms=(5000,)), "--sms 5000")]
)
def test_requests_that_cannot_be(request_: Request, what: str) -> None:
    with pytest.raises(EpctlError, match=what):
        OP.cases(request_, GPU2)


def test_all_kinds_can_be_damaged() -> None:
    for case in OP.selftest_cases(GPU2, 0, "gpu"):
        wanted = ("signal",) if case.word("kind") == cases.ROUND_TRIP else ("byte",) if case.whole("bytes") else ()
        assert OP.corruptions(case) == wanted


@given(st.sampled_from((*cases.WRITES, *cases.READS)), st.integers(2, 9), st.integers(1, 3))
def test_who_sends_is_who_is_received_from(kind: str, scale_up: int, scale_out: int) -> None:
    where = layout(scale_up * scale_out, scale_up=scale_up, scale_out=scale_out)
    for case in (cases.move(kind, 1 << 20), cases.move(kind, 1 << 20, one_way=(1, 0))):
        found = [roles.roles(case, where, rank) for rank in range(where.num_ranks)]
        for rank, role in enumerate(found):
            if role.sends_to is not None:
                assert found[role.sends_to].receives_from == rank
                assert role.sends_to // scale_up == rank // scale_up
        running = sum(role.runs for role in found)
        assert running == (1 if "source" in case.params else where.num_ranks)


@given(st.integers(1, 10_000))
def test_the_wrong_byte_is_inside_and_no_low_half(num_bytes: int) -> None:
    place = roles.wrong_byte(num_bytes)
    assert 0 <= place < num_bytes
    assert num_bytes % 2 or place % 2


def test_data_differ_by_rank_purpose_case_and_seed() -> None:
    def work(world: ThreadWorld) -> list[Any]:
        one, other = cases.local("sm-read", cases.ROW_BYTES), cases.local("sm-write", cases.ROW_BYTES)
        seeded = Case(one.name, {**one.params, "seed": 1})
        several = [(one, "rows", 0), (one, "rows", 1), (one, "addend", 0), (other, "rows", 0), (seeded, "rows", 0)]
        return [roles.payload(world, *arguments).tolist() for arguments in several]

    first, second = on_ranks(2, work)
    assert first == second
    assert all(one != other for idx, one in enumerate(first) for other in first[idx + 1 :])


def test_ops_are_found_by_name() -> None:
    assert ops.load("link").name == "link"
    assert [op.name for op in ops.select(())] == list(ops.OPS)
    with pytest.raises(EpctlError, match="--op 'lnik' is unknown") as caught:
        ops.select(("lnik",))
    assert "give --op link" in caught.value.todo
