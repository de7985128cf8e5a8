"""Prompt lengths of a batch: one for all, one each, or drawn."""

from __future__ import annotations

import random
import re

from msgspec import Struct

from epctl.model.refusal import RefusalError

MAX_LENGTH = 1 << 22
MAX_BATCH = 1 << 22
_EVEN = re.compile(r"(\d{1,7})(?:\+-(\d{1,2}|100)%)?")


class Lengths(Struct, frozen=True):
    """What --lengths says."""

    given: tuple[int, ...]
    spread: int = 0
    """Percent around the one length, uniformly."""

    def of(self, batch: int, seed: int) -> tuple[int, ...]:
        """Tokens of every request."""
        if len(self.given) > 1:
            return self.given
        (length,) = self.given
        if not self.spread:
            return (length,) * batch
        # Not the seed of the gate, so that lengths and picks are independent.
        draw = random.Random((seed << 4) | 9).uniform  # noqa: S311
        share = self.spread / 100
        return tuple(max(1, round(length * draw(1 - share, 1 + share))) for _ in range(batch))


def lengths_of(text: str, batch: int | None) -> tuple[Lengths, int]:
    """From `82`, `82+-50%` (uniform) or `82,120,31,…`, and the number of requests. Raises RefusalError lengths_invalid."""
    even = _EVEN.fullmatch(text.strip())
    if even is not None:
        found = Lengths((_length(even[1]),), int(even[2] or 0))
        count = 32 if batch is None else batch
    else:
        found = Lengths(tuple(_length(part.strip()) for part in text.split(",")))
        count = len(found.given) if batch is None else batch
        if len(found.given) != count:
            what = f"--lengths has {len(found.given)} entries for a batch of {count}"
            raise RefusalError("lengths_invalid", what, "there is one a request", f"give --batch {len(found.given)}")
    if not 1 <= count <= MAX_BATCH:
        raise RefusalError(
            "lengths_invalid", f"--batch is {count}", f"1 to {MAX_BATCH} requests are taken", "give --batch 32"
        )
    return found, count


def _length(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,8}", text) and 1 <= int(text) <= MAX_LENGTH:
        return int(text)
    why = f"a length is 1 to {MAX_LENGTH} tokens; they are given as 82, 82+-50% or 82,120,31"
    raise RefusalError("lengths_invalid", f"--lengths has {text[:20]!r}", why, "give --lengths 82")
