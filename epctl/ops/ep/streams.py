"""In which stream a call runs, what it waits for, and how long tensors live."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from epctl.ops.ep.engine import Engine
from epctl.ops.ep.events import EventHandle, EventOverlap

Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class Streams:
    """The streams of one buffer. `comm`: that of calls with async_with_compute_stream=True."""

    def __init__(self, engine: Engine) -> None:
        import torch

        self._engine = engine
        self.comm: Stream = torch.cuda.Stream(engine.device, priority=-1)

    def begin(
        self, previous_event: EventHandle | EventOverlap | None, asynchronous: bool
    ) -> tuple[Stream, AbstractContextManager[Any]]:
        """The stream of the call, which goes on after what it has to wait for, and a context in which it is the current one."""
        import torch

        current = torch.cuda.current_stream(self._engine.device)
        stream = self.comm if asynchronous else current
        if isinstance(previous_event, EventOverlap):
            previous_event = previous_event.event
        if previous_event is not None:
            stream.wait_event(previous_event.event)
        elif asynchronous:
            stream.wait_stream(current)
        self._engine.follow(stream)
        # To change to what is current takes some microseconds, too.
        is_current = stream is current and torch.cuda.current_device() == self._engine.device.index
        return stream, nullcontext() if is_current else torch.cuda.stream(stream)

    def end(self, stream: Stream, kept: tuple[Any, ...], results: tuple[Any, ...]) -> EventOverlap:
        """The event of a finished call. Tensors stay alive until their last use on any stream."""
        import torch

        current = torch.cuda.current_stream(self._engine.device)
        if stream == current:
            return EventOverlap()
        record(kept, stream)
        record(tuple(one for one in tensors_of(results) if self._engine.offset_of(one) is None), current)
        return EventOverlap(EventHandle(stream), tensors_of(kept))

    def deferred(
        self, stream: Stream, kept: tuple[Any, ...], outputs: tuple[Any, ...], rest: Callable[[Stream], Any]
    ) -> EventOverlap:
        """The rest runs in the stream that is current when the event is waited for. `outputs`: memory that it will write to."""
        import torch

        record(kept, stream)

        def finish() -> Any:  # noqa: ANN401 - a tuple
            now = torch.cuda.current_stream(self._engine.device)
            self._engine.follow(now)
            record((*kept, *outputs), now)
            return rest(now)

        return EventOverlap(EventHandle(stream), tensors_of(kept), finish)


def record(values: tuple[Any, ...], stream: Stream) -> None:
    """Their memory is not given to others before what the stream has to do now. Nothing for those that were made in it."""
    for one in tensors_of(values):
        one.record_stream(stream)


def tensors_of(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """All tensors, out of pairs too."""
    found: list[Any] = []
    for value in values:
        found += [one for one in (value if isinstance(value, tuple) else (value,)) if one is not None]
    return tuple(found)
