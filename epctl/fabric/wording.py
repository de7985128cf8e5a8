"""How traffics are named in sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Named(Protocol):
    """Anything that is of one phase and traffic."""

    @property
    def phase(self) -> str: ...

    @property
    def traffic(self) -> str: ...


def traffic_name(row: Named) -> str:
    """prefill dispatch; KV."""
    return "KV" if row.traffic == "kv" else f"{row.phase} {row.traffic}"


def listed(names: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def verb(names: Sequence[str], one: str, several: str) -> str:
    """The form that goes with as many names."""
    return one if len(names) == 1 else several
