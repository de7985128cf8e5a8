"""Waits of kernels in cases that are checked: short ones, and one that is made to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epctl.comm.domain import of_world
from epctl.core.errors import EpctlError
from epctl.core.op import Outcome, World
from epctl.ops.ep.trial.pool import pool_of

WAIT_S = 10.0
"""Ranks start a case together; none is late by more than its own host."""
LOST_SIGNAL_S = 0.3
SILENT_RANK = 0
"""Makes no call when a signal is to be lost, so that none of its signals come."""


class Guard:
    """Holds the kernels of a world to a short wait until it is closed; made on all ranks together. Buffers that a failed case left behind
    are given back first."""

    def __init__(self, world: World) -> None:
        self._world, self._domain = world, of_world(world)
        self._before_s = self._domain.timeout_s
        pool_of(world).heal(world)
        self._domain.timeout_s = WAIT_S
        self._raised = ""

    def timeout(self) -> Any:  # noqa: ANN401 - Timeout or None
        """The wait that gave up. The GPU is idle."""
        return self._domain.timeout()

    def lose_signal(self, calls: Callable[[], None]) -> None:
        """Makes the calls on all ranks but one."""
        self._raised = ""
        if self._world.rank == SILENT_RANK:
            return
        self._domain.timeout_s = LOST_SIGNAL_S
        try:
            calls()
        except EpctlError as error:
            self._raised = error.what
        finally:
            self._domain.timeout_s = WAIT_S

    def lost(self) -> Outcome:
        """What came of it: on the ranks that called, a wait has to have given up, by its name."""
        if self._world.rank == SILENT_RANK:
            return Outcome(ok=True)
        told = self._domain.timeout()
        if told is None:
            return Outcome(ok=True, message=f"no wait gave up ({self._raised or 'no error'})")
        return Outcome(ok=False, message=str(told))

    def close(self) -> None:
        """Kernels wait as long as before."""
        self._domain.timeout_s = self._before_s
