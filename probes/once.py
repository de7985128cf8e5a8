"""Asks every question once per snapshot, however many probes want the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from epctl.core.fact import Absent
from epctl.probes.source import COMMAND_TIMEOUT_S, DOCUMENT_TIMEOUT_S, Output, Source

T = TypeVar("T")


class OnceSource:
    """A source in front of `inner`. Areas that are read at the same time then agree, and a slow tool runs once. A command asked
    for again with another time limit gives the first answer."""

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, ...], Future[Any]] = {}

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output | Absent:
        return self._ask(("run", *argv), lambda: self.inner.run(*argv, timeout_s=timeout_s))

    def read(self, path: str) -> bytes | Absent:
        return self._ask(("read", path), lambda: self.inner.read(path))

    def entries(self, path: str) -> tuple[str, ...] | Absent:
        return self._ask(("entries", path), lambda: self.inner.entries(path))

    def target(self, path: str) -> str | Absent:
        return self._ask(("target", path), lambda: self.inner.target(path))

    def document(self, name: str, timeout_s: float = DOCUMENT_TIMEOUT_S) -> Any | Absent:  # noqa: ANN401
        return self._ask(("document", name), lambda: self.inner.document(name, timeout_s))

    def _ask(self, question: tuple[str, ...], action: Callable[[], T]) -> T:
        with self._lock:
            answer = self._answers.get(question)
            mine = answer is None
            if answer is None:
                answer = self._answers[question] = Future()
        if mine:
            try:
                answer.set_result(action())
            except BaseException as error:
                answer.set_exception(error)
                raise
        found: T = answer.result()
        return found
