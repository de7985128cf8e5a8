"""Lines that are shown while something runs, and what becomes of a run that nobody reads any more."""

from __future__ import annotations

import io
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epctl.bench.job import CASE, HEADER, PROOF, Job
from epctl.bench.selftest import Checked, Proof
from epctl.commands import running, selftest
from epctl.core.errors import EpctlError
from epctl.core.launch import spawned
from epctl.ranks.events import Event
from tests.support.worlds import layout


class Output:
    """Standard output that is a pipe, or a socket, and its reader."""

    def __init__(self, read: int, write: int, patch: pytest.MonkeyPatch) -> None:
        self.read, self.stream = read, io.TextIOWrapper(os.fdopen(write, "wb"))
        self._open, self._patch = True, patch

    def live(self, format: str = "text", path: Path | None = None, *, wanted_elsewhere: bool = False) -> running.Live:  # noqa: A002
        """What a command shows its lines with."""
        self.install()
        return running.Live(format, path, wanted_elsewhere=wanted_elsewhere)

    def install(self) -> None:
        """In the test itself: pytest puts its own streams there after fixtures are set up."""
        self._patch.setattr(sys, "stdout", self.stream)

    def leave(self) -> None:
        """The reader ends."""
        if self._open:
            os.close(self.read)
        self._open = False


def pipe() -> tuple[int, int]:
    return os.pipe()


def sockets() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


@pytest.fixture(params=[pipe, sockets])
def output(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Output]:
    made = Output(*request.param(), monkeypatch)
    yield made
    monkeypatch.undo()
    made.leave()
    made.stream.close()


def test_lines_go_out_at_once_while_somebody_reads(output: Output) -> None:
    live = output.live()
    live.say("one\n")
    assert os.read(output.read, 100) == b"one\n"
    live.end("two\n")
    assert os.read(output.read, 100) == b"two\n"
    assert not live.gone


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_first_lines_after_the_end_of_the_reader_say_so(output: Output, format: str) -> None:  # noqa: A002
    live = output.live(format)
    live.say("one\n")
    output.leave()
    with pytest.raises(running.NobodyReadsError):
        live.say("two\n")
    assert live.gone
    live.end("three\n")
    output.stream.flush()


def test_a_reader_may_leave_in_the_middle_of_a_write(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output leads nowhere then, which is no pipe that lost its reader any more."""
    live = output.live()
    emit = running.options.emit

    def late(text: str, path: Path | None) -> None:
        output.leave()
        emit(text, path)
        assert os.fstat(output.stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116

    monkeypatch.setattr(running.options, "emit", late)
    with pytest.raises(running.NobodyReadsError):
        live.say("one\n")


def test_who_asked_for_a_file_does_not_read_standard_output(output: Output, tmp_path: Path) -> None:
    output.leave()
    kept, streamed = output.live("text", tmp_path / "lines"), output.live(wanted_elsewhere=True)
    for live in (kept, streamed):
        live.say("one\n")
        live.say("two\n")
        live.end("three\n")
        assert not live.gone
    assert (tmp_path / "lines").read_text("ascii") == "one\ntwo\nthree\n"


def test_a_file_has_no_reader_that_could_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        live = running.Live("text", None)
        live.say("one\n")
        live.end("two\n")
    assert (tmp_path / "file").read_text("ascii") == "one\ntwo\n"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    running.Live("text", None).say("one\n")


def test_the_json_that_nobody_read_was_made_of_lines_in_their_place(output: Output) -> None:
    live = output.live("json")
    live.say("a line\n")
    live.end("the last\n", "{}\n")
    assert os.read(output.read, 100) == b"{}\n"


PROVED = Proof("link", "byte", "one", noticed=True, message="", command="")
GOOD, BAD = (Checked("link", "one", ok, 0.1) for ok in (True, False))


def events(*results: Proof | Checked) -> list[Event]:
    told = {"layout": msgspec.to_builtins(layout(1)), "num_cases": 9}
    kinds: dict[type, tuple[str, str]] = {Proof: (PROOF, "proof"), Checked: (CASE, "case")}
    named = [(*kinds[type(one)], msgspec.to_builtins(one)) for one in results]
    return [Event(HEADER, 0, told), *(Event(kind, 0, {name: fields}) for kind, name, fields in named)]


def through(handler: Callable[[Event], None], leave: Callable[[], None], told: list[Event]) -> None:
    """Somebody who has read all but the last."""
    for event in told[:-1]:
        handler(event)
    leave()
    handler(told[-1])


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (events(), 0),
        (events(PROVED, GOOD), 0),
        (events(PROVED, BAD), 1),
        (events(PROVED, BAD, GOOD), 1),
        (events(msgspec.structs.replace(PROVED, noticed=False)), 1),
    ],
)
@pytest.mark.parametrize("by_launcher", [False, True])
def test_the_exit_code_is_that_of_what_was_seen(
    output: Output, monkeypatch: pytest.MonkeyPatch, told: list[Event], code: int, *, by_launcher: bool
) -> None:
    """A launcher's rank tells of what its handler raises as of any error of a task."""

    def run(_task: str, _job: Any, _place: Any, handler: Callable[[Event], None]) -> int:  # noqa: ANN401
        try:
            through(handler, output.leave, told)
        except BrokenPipeError as error:
            if by_launcher:
                raise EpctlError("rank 0 failed", str(error), "run again", exit_code=1) from None
            raise
        raise AssertionError("nobody has noticed")

    monkeypatch.setattr(running, "run", run)
    output.install()
    assert selftest._run(Job("cpu"), spawned(1), "text", None) == (None, code)
