"""Compilers end, with all that they started, when the call that wants them ends."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from epctl.core.errors import EpctlError
from epctl.native import kernels, processes
from epctl.native.kernels import Wanted

SLOW = "sleep 60 & echo $! >> {pids}; wait"


def slow(tmp_path: Path) -> tuple[str, ...]:
    """A compiler that starts a child, as g++ starts cc1plus."""
    return ("/bin/sh", "-c", SLOW.format(pids=tmp_path / "pids"))


def started(tmp_path: Path, count: int = 1) -> list[int]:
    """The children, once they are there."""
    deadline = time.monotonic() + 10
    path = tmp_path / "pids"
    while time.monotonic() < deadline:
        if path.exists() and len(found := path.read_text("ascii").split()) >= count:
            return [int(one) for one in found]
        time.sleep(0.01)
    raise AssertionError("no child was started")


def gone(pids: list[int]) -> bool:
    """Within a moment; a zombie that nobody has reaped yet is gone, too."""

    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 3
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(lives, pids))


def test_a_compiler_that_takes_too_long_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "COMPILE_S", 0.5)
    with pytest.raises(EpctlError, match=r"compiling it took more than 0.5 s"):
        processes.run(slow(tmp_path), "it", tmp_path)
    assert gone(started(tmp_path))


def test_an_exit_in_the_middle_ends_it_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = subprocess.Popen.communicate

    def interrupted(*arguments: Any, **named: Any) -> None:  # noqa: ANN401
        started(tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        processes.run(slow(tmp_path), "it", tmp_path)
    assert gone(started(tmp_path))
    assert not processes._running
    monkeypatch.setattr(subprocess.Popen, "communicate", whole)
    assert processes.run(("/bin/echo", "fine"), "it", tmp_path) == "fine\n"


@pytest.mark.parametrize("error", [EpctlError("first", "", ""), KeyboardInterrupt(), SystemExit(143)])
def test_the_first_error_and_an_interruption_end_those_that_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    names = ["slow", "ends", *(f"queued-{i}" for i in range(50))]
    ran: list[str] = []

    def compile_one(one: str, *_: object) -> str:
        ran.append(one)
        if one == "ends":
            started(tmp_path)
            if isinstance(error, EpctlError):
                raise error
            return one
        return processes.run(slow(tmp_path), one, tmp_path)

    def step(_: object) -> None:
        raise error

    class Named(str):
        __slots__ = ()

        @property
        def name(self) -> str:
            return str(self)

    monkeypatch.setattr(kernels, "compile_one", compile_one)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    every = cast("tuple[Wanted, ...]", tuple(map(Named, names)))
    begin = time.monotonic()
    with pytest.raises(type(error)):
        kernels.compile_all(every, cast("Any", None), cast("Any", None), cast("Callable[[Any], None]", step))
    assert time.monotonic() - begin < 10
    assert len(ran) < len(names)
    assert gone(started(tmp_path))
    assert threading.active_count() < 20


def test_what_a_compiler_says_is_told(tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match="it does not compile") as caught:
        processes.run(("/bin/sh", "-c", "echo 'a.cu: error: no' >&2; exit 3"), "it", tmp_path)
    assert (caught.value.why, caught.value.exit_code) == ("a.cu: error: no", 1)
    with pytest.raises(EpctlError, match="cannot be run"):
        processes.run(("/no/such/compiler",), "it", tmp_path)
