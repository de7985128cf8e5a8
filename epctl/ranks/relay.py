"""Events of ranks that another launcher started, on their way to rank 0, which renders."""

from __future__ import annotations

import threading
from typing import Any

from epctl.ranks.events import INTERNAL, Event, Handler, decode, encode
from epctl.ranks.meeting import Meeting


class Relay:
    """At rank 0: calls the handler for its own events and those of the others, one at a time. Elsewhere: sends them to rank 0."""

    def __init__(self, rank: int, handler: Handler) -> None:
        self._rank = rank
        self._handler = handler
        self._lock = threading.RLock()
        self._meeting: Meeting | None = None
        self._sent = 0
        self._seen = 0
        self._taken: dict[int, int] = {}
        self._broken: BaseException | None = None

    def met(self, meeting: Meeting) -> None:
        """The job has come together."""
        self._meeting = meeting
        if self._rank == 0:
            self._taken = dict.fromkeys(range(1, meeting.placement.world_size), 0)
            meeting.beats.each_tick.append(self._drain)

    def emit(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Hands one event to the handler, wherever that is. Raises what the handler raised."""
        if kind in INTERNAL:
            return
        event = Event(kind, self._rank, fields)
        if self._rank == 0:
            with self._lock:
                self._handler(event)
            self.finish()
            return
        meeting = self._meeting
        if meeting is not None:
            meeting.send(f"event/{self._rank}/{self._sent}", encode(event), "events")
            self._sent += 1

    def finish(self) -> None:
        """Raises what the handler raised for another rank's event."""
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken

    def drain(self, meeting: Meeting) -> None:
        """At rank 0, once all have come to the end: what is still on its way."""
        if self._rank == 0:
            self._drain(meeting.connection)
        self.finish()

    def _drain(self, store: Any) -> None:  # noqa: ANN401 - a TCPStore
        meeting = self._meeting
        if meeting is None:
            return
        with self._lock:
            sent = store.add(f"{meeting.prefix}events", 0)
            if sent == self._seen:
                return
            self._seen = sent
            for rank in self._taken:
                while store.check([key := f"{meeting.prefix}event/{rank}/{self._taken[rank]}"]):
                    self._taken[rank] += 1
                    event = decode(store.get(key))
                    store.delete_key(key)
                    self._handle(event)

    def _handle(self, event: Event) -> None:
        try:
            self._handler(event)
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            self._broken = self._broken or error
