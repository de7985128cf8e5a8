"""The self-test and the bench of expert parallelism against a buffer that the reference plays: what they ask for, and what they notice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec import structs

from epctl.bench import selftest
from epctl.bench.selftest import Checked, Proof, Reproduction, Selftest
from epctl.bench.together import Together
from epctl.core.op import Case, Corruption, Outcome, Request
from epctl.core.op import Told as OpTold
from epctl.ops.ep.trial import sweep
from epctl.ops.ep.trial.exchange import Exchange
from epctl.ops.ep.trial.op import EpOp
from epctl.ops.ep.trial.options import BURST, EXCHANGE, FP8, PAIR, Options, case_of
from epctl.ops.ep.trial.repeated import Graph
from tests.support import played_ep
from tests.support.played_ep import Fault, PlayedWorld, damaged, on_ranks, swapped

PLAIN = Options(experts=16)
EXPANDED = Options(experts=16, dtype=FP8, expand=True, alignment=16)


@pytest.fixture(autouse=True)
def play(monkeypatch: pytest.MonkeyPatch) -> None:
    played_ep.play(monkeypatch)


class Played(EpOp):
    """Signals are not lost between threads that meet."""

    def corruptions(self, case: Case) -> tuple[Corruption, ...]:
        return tuple(kind for kind in super().corruptions(case) if kind == "byte")


class Told:
    """What one rank saw."""

    def __init__(self, world: PlayedWorld) -> None:
        self.proofs: list[Proof] = []
        self.cases: list[Checked] = []
        self.test = Selftest(
            world, Together(world.meeting), Reproduction(3, "gpu", 2, None), self.proofs.append, self.cases.append
        )


def played(case: Case) -> bool:
    """What threads get through."""
    return case.params["kind"] in (EXCHANGE, BURST, PAIR) and case.whole("hidden") <= 512


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_cases_of_the_self_test(num_ranks: int) -> None:
    def work(world: PlayedWorld) -> Told:
        told, op = Told(world), Played()
        chosen = tuple(filter(played, op.selftest_cases(world.layout, 3, "gpu")))
        repeated = tuple(case for case in chosen if case.params["kind"] != EXCHANGE)[:2]
        selftest.run((op,), {op.name: (*chosen[:120:5], *repeated)}, told.test)
        return told

    for told in on_ranks(num_ranks, work):
        assert [case for case in told.cases if not case.ok] == []
        assert len(told.cases) == 26
        assert [(proof.kind, proof.noticed) for proof in told.proofs] == [("byte", True)]


@pytest.mark.slow
def test_random_shapes() -> None:
    def work(world: PlayedWorld) -> list[Checked]:
        told, op = Told(world), Played()
        cases = [case for case in op.stress_cases(world.layout, 11, "gpu", 60) if case.whole("hidden") <= 512]
        return [selftest.check(op, case, told.test) for case in cases]

    for cases in on_ranks(2, work):
        assert [(case.case, case.failures) for case in cases if not case.ok] == []
        assert len(cases) > 10


def outcomes(options: Options, fault: Fault | None) -> list[Outcome]:
    """Of all ranks."""

    def work(world: PlayedWorld) -> Outcome:
        world.fault = fault
        running = Exchange(case_of(options, 1, signals=False), world)
        running.run()
        world.barrier()
        found = running.check()
        world.barrier()
        running.close()
        return found

    return on_ranks(2, work)


@pytest.mark.parametrize(
    ("options", "fault", "words"),
    [
        (PLAIN, damaged("x", 3), "x: 1 of"),
        (PLAIN, damaged("topk_idx"), "topk_idx: 1 of"),
        (PLAIN, damaged("weights"), "weights: 1 of"),
        (PLAIN, damaged("metadata"), "metadata: 1 of"),
        (PLAIN, damaged("tokens_per_source"), "sums by rank: 1 of"),
        (PLAIN, damaged("expert_sums"), "sums by expert: 1 of"),
        (PLAIN, damaged("expert_tokens"), "counts by expert"),
        (PLAIN, swapped, "x: 2 of"),
        (EXPANDED, damaged("x", 1), "x: 1 of"),
        (EXPANDED, damaged("scales"), "scales: 1 of"),
        (EXPANDED, damaged("weights"), "weights: 1 of"),
        (EXPANDED, damaged("expert_tokens"), "tokens by expert: 1 of"),
    ],
)
def test_a_wrong_output_is_noticed_and_named(options: Options, fault: Fault, words: str) -> None:
    found = outcomes(options, fault)
    assert not found[0].ok
    assert words in found[0].message or "more outputs" in found[0].message, found[0]


@pytest.mark.parametrize("options", [PLAIN, EXPANDED])
def test_right_outputs_are_right(options: Options) -> None:
    assert outcomes(options, None) == [Outcome(ok=True)] * 2


@pytest.mark.parametrize(
    "options", [PLAIN, EXPANDED, structs.replace(EXPANDED, every_row=True), structs.replace(PLAIN, biases=2)]
)
def test_every_damaged_output_is_noticed(options: Options) -> None:
    def work(world: PlayedWorld) -> list[Outcome]:
        running = Exchange(case_of(options, 1, signals=False), world)
        found = []
        for damages in (False, True, False):
            if damages:
                running.corrupt("byte")
            running.run()
            world.barrier()
            found.append(running.check())
            world.barrier()
        return found

    for before, during, after in on_ranks(2, work):
        assert (before.ok, during.ok, after.ok) == (True, False, True), during


def test_bench_cases_are_checked_and_tell_their_bytes() -> None:
    def work(world: PlayedWorld) -> list[tuple[str, int, int, int]]:
        op, found = EpOp(), []
        more = {"tokens": "32", "hidden": "256", "experts": "16", "topk": "4"}
        for case in op.cases(Request(sms=(24,), more=more), world.layout):
            if case.params["place"] == "graph":
                continue
            running = op.make(case, world)
            running.run()
            world.barrier()
            assert running.check() == Outcome(ok=True), case.name
            world.barrier()
            told = running.told()  # type: ignore[attr-defined]
            running.close()
            found.append((case.name, told.num_sms, told.traffic.busiest_bytes(), told.logical_bytes))
        return found

    first, second = on_ranks(2, work)
    names = [name for name, *_ in first]
    assert names[:2] == ["dispatch/fp8/32/24-sms", "dispatch/fp8/32/24-sms/copying"]
    assert names[-1] == "combine/bf16/32/24-sms"
    for one, other in zip(first, second, strict=True):
        assert one[1] == other[1] == 24
        row = 256 + 8 if "/fp8/" in one[0] else 512
        # Each of 32 tokens reaches both ranks but for a few; each rank is given its own, too.
        assert 24 * row <= one[2] <= 32 * row
        assert 48 * row <= one[3] <= 64 * row
        assert one[2] == other[2]  # what one rank sends, the other gets


class PlayedGraph(Graph):
    """A replay makes the calls again, with what the captured memory holds then."""

    def _capture(self) -> None:
        self._graph = SimpleNamespace(replay=self._again)

    def _again(self) -> None:
        self._out = self._step()


def graph_outcomes(fault: Fault | None) -> list[Outcome]:
    """Of all ranks, after 20 steps."""
    options = Options(experts=16, tokens=(40, 9), kind="graph", repeats=20, masked=30, sync=False)

    def work(world: PlayedWorld) -> Outcome:
        world.fault = fault
        running = PlayedGraph(case_of(options, 1, signals=False), world)
        running.run()
        world.barrier()
        found = running.check()
        running.close()
        return found

    return on_ranks(2, work)


def test_every_step_of_a_graph_is_checked() -> None:
    assert graph_outcomes(None) == [Outcome(ok=True)] * 2
    wrong = graph_outcomes(damaged("x", 2))
    # What rank 0 received wrongly went home to rank 0 from itself, or to rank 1.
    assert "20 of 20 replayed steps are wrong" in {one.message for one in wrong}
    assert graph_outcomes(damaged("topk_idx"))[0].message.startswith("last step topk_idx: 1 of")


def test_waits_and_overlap_are_told() -> None:
    def work(world: PlayedWorld) -> list[tuple[str, Outcome, OpTold]]:
        op, found = EpOp(), []
        more = {"tokens": "32", "hidden": "256", "experts": "16", "topk": "4", "waits": "yes", "overlap": "yes"}
        for case in op.cases(Request(more=more), world.layout):
            if not (case.params["waits"] or case.params["overlap"]):
                continue
            running = op.make(case, world)
            running.run()
            world.barrier()
            outcome = running.check()
            world.barrier()
            found.append((case.name, outcome, running.told()))  # type: ignore[attr-defined]
        return found

    for name, outcome, told in on_ranks(2, work)[0]:
        assert outcome == Outcome(ok=True), name
        if name.endswith("overlap"):
            assert min(told.communication_us, told.computation_us, told.together_us) > 0
            assert "products" in told.note
        else:
            assert len(told.waited_us) == 2


def test_a_product_that_is_wrong_beside_a_call_is_noticed() -> None:
    def work(world: PlayedWorld) -> Outcome:
        op = EpOp()
        more = {"tokens": "32", "hidden": "256", "experts": "16", "topk": "4", "dtype": "bf16", "overlap": "yes"}
        case = next(case for case in op.cases(Request(more=more), world.layout) if case.params["overlap"])
        running = op.make(case, world)
        running.run()
        world.barrier()
        running._product[0, 0] += 64  # type: ignore[attr-defined]
        return running.check()

    assert on_ranks(2, work)[1].message == "product: 1 of 128 rows differ"


def test_stress_cases_repeat_by_their_seed() -> None:
    where = on_ranks(1, lambda world: world.layout)[0]
    first, again, other = (sweep.stress_cases(where, seed, "gpu", 30) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({case.name for case in first}) == 30
