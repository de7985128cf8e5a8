"""Runs one child process with limits on its time and on what it may print. Nothing of it outlives the call, nor the program
(unless that is killed with SIGKILL, which no program can answer)."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import NamedTuple

MAX_STDOUT_BYTES = 16 * 1024 * 1024
MAX_STDERR_BYTES = 1024 * 1024
LINGER_S = 0.5
"""How long output is awaited after the child itself ended: a descendant that it left behind may hold the pipe open."""


_lock = threading.RLock()
_groups: set[int] = set()
"""Process groups that run now. A terminal's Ctrl-C does not reach them, as each has a session of its own."""
_ending = False


class Finished(NamedTuple):
    """How a child ended. `cut`: '' when by itself; else why it was ended from here."""

    stdout: bytes
    stderr: bytes
    code: int
    cut: str = ""


def finish(argv: tuple[str, ...], timeout_s: float, env: dict[str, str]) -> Finished:
    """Runs `argv` without a shell and without standard input, in a process group of its own that is killed when it is over: by
    itself, past `timeout_s`, or past the limits of output. Raises OSError when it cannot be started."""
    child = _start(argv, env)
    try:
        out, err, cut = _collect(child, time.monotonic() + timeout_s)
    finally:
        _kill(child.pid)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1.0)  # one that hangs in the kernel stays behind
    code = child.returncode if child.returncode is not None else -signal.SIGKILL
    return Finished(out, err, code, cut.format(timeout_s))


def end_all(*, for_good: bool = True) -> None:
    """Kills every child that runs. `for_good`: none may start any more either, the process ends."""
    global _ending
    with _lock:
        _ending = _ending or for_good
        for group in tuple(_groups):
            _kill(group)


atexit.register(end_all)


def _start(argv: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
    with _lock:
        if _ending:
            raise InterruptedError("not started: the program ends")
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        _groups.add(child.pid)
    return child


def _kill(group: int) -> None:
    with _lock, contextlib.suppress(ProcessLookupError, PermissionError):
        _groups.discard(group)
        os.killpg(group, signal.SIGKILL)


def _collect(child: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes, str]:
    assert child.stdout is not None  # noqa: S101 - both are pipes
    assert child.stderr is not None  # noqa: S101
    limits = {child.stdout.fileno(): MAX_STDOUT_BYTES, child.stderr.fileno(): MAX_STDERR_BYTES}
    found: dict[int, bytearray] = {fd: bytearray() for fd in limits}
    cut = ""
    ended_at = None
    with selectors.DefaultSelector() as selector:
        for fd in limits:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and not cut:
            now = time.monotonic()
            if ended_at is None and child.poll() is not None:
                ended_at = now
            if now >= deadline:
                cut = "gave no answer within {:g} s"
            elif ended_at is not None and now > ended_at + LINGER_S:
                break
            for key, _ in selector.select(min(0.1, max(0.0, deadline - now))):
                cut = _read(key.fd, found[key.fd], limits[key.fd], selector) or cut
    return bytes(found[child.stdout.fileno()]), bytes(found[child.stderr.fileno()]), cut


def _read(fd: int, into: bytearray, limit: int, selector: selectors.BaseSelector) -> str:
    chunk = os.read(fd, 65536)
    if not chunk:
        selector.unregister(fd)
    into += chunk[: max(0, limit - len(into))]
    return "printed more than any such tool does" if len(into) >= limit else ""
