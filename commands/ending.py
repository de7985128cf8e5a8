"""What surrounds every command: standard streams that exist, and an end without children, whatever ends the program."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from epctl.core.errors import EpctlError


def on_signals() -> None:
    """Ctrl-C, SIGTERM and SIGHUP end the program in order, with exit code 128 + number. One that is ignored (nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def run(app: Any) -> int:  # noqa: ANN401 - typer.Typer
    """Runs the command line, and gives its exit code. Raises EpctlError for one that it does not understand."""
    try:
        return int(app(standalone_mode=False) or 0)
    except Exception as error:
        # The parser's errors, wherever it comes from: typer brings its own since 0.20.
        if not hasattr(error, "format_message"):
            raise
        told = str(error.format_message()).strip()
        if "\n" in told:  # help, for a command without arguments
            sys.stderr.write(f"{told}\n")
            return 2
        path = getattr(getattr(error, "ctx", None), "command_path", "") or "epctl"
        what = f"{told[:1].lower()}{told[1:]}".rstrip(".")
        raise EpctlError(what, "the command line cannot be read so", f"see {path} --help") from None


def open_streams() -> None:
    """Standard output and error that were closed (`>&-`) lead nowhere instead of being None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the end


def end_children(*, for_good: bool = False) -> None:
    """Ends what still runs, before the interpreter waits for its threads, which wait for children. `for_good`: nothing starts
    any more; not after a plain command, which a program may call in its own process."""
    child = sys.modules.get("epctl.probes.child")
    if child is not None:
        child.end_all(for_good=for_good)


def _end(number: int, _: FrameType | None) -> None:
    end_children(for_good=True)
    sys.exit(128 + number)
