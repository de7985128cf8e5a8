"""What ranks do in step: each tells what it found, and a failure of one is known to all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.op import Meeting

T = TypeVar("T")
EXPECTED = (EpctlError, RuntimeError, ValueError, OSError)
"""How kernels, PyTorch and ops fail; anything else is a mistake in epctl and ends the run with a traceback."""


class RankFailure(Struct, frozen=True):
    """What went wrong on one rank."""

    rank: int
    message: str


class FailedError(Exception):
    """Some ranks failed in a step; raised on all of them."""

    def __init__(self, what: str, failures: tuple[RankFailure, ...]) -> None:
        self.what = what
        self.failures = failures
        super().__init__(f"{what}: {told(failures)}")


def told(failures: tuple[RankFailure, ...]) -> str:
    """`rank 0: …; ranks 1, 3: …`: the same message once, and the rank once where the message begins with it."""
    found: dict[str, list[int]] = {}
    for failure in failures:
        found.setdefault(failure.message, []).append(failure.rank)
    return "; ".join(
        message if message.startswith(f"{_ranks(those)} ") else f"{_ranks(those)}: {message}"
        for message, those in found.items()
    )


def _ranks(those: list[int]) -> str:
    return f"{'rank' if len(those) == 1 else 'ranks'} {', '.join(map(str, those))}"


def words(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, EpctlError):
        return f"{error.what} ({error.why})"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


class Together:
    """Steps of all ranks of a world; every rank takes the same ones in the same order."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._steps = itertools.count()

    def all(self, what: str, mine: T, kind: type[T]) -> list[T]:
        """What each rank gives, by rank."""
        return [msgspec.json.decode(one, type=kind) for one in self._gather(what, msgspec.json.encode(mine))]

    def step(self, what: str, work: Callable[[], T]) -> T:
        """What `work` returns on this rank. Raises FailedError on all ranks when it fails on one."""
        error, result = "", []
        try:
            result.append(work())
        except EXPECTED as caught:
            error = words(caught) or type(caught).__name__
        failures = tuple(
            RankFailure(rank, message) for rank, message in enumerate(self.all(what, error, str)) if message
        )
        if failures:
            raise FailedError(what, failures)
        return result[0]

    def _gather(self, what: str, mine: bytes) -> list[bytes]:
        return self._meeting.all_gather(f"bench {next(self._steps)} {what}", mine)
