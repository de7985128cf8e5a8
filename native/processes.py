"""Compilers as processes: each in a group of its own, so that what it has started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from epctl.core.errors import EpctlError

COMPILE_S = 600.0
DROPPED = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
"""Options of the user's environment, which are no part of the cache's key."""
_running: set[subprocess.Popen[bytes]] = set()


def run(argv: tuple[str, ...], what: str, scratch: Path) -> str:
    """Everything that a compiler prints. Its temporary files go to `scratch`, so that they go with it. Raises EpctlError with the
    first error when it fails. Whatever ends this call ends the compiler and its children."""
    environ = {name: value for name, value in os.environ.items() if name not in DROPPED}
    environ |= {"TMPDIR": str(scratch), "LC_ALL": "C"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        process = subprocess.Popen(argv, env=environ, start_new_session=True, **pipes)  # type: ignore[call-overload]
    except OSError as error:
        raise EpctlError(
            f"{argv[0]} cannot be run", f"{error.strerror}", "install the compiler again", exit_code=4
        ) from None
    _running.add(process)
    try:
        told: str = process.communicate(timeout=COMPILE_S)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        raise EpctlError(
            f"compiling {what} took more than {COMPILE_S:g} s", argv[0], "look at what slows this machine", exit_code=4
        ) from None
    finally:
        _running.discard(process)
        _end(process)
    if process.returncode != 0:
        lines = [line for line in told.splitlines() if "error" in line.lower() or "No space left" in line]
        why = " | ".join(lines[:3]) or told.strip()[-300:] or f"exit code {process.returncode}"
        raise EpctlError(f"{what} does not compile", why, "run it by hand: " + " ".join(argv), exit_code=1)
    return told


def end_all() -> None:
    """Ends the compilers that other threads wait for."""
    for process in tuple(_running):
        _kill(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started. Does nothing after a good end."""
    if process.poll() is None:
        _kill(process)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
