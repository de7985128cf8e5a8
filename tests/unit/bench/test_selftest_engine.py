"""The self-test does not believe checks that cannot fail."""

from __future__ import annotations

import shlex

import pytest

from epctl.bench import selftest
from epctl.bench.selftest import Checked, Proof, Reproduction, Selftest
from epctl.bench.together import Together
from epctl.core.errors import EpctlError
from epctl.core.op import Corruption
from tests.support import toy_op
from tests.support.toy_op import Toy
from tests.support.worlds import ThreadWorld, layout, on_ranks

Seen = tuple[bool, list[Proof], list[Checked]]
AGAIN = Reproduction(9, "cpu", 2, None)


def outcome_of(op: Toy, ranks: int = 1) -> Seen:
    """(all well, proofs, cases), the same on all ranks."""

    def work(world: ThreadWorld) -> Seen:
        proofs: list[Proof] = []
        cases: list[Checked] = []
        test = Selftest(world, Together(world.meeting), AGAIN, proofs.append, cases.append)
        found = {op.name: op.selftest_cases(world.layout, AGAIN.seed, "cpu")}
        return selftest.run((op,), selftest.select_all((op,), found, ()), test), proofs, cases

    seen = on_ranks(ranks, work)
    assert all([proof.noticed for proof in one[1]] == [proof.noticed for proof in seen[0][1]] for one in seen)
    return seen[0]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_sound_op_is_proved_and_passes(ranks: int) -> None:
    op = Toy()
    well, proofs, cases = outcome_of(op, ranks)
    assert well
    assert [(proof.kind, proof.noticed) for proof in proofs] == [("byte", True), ("signal", True)]
    assert [proof.message for proof in proofs] == ["rank 0: a byte is wrong (byte 5)", "rank 0: a signal is missing"]
    assert [(case.case, case.ok, case.command) for case in cases] == [("add/64", True, ""), ("add/192", True, "")]
    assert op.closed == 4 * ranks


def test_a_check_that_passes_everything_is_found_out_and_not_used() -> None:
    well, proofs, cases = outcome_of(Toy(toy_op.BLIND))
    assert not well
    assert [proof.noticed for proof in proofs] == [False, False]
    assert proofs[0].message == "the checks passed a run that was damaged on purpose"
    assert proofs[0].command == "epctl selftest --op toy --case add/64 --seed 9 --tier cpu --ranks 2"
    assert cases == []


def test_a_check_that_does_not_look_at_signals_is_found_out() -> None:
    well, proofs, cases = outcome_of(Toy(toy_op.DEAF))
    assert not well
    assert [(proof.kind, proof.noticed) for proof in proofs] == [("byte", True), ("signal", False)]
    assert cases == []


def test_a_check_that_always_fails_proves_nothing() -> None:
    well, proofs, _ = outcome_of(Toy(toy_op.WRONG))
    assert not well
    assert proofs[0].message.startswith("a run without damage fails already: ")


def test_damage_that_stays_proves_nothing() -> None:
    well, proofs, _ = outcome_of(Toy(toy_op.STUCK))
    assert not well
    assert proofs[0].message.startswith("the run after the damaged one fails, too: ")


def test_an_op_whose_bytes_cannot_be_damaged_is_not_believed() -> None:
    well, proofs, cases = outcome_of(Toy(kinds=()))
    assert not well
    assert [(proof.kind, proof.noticed, proof.case) for proof in proofs] == [("byte", False, "")]
    assert cases == []


def test_an_op_without_signals_needs_no_proof_of_them() -> None:
    kinds: tuple[Corruption, ...] = ("byte",)
    well, proofs, cases = outcome_of(Toy(kinds=kinds))
    assert well
    assert [proof.kind for proof in proofs] == ["byte"]
    assert len(cases) == 2


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        (toy_op.REFUSES, "set up: rank 1: no room (the toy box is full)"),
        (toy_op.BREAKS, "run: rank 0: RuntimeError: CUDA error: an illegal memory access"),
    ],
)
def test_a_rank_that_fails_is_named_on_all_and_nobody_hangs(manner: str, message: str) -> None:
    op = Toy(manner)
    well, proofs, cases = outcome_of(op, ranks=2)
    assert not well
    assert proofs[0].message == f"the proof could not be run: {message}"
    assert cases == []
    assert op.closed == {toy_op.REFUSES: 2, toy_op.BREAKS: 4}[manner]


def test_a_failing_case_comes_with_its_command() -> None:
    def work(world: ThreadWorld) -> Checked:
        test = Selftest(world, Together(world.meeting), AGAIN, lambda _: None, lambda _: None)
        op = Toy(toy_op.WRONG)
        return selftest.check(op, op.selftest_cases(world.layout, 9, "cpu")[1], test)

    case = on_ranks(2, work)[1]
    assert not case.ok
    assert [(one.rank, one.message) for one in case.failures] == [
        (0, "a byte is wrong (byte 5)"),
        (1, "a byte is wrong (byte 5)"),
    ]
    assert case.command == "epctl selftest --op toy --case add/192 --seed 9 --tier cpu --ranks 2"


def test_the_command_is_one_line_for_a_shell() -> None:
    again = Reproduction(4, "gpu", None, 2)
    command = again.command("link", "a b/*;rm")
    assert shlex.split(command) == (
        [
            "epctl",
            "selftest",
            "--op",
            "link",
            "--case",
            "a b/*;rm",
            "--seed",
            "4",
            "--tier",
            "gpu",
            "--emulate-nodes",
            "2",
        ]
    )


def test_patterns_select_and_a_pattern_that_fits_nothing_is_an_error() -> None:
    op = Toy()
    found = {"toy": op.selftest_cases(layout(1), 0, "cpu")}
    names = {
        pattern: [case.name for case in selftest.select_all((op,), found, (pattern,))["toy"]]
        for pattern in ("add/64", "*2")
    }
    assert names == {"add/64": ["add/64"], "*2": ["add/192"]}
    with pytest.raises(EpctlError, match="'nothing' fits no case"):
        selftest.select_all((op,), found, ("add/64", "nothing"))
    for patterns in ((), ("add/64",)):
        with pytest.raises(EpctlError, match="nothing to run for toy") as caught:
            selftest.select_all((op,), {"toy": ()}, patterns, {"toy": "a gate is closed"})
        assert (caught.value.why, caught.value.exit_code) == ("toy: a gate is closed", 4)
