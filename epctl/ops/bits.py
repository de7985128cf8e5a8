"""Bytes against what they should be, for the checks of ops."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.core.op import Outcome

Tensor: TypeAlias = Any
"""torch.Tensor."""


def compare(found: Tensor, wanted: Tensor, what: str) -> Outcome:
    """uint8 tensors of one shape, bit by bit; `what` names them in the message."""
    same = found == wanted
    if bool(same.all()):
        return Outcome(ok=True)
    wrong = (~same).nonzero().flatten()
    first = int(wrong[0])
    return Outcome(
        ok=False,
        message=f"{wrong.numel()} of {same.numel()} bytes of {what} differ",
        first_difference=f"byte {first} is 0x{int(found[first]):02x} and should be 0x{int(wanted[first]):02x}",
    )
