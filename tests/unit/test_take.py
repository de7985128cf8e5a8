"""`take`: whatever a probe does, a snapshot comes back, in time, and says what is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from epctl import probes
from epctl.core.fact import Absent
from epctl.core.snapshot import Origin, decode, encode
from epctl.probes import once, take
from epctl.probes import source as sources
from epctl.probes.source import LiveSource, Output, RecordedSource, Recording, RecordingSource
from epctl.probes.together import together
from tests.support.fake_source import FakeSource


def test_an_empty_machine_gives_a_snapshot_of_absences() -> None:
    node = take(FakeSource(), Origin("live"))
    assert decode(encode(node), "x") == node
    for name in probes.AREAS:
        assert not any("failed" in note for note in getattr(getattr(node, name), "notes", ()))


def test_an_empty_recording_is_not_read_anywhere() -> None:
    node = take(RecordedSource(Recording()), Origin("recorded"))
    assert isinstance(node.gpu.gpus, Absent)
    assert isinstance(node.rdma.devices, Absent)
    assert node.rdma.devices.absent == "not_read"
    assert node.pcie.functions.absent == "not_read"  # type: ignore[union-attr]


def test_a_probe_that_raises_leaves_absences_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from epctl.probes import rdma

    def broken(_: object) -> Any:  # noqa: ANN401
        raise KeyError("rate")

    monkeypatch.setattr(rdma, "rdma", broken)
    node = take(FakeSource(), Origin("live"))
    assert isinstance(node.rdma.devices, Absent)
    assert "KeyError" in node.rdma.devices.detail
    assert "KeyError" in node.rdma.notes[0]


def test_a_probe_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from epctl.probes import gdr

    release = threading.Event()
    monkeypatch.setattr(gdr, "gdr", lambda _: release.wait(60))
    monkeypatch.setattr(probes, "STATIC_LIMIT_S", 0.5)
    begin = time.monotonic()
    node = take(FakeSource(), Origin("live"), active=False)
    release.set()
    assert time.monotonic() - begin < 20
    assert node.gdr.peermem_loaded == Absent("timed_out", "the probe of area gdr did not end")


def test_without_active_probes_nothing_is_probed() -> None:
    node = take(FakeSource(), Origin("live"), active=False)
    assert node.active.cu_init == Absent("not_probed")
    assert node.active.gin == Absent("not_probed")


def test_a_recording_of_this_machine_replays_to_the_same_snapshot() -> None:
    source = RecordingSource(LiveSource())
    live = take(source, Origin("live"), active=False, taken_at="x")
    assert take(RecordedSource(source.recording), Origin("live"), active=False, taken_at="x") == live


def test_a_question_is_asked_once_by_many_threads() -> None:
    asked: list[str] = []

    class Slow(FakeSource):
        def run(self, *argv: str, timeout_s: float = 1.0) -> Output | Absent:  # noqa: ARG002
            asked.append(argv[0])
            time.sleep(0.05)
            return Output(b"x")

    source = once.OnceSource(Slow())
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(source.run("ibstat"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == ["ibstat"]
    assert found == [Output(b"x")] * 8


def test_a_tool_past_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    script = tmp_path / "slow"
    script.write_text("#!/bin/sh\nsleep 60 &\nsleep 60\n")
    script.chmod(0o755)
    begin = time.monotonic()
    found = LiveSource().run(str(script), timeout_s=0.3)
    assert isinstance(found, Absent)
    assert found.absent == "timed_out"
    assert time.monotonic() - begin < 10


def script(path: Path, body: str) -> str:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


def test_a_tool_that_hung_once_is_not_waited_for_again(tmp_path: Path) -> None:
    source = LiveSource()
    tool = script(tmp_path / "hangs", "sleep 60\n")
    source.run(tool, timeout_s=0.2)
    begin = time.monotonic()
    found = source.run(tool, "other", timeout_s=5.0)
    assert time.monotonic() - begin < 0.2
    assert isinstance(found, Absent)
    assert "not asked again" in found.detail


def test_a_tool_that_prints_without_end_is_stopped_before_memory_is_full(tmp_path: Path) -> None:
    begin = time.monotonic()
    found = LiveSource().run(script(tmp_path / "floods", "exec yes\n"), timeout_s=30.0)
    assert isinstance(found, Absent)
    assert "printed more" in found.detail
    assert time.monotonic() - begin < 20


def test_a_descendant_that_holds_the_pipe_open_is_not_waited_for_and_does_not_survive(tmp_path: Path) -> None:
    begin = time.monotonic()
    found = LiveSource().run(script(tmp_path / "daemon", "echo fine\nsleep 47.11 &\n"), timeout_s=20.0)
    assert isinstance(found, Output)
    assert found.stdout == b"fine\n"
    assert time.monotonic() - begin < 5
    time.sleep(0.2)
    running = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            running.append(path.read_bytes())
    assert not any(b"47.11" in line for line in running)


def test_arguments_never_reach_a_shell() -> None:
    found = LiveSource().run("echo", "$(id)", "`id`", ";id", "|id")
    assert isinstance(found, Output)
    assert found.stdout == b"$(id) `id` ;id |id\n"


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    source = LiveSource()
    for path, reason in ((tmp_path / "none", "not_found"), (tmp_path, "failed"), (Path("/proc/self/mem"), "failed")):
        found = source.read(str(path))
        assert isinstance(found, Absent), path
        assert found.absent == reason


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = LiveSource().read(str(tmp_path / "pipe"))
    assert isinstance(found, Absent)
    assert "no regular file" in found.detail


def test_relative_programs_are_found_though_children_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "tool", "echo fine\n")
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    found = LiveSource().run("tool")
    assert isinstance(found, Output)
    assert found.stdout == b"fine\n"
    assert LiveSource("./python").python == str(tmp_path / "python")
    assert LiveSource("../" + tmp_path.name + "/python").python == str(tmp_path / "python")


def test_questions_to_a_slow_tool_share_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TOOL_LIMIT_S", 1.0)
    monkeypatch.setattr(sources, "LEAST_S", 0.3)
    tool = script(tmp_path / "slow", 'sleep "$1"\n')
    source = LiveSource()
    assert isinstance(source.run(tool, "0.8", timeout_s=20.0), Output)
    begin = time.monotonic()
    assert isinstance(source.run(tool, "30", timeout_s=20.0), Absent)
    assert time.monotonic() - begin < 5


def test_without_more_threads_the_areas_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no)
    node = take(FakeSource(), Origin("live"))
    assert isinstance(node.rdma.devices, Absent)
    assert "can't start new thread" in node.rdma.devices.detail
    assert together({"a": lambda: 1, "b": lambda: 2}) == {"a": 1, "b": 2}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_and_its_children(tmp_path: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever runs the tests ignores this signal, and a program keeps that (nohup)")
    for name in ("nvidia-smi", "ibstat", "dmesg"):
        script(tmp_path / name, f"exec sleep 86{number:03}.25\n")
    env = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    argv = [sys.executable, "-m", "epctl", "doctor", "--no-active"]
    doctor = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sought = f"86{number:03}.25".encode()
    deadline = time.monotonic() + 20
    while not running(sought) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(sought), "no tool was started"
    doctor.send_signal(number)
    assert doctor.wait(20) == 128 + number
    time.sleep(0.3)
    assert not running(sought)


def running(word: bytes) -> bool:
    """A process has `word` in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes():
                return True
    return False
