"""What was timed, against the reference: rows in any order, sums exactly or to one rounding."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.ops.ep.trial.compare import Difference, equal, raw, same
from epctl.ops.ep.trial.contenders import Arrivals, Work

Tensor: TypeAlias = Any
"""torch.Tensor."""
ROUNDING = 2.0**-7
"""Of a BF16 sum, relative to its addends: those who add in another order, or round more than once, may differ by so much."""


def arrived(got: Arrivals, work: Work, *, exact: bool) -> list[Difference]:
    """Rows, scales and (exactly) order, indices and weights."""
    wanted = work.turn.received
    sources = wanted.metadata[:, 0].long()
    order = got.sources.long().argsort(stable=True)
    found = equal("tokens", int(got.sources.shape[0]), int(sources.shape[0]))
    found += found or same("sources", got.sources.long()[order][:, None], sources[:, None])
    if found:
        return found
    theirs, ours = _rows(got.placed, order), _rows(wanted.metadata[:, 2:] if work.options.expand else None, None)
    if exact:
        found += same("order of rows", got.sources.long()[:, None], sources[:, None])
        found += same("topk_idx", got.topk_idx, wanted.topk_idx)
        found += same("weights", _taken(got.weights, theirs), _taken(wanted.weights, ours))
    for what, mine, expected in (("x", got.x, wanted.x), ("scales", got.scales, wanted.scales)):
        if mine is not None and expected is not None:
            found += same(what, _taken(mine, theirs if theirs is not None else order), _taken(expected, ours))
    return found


def _rows(placed: Tensor, order: Tensor) -> Tensor:
    """Rows of an expanded output, token by token and selection by selection; None where each token has one row."""
    if placed is None:
        return None
    chosen = placed.long() if order is None else placed.long()[order]
    return chosen[chosen >= 0]


def _taken(value: Tensor, rows: Tensor) -> Tensor:
    """Bytes of these rows; of all for None."""
    found = raw(value)
    return found if rows is None else found[rows]


def in_order_of(got: Arrivals, work: Work) -> Tensor:
    """The rows that combine is to be given, in the order of `got` instead of the reference's."""
    import torch

    rows, wanted = work.turn.rows, work.turn.received
    order = got.sources.long().argsort(stable=True)
    if not work.options.expand:
        placed = torch.empty_like(rows)
        placed[order] = rows
        return placed
    theirs, ours = _rows(got.placed, order), _rows(wanted.metadata[:, 2:], None)
    placed = torch.zeros((got.x.shape[0], rows.shape[1]), dtype=rows.dtype, device=rows.device)
    placed[theirs] = rows[ours]
    return placed


def home(combined: Tensor, work: Work, *, exact: bool) -> list[Difference]:
    """Sums on the tokens' home rank."""
    wanted = work.turn.combined
    if exact or combined.shape != wanted.shape:
        return same("combined", combined, wanted)
    # Addends are of a normal distribution, so that their size is about 1, and there are as many as selections at most.
    far = (combined.float() - wanted.float()).abs() > ROUNDING * (wanted.float().abs() + work.options.topk)
    if not bool(far.any()):
        return []
    row = int(far.any(1).nonzero()[0])
    return [
        Difference(
            "combined",
            "",
            f"{int(far.any(1).sum())} of {far.shape[0]} rows differ by more than a rounding",
            f"row {row}",
        )
    ]
