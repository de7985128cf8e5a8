"""What a task sees of its rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from epctl.core.placement import Placement
from epctl.ranks.meeting import Meeting
from epctl.ranks.watchdog import Emit, Watchdog


class Rank:
    """One rank of a job that has come together. `debug`: tracebacks are wanted."""

    def __init__(self, meeting: Meeting, watchdog: Watchdog, emit: Emit, *, debug: bool = False) -> None:
        self.placement: Placement = meeting.placement
        self.meeting = meeting
        self.watchdog = watchdog
        self.debug = debug
        self._emit = emit

    def emit(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Tells the process that renders. `fields` are whatever JSON holds."""
        self._emit(kind, **fields)

    @contextlib.contextmanager
    def stage(self, name: str, limit_s: float) -> Iterator[None]:
        """The block may take `limit_s`, after which the rank ends with exit code 4; messages about this rank name the stage."""
        with self.watchdog.stage(name, limit_s):
            self.meeting.note_stage(name)
            yield
        self.meeting.note_stage(self.watchdog.current)


Task = Callable[[Rank, "dict[str, Any]"], None]
"""A function inside epctl that every rank runs."""
