"""The expert-parallel op without a GPU: rows that go through gloo, placed and added by loops, against the reference. No kernel runs."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import structs

from epctl.core.op import Case, Corruption, Outcome, World
from epctl.ops.ep import reference
from epctl.ops.ep.reference import Received, Returned, Sent
from epctl.ops.ep.trial import compare
from epctl.ops.ep.trial.carried import exchanged, gathered
from epctl.ops.ep.trial.compare import Difference, same
from epctl.ops.ep.trial.damage import damaged_turn
from epctl.ops.ep.trial.inputs import Turn, setting_of, turn_of
from epctl.ops.ep.trial.loops import Arrived, come_home, place, sources_of, tokens_for
from epctl.ops.ep.trial.options import options_of

Tensor: TypeAlias = Any
"""torch.Tensor."""
NUM_TURNS = 2


class CpuExchange:
    """See Running of epctl.core.op. Each turn is a dispatch and a combine; the second one has new data on the same routing."""

    def __init__(self, case: Case, world: World) -> None:
        self._world, self._options = world, options_of(case)
        self._setting = setting_of(self._options, world.size)
        seed = case.whole("seed")
        self._turns = [
            turn_of(self._options, world.rank, world.size, world.generator, seed, turn, cancelling=True)
            for turn in range(NUM_TURNS)
        ]
        self._got: list[tuple[Received, Tensor, Tensor]] = []
        self._damages = False
        self._damaged: set[str] = set()

    def run(self) -> None:
        """Both turns, over gloo."""
        self._got = []
        for turn in self._turns:
            used = turn
            if self._damages:
                used, names = damaged_turn(turn, self._options, self._world.rank, self._world.size)
                self._damaged |= names
            self._got.append(self._exchange(used))

    def _exchange(self, turn: Turn) -> tuple[Received, Tensor, Tensor]:
        world, setting, options = self._world, self._setting, self._options
        sent = turn.sent
        chosen = [tokens_for(sent.topk_idx.tolist(), setting, rank) for rank in range(world.size)]
        columns = [
            None if value is None else exchanged(world, [value[index] for index in chosen])
            for value in (raw(sent.x), raw(sent.scales), sent.topk_idx, sent.weights)
        ]
        sources = exchanged(world, [world.torch.tensor(index, dtype=world.torch.int64) for index in chosen])
        found = place(
            Arrived(columns[0] or [], columns[1], columns[2] or [], columns[3], sources), sent, setting, world.rank
        )
        back = sources_of(turn.rows, found, setting, every_row=options.every_row)
        homes = exchanged(world, back.rows)
        weights = None if found.weights is None else exchanged(world, back.weights)
        return (found, *come_home(homes, weights, chosen, turn, setting, every_row=options.every_row))

    def check(self) -> Outcome:
        """Against the reference, which gets the inputs of all ranks over gloo."""
        damaged, self._damaged = self._damaged, set()
        damages, self._damages = self._damages, False
        found: list[Difference] = []
        for number, (turn, got) in enumerate(zip(self._turns, self._got, strict=True)):
            found += self._differences(turn, got, "cached" if number else "")
        self._got = []
        return compare.outcome_of_damage(found, damaged) if damages else compare.outcome(found)

    def _differences(self, turn: Turn, got: tuple[Received, Tensor, Tensor], label: str) -> list[Difference]:
        world, setting, options = self._world, self._setting, self._options
        every = [
            Sent(*columns)
            for columns in zip(*(gathered(world, one) for one in structs.astuple(turn.sent)), strict=True)
        ]
        wanted = [reference.dispatch(every, setting, rank) for rank in range(world.size)]
        rows = gathered(world, turn.rows)
        returned = [Returned(mine, one.weights, one) for mine, one in zip(rows, wanted, strict=True)]
        combined, weights = reference.combine(
            returned, turn.sent, setting, world.rank, turn.biases, multiple_reduction=not options.every_row
        )
        received, home, home_weights = got
        names = ("x", "scales", "topk_idx", "weights", "metadata", "tokens_per_source", "expert_sums", "expert_tokens")
        found = []
        for name in names:
            found += same(name, getattr(received, name), getattr(wanted[world.rank], name), label)
        return [
            *found,
            *same("combined", home, combined, label),
            *same("combined weights", home_weights, weights, label),
        ]

    def corrupt(self, kind: Corruption) -> None:
        """See Running."""
        if kind != "byte":
            raise ValueError(kind)
        self._damages = True

    def measured_us(self) -> float | None:
        """See Running."""
        return None

    def close(self) -> None:
        """Nothing is held."""


def raw(value: Tensor) -> Tensor:
    """Bytes by row: gloo carries no FP8, and not every dtype can be indexed."""
    import torch

    if value is None:
        return None
    if not value.numel():
        return torch.zeros((value.shape[0], value.shape[1] * value.element_size()), dtype=torch.uint8)
    return value.contiguous().view(torch.uint8).view(value.shape[0], -1)
