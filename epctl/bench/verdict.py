"""A measured time beside what was predicted and what is possible, as one word and why."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.op import Layout

Word = Literal["at-limit", "as-predicted", "faster", "slower", "above-limit", "unrated", "functional", "failed"]
AT_LIMIT = 0.97
"""Share of the limit from which a run is said to reach it: figures of two days differ by less than 3 %."""
ABOVE_LIMIT = 1.03
"""Past it, the limit or the measurement is wrong."""
NEAR = 0.10
"""How far from the prediction a run still is as predicted."""


class Verdict(Struct, frozen=True):
    """The word, and a few more that give its ground."""

    word: Word
    why: str = ""

    @property
    def warns(self) -> bool:
        """Whether somebody should look at it."""
        return self.word in ("slower", "above-limit", "failed")


def functional(layout: Layout) -> str:
    """Why times on this layout say nothing about speed; '' when they do."""
    if layout.tier == "cpu":
        return "no kernel ran: the time says nothing about a GPU"
    if layout.emulated:
        return "emulated nodes: the time says nothing about a network"
    if layout.num_gpus < layout.num_ranks:
        return "several ranks share a GPU, and take turns"
    return ""


def judge(
    measured_us: float, predicted_us: float | None, limit_us: float | None, *, functional_because: str = ""
) -> Verdict:
    """All times in µs, positive. The limit counts first: what reaches it cannot be better, whatever was predicted."""
    if functional_because:
        return Verdict("functional", functional_because)
    share = limit_us / measured_us if limit_us is not None else None
    if share is not None and share > ABOVE_LIMIT:
        return Verdict("above-limit", f"{share:.0%} of the limit: the limit or the measurement is wrong")
    if share is not None and share >= AT_LIMIT:
        return Verdict("at-limit", f"{share:.0%} of the limit")
    if predicted_us is None:
        return Verdict("unrated", "nothing to compare with" if share is None else f"{share:.0%} of the limit")
    ratio = measured_us / predicted_us
    told = f"{ratio:.2f} x the predicted time"
    if ratio > 1 + NEAR:
        return Verdict("slower", told)
    if ratio < 1 - NEAR:
        return Verdict("faster", told)
    return Verdict("as-predicted", told)
