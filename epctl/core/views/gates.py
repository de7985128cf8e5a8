"""A gate: one condition that must hold before a way of moving traffic is offered."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["open", "closed", "unknown"]


class Gate(Struct, frozen=True):
    """One condition on this node. `text`: the evidence; `fix`: what opens it."""

    name: str
    state: State
    text: str
    fix: str = ""
