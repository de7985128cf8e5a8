"""Runs several reads of a source at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from epctl.core.fact import Absent


def together(tasks: Mapping[str, Callable[[], Any]], num_threads: int = 8) -> dict[str, Any]:
    """Results of `tasks` by name, in their order; an Absent for one that fails.

    The threads are daemons: one that is stuck in the kernel must not keep the program from ending, as the threads of an
    executor would.
    """
    names = list(tasks)
    left = iter(names)
    done: dict[str, Any] = {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                name = next(left, None)
            if name is None:
                return
            try:
                done[name] = tasks[name]()
            except Exception as error:  # noqa: BLE001 - what fails is a fact about this node
                done[name] = Absent("failed", f"{name}: {type(error).__name__}: {error}"[:200])

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(num_threads, len(names)))]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError:  # no more threads: those that there are do the work, else this one
        if not started:
            work()
    for thread in started:
        thread.join()
    return {name: done[name] for name in names}
