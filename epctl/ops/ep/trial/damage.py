"""Wrong bytes in what a rank sends, so that its neighbour and itself must notice."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import structs

from epctl.ops.ep.reference import goes_to
from epctl.ops.ep.trial.inputs import Turn, setting_of
from epctl.ops.ep.trial.options import Options

Tensor: TypeAlias = Any
"""torch.Tensor."""
WRONG_BIT = 0x80
"""In the upper byte of a BF16 or float32 value it is the sign, which no rounding hides."""


def damaged_turn(turn: Turn, options: Options, rank: int, num_ranks: int) -> tuple[Turn, set[str]]:
    """(the turn with wrong bytes, names of the outputs that must be wrong on some rank or other when all ranks do this): in one row, its
    scales and a weight for the next rank, and in one row that goes home to it."""
    target = (rank + 1) % num_ranks
    sent, names = turn.sent, {"x", "combined"}
    picks = goes_to(sent.topk_idx, setting_of(options, num_ranks), target)
    token = int(picks.any(1).nonzero()[0])
    column = int(picks[token].nonzero()[0])
    changes: dict[str, Any] = {"x": _flipped(sent.x, token, int(sent.x.shape[1]) // 2)}
    if sent.scales is not None:
        changes["scales"] = _flipped(sent.scales, token, int(sent.scales.shape[1]) - 1)
        names.add("scales")
    if sent.weights is not None:
        changes["weights"] = _flipped(sent.weights, token, column)
        names |= {"weights", "combined weights"}
    row = _row_from(turn, options, target)
    largest = int(turn.rows[row].float().abs().argmax())
    rows = _flipped(turn.rows, row, largest)
    return structs.replace(turn, sent=structs.replace(sent, **changes), rows=rows), names


def _row_from(turn: Turn, options: Options, source: int) -> int:
    """A row of combine's input that goes to `source`."""
    metadata = turn.received.metadata
    index = int((metadata[:, 0] // options.capacity == source).nonzero()[0])
    if not options.expand:
        return index
    placed = metadata[index, 2:]
    return int(placed[placed >= 0][0])


def _flipped(value: Tensor, row: int, column: int) -> Tensor:
    """A copy with the upper bit of one element turned over."""
    import torch

    copy = value.clone()
    size = copy.element_size()
    raw = copy.view(torch.uint8).view(copy.shape[0], -1)
    raw[row, column * size + size - 1] ^= WRONG_BIT
    return copy
