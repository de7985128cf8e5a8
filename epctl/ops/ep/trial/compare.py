"""Comparisons with the reference, bit by bit, and one outcome of many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from msgspec import Struct

from epctl.core.op import Outcome

Tensor: TypeAlias = Any
"""torch.Tensor."""
SHOWN = 3
"""Differences that a message tells; the number of others follows."""
STALE = 0xA5
"""Bytes of results after they were checked: what the next run leaves out is seen."""


class Difference(Struct, frozen=True):
    """One output that is not what it must be."""

    what: str
    """x, scales, topk_idx, …: without the turn."""
    turn: str
    told: str
    where: str = ""


def same(what: str, found: Any, wanted: Any, turn: str = "") -> list[Difference]:  # noqa: ANN401 - tensor or None
    """Empty when equal in shape, dtype and every bit."""
    if found is None or wanted is None:
        if found is wanted:
            return []
        return [Difference(what, turn, f"is {_kind(found)} and should be {_kind(wanted)}")]
    if tuple(found.shape) != tuple(wanted.shape) or found.dtype != wanted.dtype:
        return [Difference(what, turn, f"is {_kind(found)} and should be {_kind(wanted)}")]
    if found.numel() == 0:
        return []
    left, right = raw(found), raw(wanted)
    unequal = left != right
    rows = unequal.any(1).nonzero().flatten()
    if not rows.numel():
        return []
    row = int(rows[0])
    at = int(unequal[row].nonzero().flatten()[0])
    where = f"row {row}, byte {at} is 0x{int(left[row, at]):02x} and should be 0x{int(right[row, at]):02x}"
    return [Difference(what, turn, f"{rows.numel()} of {left.shape[0]} rows differ", where)]


def equal(what: str, found: object, wanted: object, turn: str = "") -> list[Difference]:
    """The same for numbers and lists."""
    return [] if found == wanted else [Difference(what, turn, f"is {found} and should be {wanted}")]


def _kind(value: Any) -> str:  # noqa: ANN401
    return "nothing" if value is None else f"{value.dtype} {list(value.shape)}"


def raw(value: Tensor) -> Tensor:
    """uint8 [rows, bytes of a row]."""
    import torch

    plain = value if _is_plain(value) else value.clone(memory_format=torch.contiguous_format)
    return plain.view(-1).view(torch.uint8).view(value.shape[0], -1)


def _is_plain(value: Tensor) -> bool:
    """Whether it can be seen as bytes: a dimension of one element counts as contiguous with any stride."""
    return bool(value.is_contiguous()) and value.stride(-1) == 1


def outcome(found: Iterable[Difference]) -> Outcome:
    """All of them in one line, and where the first is."""
    every = list(found)
    if not every:
        return Outcome(ok=True)
    told = [f"{one.turn} {one.what}: {one.told}".strip() for one in every[:SHOWN]]
    more = f"; {len(every) - SHOWN} more outputs differ" if len(every) > SHOWN else ""
    return Outcome(
        ok=False, message="; ".join(told) + more, first_difference=next((one.where for one in every if one.where), "")
    )


def outcome_of_damage(found: Iterable[Difference], damaged: set[str]) -> Outcome:
    """Of a run that was damaged on purpose: not well only where every damaged output was noticed, so that a check which is blind for
    one of them is not taken for proved by the others."""
    every = list(found)
    missed = damaged - {one.what for one in every}
    if missed or not damaged:
        return Outcome(ok=True, message=f"not noticed: {', '.join(sorted(missed)) or 'nothing was damaged here'}")
    return outcome(every)


def poison(*tensors: Any) -> None:  # noqa: ANN401 - tensors or None
    """Old results must not pass for new ones."""
    import torch

    for one in tensors:
        if one is not None and one.numel() and _is_plain(one):
            one.view(-1).view(torch.uint8).fill_(STALE)
        elif one is not None:
            one.fill_(-1)
