"""What everyone who does the same dispatch and combine offers to the bench."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from epctl.ops.ep.reference import Setting
from epctl.ops.ep.trial.inputs import Turn
from epctl.ops.ep.trial.options import Options

Tensor: TypeAlias = Any
"""torch.Tensor."""


class Work(Struct, frozen=True):
    """What is to be done, the same for all: inputs of this rank, and what must come of them."""

    options: Options
    setting: Setting
    turn: Turn


class Arrivals(Struct, frozen=True):
    """What a dispatch gave, in its own order. N tokens, `rows` of the output."""

    x: Any
    scales: Any
    sources: Any
    """int [N]: rank × num_max_tokens_per_rank + token."""
    placed: Any = None
    """Expanded: int [N, K], rows of each selection, −1 where none."""
    topk_idx: Any = None
    weights: Any = None


class Contender(Protocol):
    """One way to do it. Calls are collective, and enqueue on the current stream."""

    num_sms: int
    """0 where it has none of its own."""
    contract: str
    """What its caller gets, in words."""

    def dispatch(self) -> Any:  # noqa: ANN401 - its own
        """The first time: counts are not known."""

    def replay(self, first: Any) -> Any:  # noqa: ANN401 - its own
        """The same routing again."""

    def place(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - its own
        """BF16 rows, in the order of `first`, where combine takes them from."""

    def combine(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - its own
        """BF16 [T, H]."""

    def received(self, result: Any) -> Arrivals:  # noqa: ANN401 - its own
        """What a dispatch or a replay gave."""

    def failure(self) -> str:
        """What went wrong on the device; '' when nothing did."""

    def close(self) -> None:
        """Gives everything back. Collective."""
