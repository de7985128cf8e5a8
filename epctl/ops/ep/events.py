"""Events of the expert-parallel calls: what a stream waits for, and what remains to be done then."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from epctl.core.errors import EpctlError

Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class EventHandle:
    """A point in a stream: the current one, when it is made."""

    def __init__(self, stream: Stream | None = None) -> None:
        import torch

        self.event = torch.cuda.Event()
        self.event.record(torch.cuda.current_stream() if stream is None else stream)

    def current_stream_wait(self) -> None:
        """The current stream goes on after this point."""
        import torch

        torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """What an expert-parallel call returns: waiting for it also runs what was deferred, once, and returns its result.

    `tensors` are kept alive until then. Without an event (a call in the current stream) waiting costs nothing.
    """

    def __init__(
        self,
        event: EventHandle | None = None,
        tensors: tuple[Any, ...] = (),
        deferred: Callable[[], Any] | None = None,
    ) -> None:
        self.event = event
        self.tensors = tensors
        self._deferred = deferred
        self._done = False
        self._was_deferred = deferred is not None

    def current_stream_wait(self) -> Any:  # noqa: ANN401 - whatever was deferred
        """Makes the current stream wait; runs what was deferred and returns its result. Raises EpctlError when that is asked for a
        second time."""
        if self.event is not None:
            self.event.current_stream_wait()
        if not self._was_deferred:
            return None
        if self._deferred is None or self._done:
            raise EpctlError(
                "the deferred result has been taken",
                "an event gives it once, at the first wait",
                "keep what the first current_stream_wait() returned",
                exit_code=1,
            )
        self._done = True
        deferred, self._deferred = self._deferred, None
        return deferred()

    wait = current_stream_wait

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._done:
            self.current_stream_wait()
