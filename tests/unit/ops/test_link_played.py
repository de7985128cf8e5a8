"""What the GPU side of the link op asks of its kernels, played on host memory: who moves whose rows, guards, and damage."""

from __future__ import annotations

from typing import Any

import pytest

from epctl.bench import selftest
from epctl.bench.selftest import Checked, Proof, Reproduction, Selftest
from epctl.bench.together import Together
from epctl.core.op import Case, Running, World
from epctl.ops.link import LinkOp, cases, local, nvlink
from tests.support import played_link
from tests.support.worlds import ThreadWorld, on_ranks, torch_or_skip


class Played(LinkOp):
    """As on a GPU, in a world of the host."""

    def make(self, case: Case, world: World) -> Running:
        small = case.word("kind") in cases.LOCAL
        return local.make(case, world) if small else nvlink.make(case, world)


class Told:
    """What one rank saw."""

    def __init__(self, world: ThreadWorld) -> None:
        self.proofs: list[Proof] = []
        self.cases: list[Checked] = []
        self.test = Selftest(
            world, Together(world.meeting), Reproduction(3, "gpu", 2, None), self.proofs.append, self.cases.append
        )


def small(case: Case) -> bool:
    """Played kernels are slow."""
    return case.whole("bytes") < 1 << 20


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_case_of_the_self_test(monkeypatch: pytest.MonkeyPatch, num_ranks: int) -> None:
    played_link.play(monkeypatch, torch_or_skip())

    def work(world: ThreadWorld) -> Told:
        told, op = Told(world), Played()
        chosen = tuple(filter(small, op.selftest_cases(world.layout, 3, "gpu")))
        selftest.run((op,), {op.name: chosen}, told.test)
        return told

    seen = on_ranks(num_ranks, work)
    for told in seen:
        assert [case for case in told.cases if not case.ok] == []
        assert len(told.cases) >= (3 if num_ranks == 1 else 25)
        assert [proof.kind for proof in told.proofs] == (["byte"] if num_ranks == 1 else ["byte", "signal"])
        assert all(proof.noticed for proof in told.proofs), told.proofs
    if num_ranks > 1:
        assert "rank 0 waited 0.3 s for rank 1's" in seen[0].proofs[1].message


@pytest.mark.parametrize("kind", [*cases.WRITES, *cases.READS, *cases.LOCAL])
def test_a_wrong_byte_is_noticed_in_every_kind(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    played_link.play(monkeypatch, torch_or_skip())
    if kind in cases.LOCAL:
        several = [cases.local(kind, cases.ROW_BYTES, 1)]
    else:
        several = [cases.move(kind, cases.ROW_BYTES, sms=1), cases.move(kind, cases.ROW_BYTES, one_way=(1, 0), sms=1)]
    for case in several:
        proofs = on_ranks(2, lambda world, case=case: selftest.prove(Played(), case, "byte", Told(world).test))
        assert all(proof.noticed for proof in proofs), proofs


def wrongly(world: ThreadWorld, case: Case, damage: Any) -> tuple[bool, str]:  # noqa: ANN401
    running = nvlink.make(case, world)
    world.barrier()
    running.run()
    damage(running, world.rank)
    world.barrier()
    outcome = running.check()
    return outcome.ok, outcome.message


def test_bytes_beside_the_target_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    played_link.play(monkeypatch, torch_or_skip())
    case = cases.move("bulk-write", 3 * cases.ROW_BYTES, sms=1)
    size = case.whole("bytes")
    for offset, word in ((-1, "before"), (size, "after")):

        def damage(running: Any, rank: int, offset: int = offset) -> None:  # noqa: ANN401
            if rank == 1:
                running._memory.bytes_tensor()[running._at + offset] ^= 1

        assert on_ranks(2, lambda world, damage=damage: wrongly(world, case, damage)) == [
            (True, ""),
            (False, f"1 of 4096 bytes of the memory {word} the rows differ"),
        ]


def test_a_run_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    played_link.play(monkeypatch, torch_or_skip())
    monkeypatch.setattr(nvlink._Move, "_go", lambda _: None)
    case = cases.move("vector-read", cases.ROW_BYTES, sms=1)
    found = on_ranks(2, lambda world: wrongly(world, case, lambda *_: None))
    assert [ok for ok, _ in found] == [False, False]


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    played_link.play(monkeypatch, torch_or_skip())

    def work(world: ThreadWorld) -> int:
        nvlink.make(cases.move("bulk-write", cases.ROW_BYTES), world).close()
        return len(world.freed)

    assert on_ranks(2, work) == [1, 1]
