"""Ends a rank that stays in a stage for longer than it may: nothing hangs past its limit."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from msgspec import Struct

from epctl.core.render.safe import plain
from epctl.ranks.events import FAILED, STAGE

EXIT_LATE = 4
ALARM_AFTER_S = 3.0
"""How long after the limit the kernel ends a process whose Python threads cannot run, since its main thread hangs with the GIL."""
_TICK_S = 0.1

Emit = Callable[..., None]


class _Stage(Struct):
    name: str
    limit_s: float
    deadline: float


class Watchdog:
    """Knows in which stage this rank is. `verdict` may give another reason to end at once: a line for standard error and an exit
    code. `waits_for` tells for whom it waits (in words, and a rank). `last_words` is told (reason, stage) before the process ends."""

    def __init__(self, rank: int, emit: Emit, *, debug: bool = False) -> None:
        self.rank = rank
        self.verdict: Callable[[], tuple[str, int] | None] = lambda: None
        self.last_words: Callable[[str, str], None] = lambda *_: None
        self.waits_for: Callable[[], tuple[str, int] | None] = lambda: None
        self._emit = emit
        self._debug = debug
        self._stages: list[_Stage] = []
        self._raised: tuple[BaseException, str] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def current(self) -> str:
        """The innermost stage; 'start' before the first one."""
        stages = self._stages
        return stages[-1].name if stages else "start"

    def where(self, error: BaseException) -> str:
        """The innermost stage out of which this error came."""
        return self._raised[1] if self._raised is not None and self._raised[0] is error else self.current

    @contextlib.contextmanager
    def stage(self, name: str, limit_s: float) -> Iterator[None]:
        """The block is the stage `name` and may take `limit_s`; past it, the process ends with exit code 4. Stages may be nested."""
        entered = _Stage(name, limit_s, time.monotonic() + limit_s)
        with self._lock:
            self._stages.append(entered)
        self._start()
        self._arm()
        self._emit(STAGE, name=name, limit_s=limit_s)
        try:
            yield
        except BaseException as error:
            if self._raised is None or self._raised[0] is not error:
                self._raised = (error, name)
            raise
        finally:
            with self._lock:
                self._stages.remove(entered)
            self._arm()
        if self._stages:
            self._emit(STAGE, name=self.current, limit_s=self._stages[-1].limit_s)

    def close(self) -> None:
        """No stage is watched any more."""
        self._over.set()
        with self._lock:
            for entered in self._stages:
                entered.deadline = float("inf")
        self._arm()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="epctl-watchdog", daemon=True)
            self._thread.start()

    def _arm(self) -> None:
        """The kernel's own timer: the default action of SIGALRM ends a process without any help from Python."""
        with self._lock:
            deadline = min((entered.deadline for entered in self._stages), default=float("inf"))
            left_s = 0.0 if deadline == float("inf") else max(0.001, deadline + ALARM_AFTER_S - time.monotonic())
            signal.setitimer(signal.ITIMER_REAL, left_s)

    def _watch(self) -> None:
        while not self._over.wait(_TICK_S):
            now = time.monotonic()
            with self._lock:
                late = next((entered for entered in self._stages if now >= entered.deadline), None)
            if late is not None:
                self._end_late(late)
            reason = self.verdict()
            if reason is not None:
                self._end(*reason)

    def _end_late(self, late: _Stage) -> NoReturn:
        inner = self.current
        within = "" if inner == late.name else f' (within it: "{inner}")'
        what = f'rank {self.rank} did not get through the stage "{late.name}"{within} within {late.limit_s:g} s'
        waits = self.waits_for()
        if waits is not None:
            what += f": it waited for {waits[0]}"
        self._emit(
            FAILED,
            stage=late.name,
            what=what,
            why="it hangs there, or is far slower than it should be; the watchdog ended it",
            todo="run again with --debug, which shows where each rank stood",
            exit_code=EXIT_LATE,
            peer=None if waits is None else waits[1],
        )
        self._end(what, EXIT_LATE)

    def _end(self, what: str, exit_code: int) -> NoReturn:
        with contextlib.suppress(OSError, ValueError):
            os.write(2, f"{plain(what)}\n".encode("utf-8", "replace"))
        if self._debug:
            import faulthandler

            with contextlib.suppress(OSError, ValueError):
                faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        # The store may hang like everything else: a thread that nobody waits for long.
        words = threading.Thread(target=self.last_words, args=(what, self.current), daemon=True)
        words.start()
        words.join(1.0)
        os._exit(exit_code)
