"""A fact, or the reason why it is not there. Nothing else may stand in a snapshot's field."""

from __future__ import annotations

from typing import Literal, TypeVar, Union

from msgspec import Struct

Reason = Literal[
    "not_read",  # no probe looked
    "not_probed",  # an active probe that was switched off, or that does not exist yet
    "tool_missing",
    "not_found",  # the file, device or package is not there
    "permission",
    "unsupported",  # the hardware, driver or tool says that it does not do this
    "timed_out",
    "unparsable",
    "failed",  # the tool or call ended with an error
]


class Absent(Struct, frozen=True, omit_defaults=True):
    """Why a value is not there. `detail` is for people; `line` is the first line that could not be read."""

    absent: Reason
    detail: str = ""
    line: str = ""

    def __str__(self) -> str:
        words = self.absent.replace("_", " ")
        if self.absent == "not_read" and self.detail:
            return self.detail  # says in full why nobody looked
        return f"{words}: {self.detail}" if self.detail else words

    def of(self, what: str) -> str:
        """`what` could not be read, and why: `/proc/modules: not in the recording`, its name said once."""
        return f"{what}: {str(self).removeprefix(f'{what} is ')}"


T = TypeVar("T")
Fact = Union[T, Absent]
"""`Fact[int]`: an int, or an Absent."""

NOT_READ = Absent("not_read")
NOT_PROBED = Absent("not_probed")


class Unreadable(Exception):  # noqa: N818 - it is a state of a fact, not a mistake
    """Raised by `known` when a fact is absent; the evaluation of checks turns it into `unknown`."""

    def __init__(self, what: str, absent: Absent) -> None:
        super().__init__(absent.of(what) if what else str(absent))
        self.what = what
        self.absent = absent


def known(fact: Fact[T], what: str = "") -> T:
    """The value of `fact`; raises Unreadable, with `what` for its name, when it is absent."""
    if isinstance(fact, Absent):
        raise Unreadable(what, fact)
    return fact


def value_or(fact: Fact[T], default: T) -> T:
    """The value of `fact`, or `default` when it is absent. For views and pictures; a check uses `known`."""
    return default if isinstance(fact, Absent) else fact
