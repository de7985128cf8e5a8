"""The expert-parallel kernels as they stand in native/, run on the CPU (tests/simt), against the reference: all that EPBuffer does, on
more ranks than there are GPUs here. What is not seen this way is told in tests/simt/simt.hpp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from epctl.bench import selftest
from epctl.bench.selftest import Checked, Proof, Reproduction, Selftest
from epctl.bench.together import Together
from epctl.core.op import Case
from epctl.ops.ep import EPBuffer
from epctl.ops.ep.trial.op import EpOp
from epctl.ops.ep.trial.options import BURST, EXCHANGE
from tests.support import simt
from tests.support.simt import SimtWorld, on_ranks

SEED = 7
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simt")


@pytest.fixture(autouse=True)
def play(monkeypatch: pytest.MonkeyPatch) -> None:
    simt.play(monkeypatch)


def fits(case: Case) -> bool:
    """What fibers get through: streams at the same time and graphs they have not, nor many SMs."""
    return (
        case.params["kind"] in (EXCHANGE, BURST)
        and case.whole("hidden") <= 512
        and case.whole("sms") <= simt.NUM_SMS
        and (case.params["kind"] == EXCHANGE or case.whole("hidden") * max_tokens(case) <= 512 * 64)
    )


def max_tokens(case: Case) -> int:
    return max(int(word) for word in str(case.params["tokens"]).split("+"))


class Told:
    """What one rank saw."""

    def __init__(self, world: SimtWorld) -> None:
        self.proofs: list[Proof] = []
        self.cases: list[Checked] = []
        self.test = Selftest(
            world,
            Together(world.meeting),
            Reproduction(SEED, "gpu", world.size, None),
            self.proofs.append,
            self.cases.append,
        )


def test_cases_of_the_self_test_pass_and_damage_is_noticed(folder: Path) -> None:
    def work(world: SimtWorld) -> Told:
        told, op = Told(world), EpOp()
        chosen = tuple(filter(fits, op.selftest_cases(world.layout, SEED, "gpu")))
        bursts = tuple(case for case in chosen if case.params["kind"] == BURST)
        single = tuple(case for case in chosen if case.params["kind"] == EXCHANGE)
        selftest.run((op,), {op.name: (*single[:3], *single[3::5], *bursts)}, told.test)
        return told

    for told in on_ranks(folder, 2, work):
        assert [(case.case, case.failures) for case in told.cases if not case.ok] == []
        assert len(told.cases) > 25
        assert sum(case.case.startswith("burst") for case in told.cases) >= 3
        assert [(proof.kind, proof.noticed) for proof in told.proofs] == [("byte", True), ("signal", True)]


@pytest.mark.parametrize(("num_ranks", "num_cases"), [(1, 15), (3, 25), (5, 15)])
def test_random_shapes(folder: Path, num_ranks: int, num_cases: int) -> None:
    def work(world: SimtWorld) -> list[Checked]:
        told, op = Told(world), EpOp()
        cases = [case for case in op.stress_cases(world.layout, SEED, "gpu", 200) if fits(case)]
        return [selftest.check(op, case, told.test) for case in cases[:num_cases]]

    for cases in on_ranks(folder, num_ranks, work):
        assert [(case.case, case.failures) for case in cases if not case.ok] == []
        assert len(cases) == num_cases


def routed(world: SimtWorld, num_tokens: int, hidden: int, num_experts: int, topk: int) -> tuple[Any, Any, Any]:
    """(x, topk_idx, topk_weights) of this rank. x tells rank and token in its first two numbers."""
    torch = world.torch
    generator = torch.Generator().manual_seed(SEED + world.rank)
    x = torch.randn((num_tokens, hidden), generator=generator).bfloat16()
    x[:, 0], x[:, 1] = float(world.rank), torch.arange(num_tokens).bfloat16()
    topk_idx = torch.rand((num_tokens, num_experts), generator=generator).topk(topk).indices
    return x, topk_idx, torch.rand((num_tokens, topk), generator=generator)


def test_many_ranks_with_few_tokens(folder: Path) -> None:
    """More cells of tokens than a warp has lanes, and more ranks than bits in a word: blocks learn together what comes."""
    num_ranks, num_tokens, hidden, topk = 34, 40, 128, 4

    def work(world: SimtWorld) -> None:
        torch = world.torch
        buffer = EPBuffer(None, None, num_tokens, hidden, topk, domain=world.comm)
        x, topk_idx, weights = routed(world, num_tokens - world.rank % 3, hidden, 2 * num_ranks, topk)
        got, local, _, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=2 * num_ranks, num_sms=2)
        sources = handle.recv_src_metadata[:, 0]
        assert torch.equal(got[:, 0].long(), sources // num_tokens)
        assert torch.equal(got[:, 1].long(), sources % num_tokens)
        assert bool((sources[1:] > sources[:-1]).all())
        assert bool(((local == -1) | (local < 2)).all())
        assert bool((local >= 0).any(1).all())
        combined, combined_weights, _ = buffer.combine(
            got, handle, weights[:0].new_zeros((got.shape[0], topk)), num_sms=2
        )
        copies = torch.stack([(topk_idx // 2 == rank).any(1) for rank in range(num_ranks)]).sum(0)
        assert torch.equal(combined, (x.float() * copies[:, None]).bfloat16())
        assert not bool(combined_weights.any())
        world.meeting.arrive()

    on_ranks(folder, num_ranks, work)


@pytest.mark.parametrize("num_tokens", [16, 300])
def test_calls_of_one_kind_in_a_row_keep_apart_when_ranks_get_ahead(folder: Path, num_tokens: int) -> None:
    """A rank that is one call ahead writes while others still read what it sent before. Every other call has another routing, in which
    many tokens stay where they are."""
    num_calls, num_ranks, topk = 12, 3, 4

    def work(world: SimtWorld) -> None:
        torch = world.torch
        buffer = EPBuffer(None, None, num_tokens, 128, topk, domain=world.comm, zero_copy=False)
        x, topk_idx, weights = routed(world, num_tokens - world.rank, 128, 15, topk)
        few = torch.where(torch.arange(topk_idx.shape[0])[:, None] % 3 == 0, topk_idx, -1)
        firsts = [buffer.dispatch(x, chosen, weights, num_experts=15) for chosen in (topk_idx, few)]
        got = [buffer.dispatch(x + call, handle=firsts[call % 2][3])[0] for call in range(num_calls)]
        for call, found in enumerate(got):
            wrong = (found != firsts[call % 2][0] + call).any(1).sum()
            assert int(wrong) == 0, (call, int(wrong))
        back = []
        for call in range(num_calls):
            rows, _, _, handle, _ = firsts[call % 2]
            back.append(buffer.combine(rows + call, handle, weights.new_full((rows.shape[0], topk), call))[:2])
        for call, (combined, combined_weights) in enumerate(back):
            chosen = (topk_idx, few)[call % 2]
            copies = torch.stack([((chosen // 5 == rank) & (chosen >= 0)).any(1) for rank in range(num_ranks)]).sum(0)
            assert torch.equal(combined, ((x + call).float() * copies[:, None]).bfloat16()), call
            assert torch.equal(combined_weights, torch.where(chosen >= 0, float(call), 0.0)), call

    with simt.uneven(folder, 512, 400):
        on_ranks(folder, num_ranks, work)


def test_rows_that_travel_one_by_one_stay_until_all_have_read_them(folder: Path) -> None:
    num_calls, num_ranks, topk = 8, 3, 4

    def work(world: SimtWorld) -> None:
        torch = world.torch
        buffer = EPBuffer(None, None, 40, 128, topk, domain=world.comm, allow_multiple_reduction=False)
        x, topk_idx, weights = routed(world, 40, 128, 15, topk)
        rows, _, row_weights, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=15, do_expand=True)
        back = [buffer.combine(rows + call, handle, row_weights)[0] for call in range(num_calls)]
        for call, combined in enumerate(back):
            assert torch.equal(combined, ((x + call).float() * topk).bfloat16()), call

    with simt.uneven(folder, 512, 400):
        on_ranks(folder, num_ranks, work)


@pytest.mark.parametrize("num_tokens", [16, 300])
def test_what_follows_a_wait_that_gave_up_reads_nothing_that_nobody_has_written(folder: Path, num_tokens: int) -> None:
    """Kernels that were launched behind it run all the same."""

    def work(world: SimtWorld) -> None:
        world.comm.timeout_s = 0.3
        buffer = EPBuffer(None, None, num_tokens, 128, 4, domain=world.comm)
        told = None
        if world.rank == 0:
            x, topk_idx, weights = routed(world, num_tokens, 128, 16, 4)
            got, _, got_weights, handle, _ = buffer.dispatch(x, topk_idx, weights, num_experts=16, do_cpu_sync=False)
            for value in (handle.recv_src_metadata, handle.routes, handle.psum_num_recv_tokens_per_scaleup_rank):
                value.fill_(2**30)
            told = world.comm.timeout()
            world.comm.check = lambda: None  # as if both calls had been made before the first wait gave up
            buffer.combine(got, handle, got_weights)
            buffer.dispatch(x, topk_idx, weights, num_experts=16, do_cpu_sync=False)
            assert world.comm.timeout() == told
        world.meeting.arrive()
        if told is not None:
            assert (told.waiter, told.peer) == (0, 1)
            assert re.match(r"rank 0 waited 0\.\d+ s for rank 1's count signal in dispatch", str(told))

    on_ranks(folder, 2, work)


def test_waits_are_told_by_rank(folder: Path) -> None:
    """Each lane tells when its own wait ended, also where a warp goes on together."""
    import time

    num_ranks, late_s = 3, 0.8

    def work(world: SimtWorld) -> list[list[float]]:
        torch = world.torch
        found = []
        for num_tokens in (16, 300):
            buffer = EPBuffer(None, None, num_tokens, 128, 4, domain=world.comm)
            x, topk_idx, weights = routed(world, num_tokens, 128, 15, 4)
            buffer.dispatch(x, topk_idx, weights, num_experts=15)
            waited = torch.zeros((2, num_ranks), dtype=torch.int64)
            world.meeting.arrive()
            time.sleep(late_s if world.rank == 2 else 0)
            got, _, got_weights, handle, _ = buffer.dispatch(
                x, topk_idx, weights, num_experts=15, do_cpu_sync=True, waited_ns=waited[0]
            )
            world.meeting.arrive()
            time.sleep(late_s if world.rank == 2 else 0)
            buffer.combine(got, handle, got_weights, waited_ns=waited[1])
            found += (waited / 1e9).tolist()
        return found

    first, second, late = on_ranks(folder, num_ranks, work)
    for rank in (first, second):
        for few_or_many, waited in enumerate(rank):
            assert late_s / 2 < waited[2] < 3 * late_s, (few_or_many, rank)
    for by_peer in first[:2] + second[:2]:  # few tokens: each peer by itself
        assert max(by_peer[:2]) < late_s / 2
    assert max(max(waited) for waited in late) < late_s / 2
