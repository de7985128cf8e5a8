"""The one error a command shows: what happened, why, and what to do."""

from __future__ import annotations


class EpctlError(Exception):
    """An error for the user, three lines long. `exit_code`: 2 for bad usage or input, 4 for something that could not be measured."""

    def __init__(self, what: str, why: str, todo: str, *, exit_code: int = 2) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.todo = todo
        self.exit_code = exit_code

    def __str__(self) -> str:
        from epctl.core.render.safe import plain

        return f"error: {plain(self.what)}\n  why: {plain(self.why)}\n  do:  {plain(self.todo)}"


class CommonError(EpctlError):
    """What every rank of a job finds alike: it is told once, without a rank."""

    @classmethod
    def of(cls, error: EpctlError) -> CommonError:
        """The same words."""
        return cls(error.what, error.why, error.todo, exit_code=error.exit_code)
