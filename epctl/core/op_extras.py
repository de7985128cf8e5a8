"""What some ops can do beside what every op does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from epctl.core.op import Case, Layout, Tier


@runtime_checkable
class Stressed(Protocol):
    """An Op that can be tried with random shapes."""

    def stress_cases(self, layout: Layout, seed: int, tier: Tier, count: int) -> Sequence[Case]:
        """As many, the same for the same seed; none where the op does not run."""


@runtime_checkable
class Explains(Protocol):
    """An Op that can say why it has no cases on a layout."""

    def absence(self, layout: Layout) -> str:
        """In one line; '' where it has some."""


class Opinion(Struct, frozen=True):
    """What another tool measures on the links that an op used, one way, in Gb/s (1e9 bits/s)."""

    tool: str
    link: str
    nominal_gbps: float
    usable_gbps: float
    """Without packet headers."""
    measured_gbps: float | None
    """None when the tool did not come to an end: `problem` says why."""
    problem: str = ""


@runtime_checkable
class Doubted(Protocol):
    """An Op whose figures another tool can be asked about."""

    def second_opinions(self, layout: Layout) -> tuple[Opinion, ...]:
        """Of this node, within a minute; () where there is no such tool, or nothing to measure. Called on one rank, while the others
        wait."""
