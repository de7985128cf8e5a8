"""Ways to dispatch and combine without GPUs, so that the bench can be tried: functional, and no measure of anything."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import structs

from epctl.core.op import World
from epctl.ops.ep.trial.carried import exchanged
from epctl.ops.ep.trial.contenders import Arrivals, Work
from epctl.ops.ep.trial.cpu import raw
from epctl.ops.ep.trial.loops import Arrived, come_home, place, sources_of, tokens_for

Tensor: TypeAlias = Any
"""torch.Tensor."""


class Loops:
    """See Contender. Loops over tokens, and gloo: what stands for epctl's kernels where there are none."""

    num_sms = 0
    contract = "plain loops over gloo: no kernel ran"

    def __init__(self, world: World, work: Work) -> None:
        self._world, self._work = world, work

    def _chosen(self) -> list[list[int]]:
        picked = self._work.turn.sent.topk_idx.tolist()
        return [tokens_for(picked, self._work.setting, rank) for rank in range(self._world.size)]

    def dispatch(self) -> Any:  # noqa: ANN401 - Received
        """See Contender."""
        world, sent, chosen = self._world, self._work.turn.sent, self._chosen()
        columns = [
            None if value is None else exchanged(world, [value[index] for index in chosen])
            for value in (raw(sent.x), raw(sent.scales), sent.topk_idx, sent.weights)
        ]
        tokens = exchanged(world, [world.torch.tensor(index, dtype=world.torch.int64) for index in chosen])
        arrived = Arrived(columns[0] or [], columns[1], columns[2] or [], columns[3], tokens)
        return place(arrived, sent, self._work.setting, world.rank)

    def replay(self, first: Any) -> Any:  # noqa: ANN401 - Received
        """The same once more."""
        del first
        return self.dispatch()

    def place(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - Received
        """See Contender."""
        del first
        return rows

    def combine(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - Received
        """See Contender."""
        back = sources_of(rows, structs.replace(first, weights=None), self._work.setting, every_row=False)
        homes = exchanged(self._world, back.rows)
        return come_home(homes, None, self._chosen(), self._work.turn, self._work.setting, every_row=False)[0]

    def received(self, result: Any) -> Arrivals:  # noqa: ANN401 - Received
        """See Contender."""
        placed = result.metadata[:, 2:] if self._work.options.expand else None
        return Arrivals(result.x, result.scales, result.metadata[:, 0], placed, result.topk_idx, result.weights)

    def failure(self) -> str:
        """Errors are raised."""
        return ""

    def close(self) -> None:
        """Nothing is held."""


class Torch(Loops):
    """See Contender. Tensors and index_add_ in place of loops."""

    contract = "torch over gloo: no kernel ran"

    def combine(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - Received
        """See Contender."""
        torch, turn, world = self._world.torch, self._work.turn, self._world
        home = first.metadata[:, 0].div(self._work.options.capacity, rounding_mode="floor")
        back = exchanged(world, [rows[home == rank] for rank in range(world.size)])
        sums = torch.zeros((turn.sent.x.shape[0], rows.shape[1]))
        for tokens, part in zip(self._chosen(), back, strict=True):
            sums.index_add_(0, torch.tensor(tokens, dtype=torch.int64), part.float())
        return sums.bfloat16()
