"""Signs of life: each rank gives one a second, and whoever sees a rank end tells all others who it was."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from epctl.ranks import process
from epctl.ranks.facts import Facts

TICK_S = 0.2
BEAT_S = 1.0
SILENT_S = 20.0
"""Without a beat for so long a rank counts as dead: its machine is gone, or it is stopped. Longer than a Python thread is kept from
running by anything that epctl calls."""


class Ended(Struct, frozen=True):
    """A rank that is no more, and did not say goodbye."""

    rank: int
    reason: str
    """`ended by signal 9 (SIGKILL)`"""
    stage: str = ""

    @classmethod
    def of(cls, rank: int, what: str, stage: str) -> Ended:
        """From an error's first line, which may name rank and stage itself."""
        prefix = f"rank {rank} "
        reason = what.removeprefix(prefix) if what.startswith(prefix) else f"failed: {what}"
        return cls(rank, reason, "" if 'stage "' in reason else stage)

    def __str__(self) -> str:
        return f"rank {self.rank} {self.reason}" + (f' in stage "{self.stage}"' if self.stage else "")


class Beats:
    """The thread of a meeting that beats and listens, over a connection of its own."""

    def __init__(
        self,
        store: Any,  # noqa: ANN401 - a TCPStore
        prefix: str,
        rank: int,
        every: Sequence[Facts],
        *,
        silent_s: float = SILENT_S,
    ) -> None:
        self.ended: list[Ended] = []
        """In the order in which they became known."""
        self.each_tick: list[Callable[[Any], None]] = []
        """Called in this thread with its connection."""
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self.silent_s = silent_s
        self._beat_s = min(BEAT_S, silent_s / 5)
        self._others = [facts.rank for facts in every if facts.rank != rank]
        mine = next(facts for facts in every if facts.rank == rank)
        self._neighbours = [
            facts
            for facts in every
            if facts.rank != rank
            and facts.started
            and (facts.machine, facts.pid_space) == (mine.machine, mine.pid_space)
        ]
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._answered = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epctl-beats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, unless it hangs in the store: then it ends with the process."""
        self._over.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2.0)
        if not self._thread.is_alive():
            self._store = None

    @property
    def silent_store(self) -> bool:
        """The store has not answered for as long as a rank may be silent: the machine of its keeper is gone, or stopped."""
        return self._thread.is_alive() and time.monotonic() - self._answered > self.silent_s

    def add(self, ended: Ended) -> None:
        """Notes a rank's end that came to be known in another way."""
        if all(known.rank != ended.rank for known in self.ended):
            self.ended.append(ended)

    def _run(self) -> None:
        count, next_beat = 0, time.monotonic()
        while not self._over.wait(TICK_S):
            try:
                if time.monotonic() >= next_beat:
                    count, next_beat = count + 1, time.monotonic() + self._beat_s
                    self._store.set(f"{self._prefix}beat/{self._rank}", str(count))
                    self._look_around()
                self._listen()
                for call in self.each_tick:
                    call(self._store)
            except RuntimeError:  # the connection is gone
                if not self._over.is_set():
                    self.add(Ended(0, "ended, or its connection did: the meeting point that it keeps is gone"))
                return
            self._answered = time.monotonic()

    def _listen(self) -> None:
        for ended in told(self._store, self._prefix):
            if ended.rank != self._rank:
                self.add(ended)

    def _look_around(self) -> None:
        for facts in self._neighbours:
            if process.started(facts.pid) != facts.started:
                self._declare(facts.rank, f"ended without a word (process {facts.pid} on {facts.host})")
        if self._rank > 1 or not self._others:
            return  # two ranks listen for all beats, so that one of both may fail
        now = time.monotonic()
        beats = self._store.multi_get([f"{self._prefix}beat/{rank}" for rank in self._others])
        for rank, beat in zip(self._others, beats, strict=True):
            known, since = self._seen.get(rank, (b"", now))
            self._seen[rank] = (beat, since if beat == known else now)
            if now - self._seen[rank][1] > self.silent_s:
                self._declare(rank, f"has given no sign of life for {self.silent_s:g} s")

    def _declare(self, rank: int, reason: str) -> None:
        if any(ended.rank == rank for ended in self.ended) or self._store.check([f"{self._prefix}left/{rank}"]):
            return
        if any(ended.rank == rank for ended in told(self._store, self._prefix)):
            return  # it, or its supervisor, said why itself
        tell(self._store, self._prefix, Ended(rank, reason, stage_of(self._store, self._prefix, rank)))


def tell(store: Any, prefix: str, ended: Ended) -> None:  # noqa: ANN401
    """Lets all ranks know. Raises RuntimeError when the store is gone."""
    store.append(f"{prefix}ended", msgspec.json.encode(ended).decode("utf-8", "replace") + "\n")


def told(store: Any, prefix: str) -> list[Ended]:  # noqa: ANN401
    """Ends that are known to the store, first one first."""
    if not store.check([f"{prefix}ended"]):
        return []
    found = []
    for line in store.get(f"{prefix}ended").splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=Ended))
    return found


def stage_of(store: Any, prefix: str, rank: int) -> str:  # noqa: ANN401
    """The stage that a rank was last known to be in; '' when it never said."""
    key = f"{prefix}stage/{rank}"
    return store.get(key).decode("utf-8", "replace") if store.check([key]) else ""
