"""The reference of dispatch and combine: against values worked out by hand, and against loops that share nothing with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.ops.ep import reference
from epctl.ops.ep.reference import Received, Returned, Sent, Setting
from epctl.ops.ep.trial import gates
from epctl.ops.ep.trial.compare import same
from epctl.ops.ep.trial.inputs import Turn, sent_by, setting_of
from epctl.ops.ep.trial.loops import Arrived, come_home, place, sources_of, tokens_for
from epctl.ops.ep.trial.options import DTYPES, Options
from tests.support.worlds import torch_or_skip


@pytest.fixture(autouse=True)
def torch() -> Any:  # noqa: ANN401
    return torch_or_skip()


def generators(seed: int) -> Any:  # noqa: ANN401 - torch.Generator
    import torch

    return torch.Generator().manual_seed(seed)


def by_loops(every: list[Sent], setting: Setting, rank: int) -> Received:
    """What the loops make of the inputs of all ranks."""
    import torch

    from epctl.ops.ep.trial.cpu import raw

    chosen = [tokens_for(one.topk_idx.tolist(), setting, rank) for one in every]

    def column(name: str) -> Any:  # noqa: ANN401
        values = [getattr(one, name) for one in every]
        if values[0] is None:
            return None
        values = values if name in ("topk_idx", "weights") else [raw(value) for value in values]
        return [value[index].clone() for value, index in zip(values, chosen, strict=True)]

    tokens = [torch.tensor(index, dtype=torch.int64) for index in chosen]
    arrived = Arrived(column("x"), column("scales"), column("topk_idx"), column("weights"), tokens)
    return place(arrived, every[rank], setting, rank)


OPTIONS = st.builds(
    Options,
    tokens=st.lists(st.integers(0, 9), min_size=3, max_size=3).map(tuple),
    most=st.sampled_from((9, 10, 40)),
    hidden=st.just(128),
    topk=st.sampled_from((1, 2, 5)),
    experts=st.sampled_from((6, 12)),
    dtype=st.sampled_from(DTYPES),
    expand=st.booleans(),
    alignment=st.sampled_from((1, 4, 128)),
    biases=st.integers(0, 2),
    masked=st.sampled_from((0, 40, 100)),
    gate=st.sampled_from(("balanced", "skew:1.5", "one-rank")),
    wide=st.booleans(),
    every_row=st.booleans(),
    weights=st.booleans(),
)


@settings(max_examples=80, deadline=None)
@given(options=OPTIONS, num_ranks=st.sampled_from((1, 2, 3)), seed=st.integers(0, 1 << 20))
def test_dispatch_and_combine_are_what_loops_make_of_them(options: Options, num_ranks: int, seed: int) -> None:
    import torch

    setting = setting_of(options, num_ranks)
    every = [sent_by(options, rank, num_ranks, generators, seed, 0) for rank in range(num_ranks)]
    received = [reference.dispatch(every, setting, rank) for rank in range(num_ranks)]
    looped = [by_loops(every, setting, rank) for rank in range(num_ranks)]
    for mine, other in zip(received, looped, strict=True):
        for name in Received.__struct_fields__:
            assert same(name, getattr(mine, name), getattr(other, name)) == []
    rows = [torch.randn((int(one.x.shape[0]), 128), generator=generators(seed + 1)).bfloat16() for one in received]
    returned = [Returned(one, got.weights, got) for one, got in zip(rows, received, strict=True)]
    home = num_ranks - 1
    num_tokens = options.tokens_of(home)
    biases = tuple(torch.randn((num_tokens, 128), generator=generators(9)).bfloat16() for _ in range(options.biases))
    found = reference.combine(returned, every[home], setting, home, biases, multiple_reduction=not options.every_row)
    backs = [sources_of(one, got, setting, every_row=options.every_row) for one, got in zip(rows, looped, strict=True)]
    chosen = [tokens_for(every[home].topk_idx.tolist(), setting, rank) for rank in range(num_ranks)]
    turn = Turn(every[home], received[home], rows[home], biases, None, None)
    weights = None if not options.weights else [back.weights[home] for back in backs]
    wanted = come_home([back.rows[home] for back in backs], weights, chosen, turn, setting, every_row=options.every_row)
    assert same("combined", *[pair[0] for pair in (found, wanted)]) == []
    assert same("weights", found[1], wanted[1]) == []
    if options.weights:
        assert torch.equal(found[1], every[home].weights * (every[home].topk_idx >= 0))


def test_two_ranks_by_hand() -> None:
    import torch

    setting = Setting(num_ranks=2, num_experts=4, max_tokens=10)
    first = Sent(
        torch.tensor([[1.0], [2.0]]), None, torch.tensor([[0, 3], [1, -1]]), torch.tensor([[0.5, 0.25], [1.0, 9.0]])
    )
    second = Sent(torch.tensor([[3.0]]), None, torch.tensor([[2, 0]]), torch.tensor([[0.1, 0.2]]))
    found = reference.dispatch([first, second], setting, 0)
    assert found.x.tolist() == [[1.0], [2.0], [3.0]]
    assert found.topk_idx.tolist() == [[0, -1], [1, -1], [-1, 0]]
    assert found.weights.tolist() == torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.0, 0.2]]).tolist()
    assert found.metadata[:, 0].tolist() == [0, 1, 10]
    assert found.tokens_per_source.tolist() == [2, 3]
    assert (found.expert_tokens.tolist(), found.expert_sums.tolist()) == ([2, 1], [2, 3])
    other = reference.dispatch([first, second], setting, 1)
    assert (other.x.tolist(), other.topk_idx.tolist()) == ([[1.0], [3.0]], [[-1, 1], [0, -1]])


def test_expanded_groups_begin_at_multiples_of_the_alignment() -> None:
    import torch

    setting = Setting(num_ranks=1, num_experts=3, max_tokens=4, alignment=4, expand=True)
    sent = Sent(
        torch.tensor([[7.0], [8.0]]), None, torch.tensor([[2, 0], [0, -1]]), torch.tensor([[0.5, 0.25], [0.75, 1.0]])
    )
    found = reference.dispatch([sent], setting, 0)
    assert found.x.flatten().tolist() == [7.0, 8.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0]
    assert found.weights.tolist() == [0.25, 0.75, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert found.metadata[:, 2:].tolist() == [[4, 0], [1, -1]]
    assert (found.expert_sums.tolist(), found.expert_tokens.tolist()) == ([2, 4, 5], [2, 0, 1])
    assert found.valid.tolist() == [True, True, False, False, True, False, False, False]


def test_sums_are_rounded_where_the_rows_travel() -> None:
    """BF16 has steps of 2^-7 above 1: 1 + 2^-8 is rounded to 1 before it travels, so that the bias of 2^-8 is lost as well; without
    the rounding on the way, both make a step."""
    import torch

    small = 2.0**-8
    sent = Sent(torch.zeros((1, 1)).bfloat16(), None, torch.tensor([[0, 1]]), None)
    setting = Setting(num_ranks=1, num_experts=2, max_tokens=1, expand=True)
    received = reference.dispatch([sent], setting, 0)
    returned = [Returned(torch.tensor([[1.0], [small]]).bfloat16(), None, received)]
    bias = (torch.tensor([[small]]).bfloat16(),)
    twice, weights = reference.combine(returned, sent, setting, 0, bias)
    once, _ = reference.combine(returned, sent, setting, 0, bias, multiple_reduction=False)
    assert (float(twice), float(once), weights) == (1.0, 1 + 2 * small, None)


def test_a_token_without_a_selection_gives_its_biases() -> None:
    import torch

    sent = Sent(torch.ones((2, 1)).bfloat16(), None, torch.tensor([[-1], [0]]), torch.ones((2, 1)))
    setting = Setting(num_ranks=1, num_experts=1, max_tokens=2)
    received = reference.dispatch([sent], setting, 0)
    bias = torch.tensor([[3.0], [4.0]]).bfloat16()
    found, weights = reference.combine(
        [Returned(received.x, received.weights, received)], sent, setting, 0, (bias, bias)
    )
    assert (found.flatten().tolist(), weights.flatten().tolist()) == ([6.0, 9.0], [0.0, 1.0])


@given(
    kind=st.sampled_from(("balanced", "skew:2", "one-rank")),
    num_topk=st.integers(1, 8),
    num_tokens=st.integers(0, 30),
    seed=st.integers(0, 1 << 20),
)
@settings(deadline=None)
def test_gates_select_distinct_experts(kind: str, num_topk: int, num_tokens: int, seed: int) -> None:
    found = gates.selections(gates.parse(kind), num_tokens, num_topk, 8, 2, generators(seed))
    assert tuple(found.shape) == (num_tokens, num_topk)
    for row in found.tolist():
        assert len(set(row)) == num_topk
        assert all(0 <= expert < 8 for expert in row)
        if kind == "one-rank":
            assert min(num_topk, 4) == sum(expert < 4 for expert in row)


def test_a_skewed_gate_prefers_the_first_experts() -> None:
    import torch

    found = gates.selections(gates.parse("skew:1"), 20_000, 1, 4, 2, generators(3))
    shares = torch.bincount(found.flatten(), minlength=4) / 20_000
    weights = torch.tensor([1, 1 / 2, 1 / 3, 1 / 4])
    assert torch.allclose(shares, weights / weights.sum(), atol=0.015)
