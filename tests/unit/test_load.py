"""What a user points at: pipes, names that are too long, sizes past the limits, and what redaction leaves in a bundle's head."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.probes import bundle, capturing, load, tools
from epctl.probes.source import Output, Recording

READ: dict[str, Callable[[Path], object]] = {
    "from_path": load.from_path,
    "bundle_at": lambda path: load.bundle_at(path, None),
    "probe --file": lambda path: tools.probe("ibstat", path),
    "probe --from": lambda path: tools.probe("ibstat", None, path),
    "capture --from": lambda path: capturing.capture(capturing.Request(path.parent / "out.tgz"), path),
}


@pytest.mark.parametrize("reader", READ)
def test_a_pipe_is_refused_without_waiting(tmp_path: Path, reader: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EpctlError) as caught:
        READ[reader](tmp_path / "pipe")
    assert "pipe" in caught.value.why


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "missing", "file/below"])
@pytest.mark.parametrize("reader", READ)
def test_a_name_that_cannot_be_opened_gives_an_error(tmp_path: Path, reader: str, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EpctlError) as caught:
        READ[reader](tmp_path / name)
    assert caught.value.todo


@pytest.mark.parametrize("name", ["a" * 300, "missing"])
def test_an_interpreter_that_cannot_be_opened_gives_an_error(tmp_path: Path, name: str) -> None:
    request = capturing.Request(tmp_path / "out.tgz", active=False, python=name)
    for call in (lambda: load.live(active=False, python=name), lambda: capturing.capture(request)):
        with pytest.raises(EpctlError) as caught:
            call()
        assert "--python" in caught.value.todo


def test_a_pipe_that_the_shell_holds_open_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"CA 'mlx5_0'\n")
    os.close(writing)
    try:
        tools.probe("ibstat", Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)


@pytest.mark.parametrize("where", ["snapshot.json", "folder/snapshot.json"])
def test_a_snapshot_past_the_limit_is_not_decoded(tmp_path: Path, where: str) -> None:
    file = tmp_path / where
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as stream:
        stream.truncate(load.MAX_SNAPSHOT_BYTES + 1)
    with pytest.raises(EpctlError, match="refused") as caught:
        load.from_path(file if file.parent == tmp_path else file.parent)
    assert "larger than" in caught.value.why


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read_give_an_error(tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").touch(mode=0)
    with pytest.raises(EpctlError, match="could not be read"):
        load.from_path(tmp_path)


def test_big_files_beside_a_raw_output_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ibstat.txt").write_bytes(b"CA 'mlx5_0'\n")
    for name in ("core.1234", "notes.txt", "trace.json"):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(bundle.MAX_MEMBER_BYTES + 1)
    assert load.bundle_at(tmp_path, None).recording.commands[("ibstat",)] == Output(b"CA 'mlx5_0'\n")
    assert load.from_path(tmp_path).origin.kind == "recorded"


def test_many_commands_with_one_slug_stay_readable(tmp_path: Path) -> None:
    commands: dict[tuple[str, ...], Output | Absent] = {
        ("grep", "x" * 120, str(i)): Output(str(i).encode()) for i in range(60)
    }
    before = bundle.Bundle(bundle.Manifest(), Recording(commands=commands))
    bundle.write_archive(bundle.pack(before), tmp_path / "a.tgz")
    assert load.bundle_at(tmp_path / "a.tgz", None).recording.commands == commands


def test_file_name_and_description_are_redacted(tmp_path: Path) -> None:
    recording = Recording(documents={"process": {"hostname": "rack42-n17"}})
    before = bundle.Bundle(bundle.Manifest(description="rack42-n17 as it came"), recording)
    bundle.write_archive(bundle.pack(before), tmp_path / "in.tgz")
    out = tmp_path / "rack42-n17.tgz"
    for description in ("", "seen on rack42-n17"):
        capturing.capture(capturing.Request(out, redact=True, description=description), tmp_path / "in.tgz")
        members = bundle.read_archive(out)
        assert not [name for name, content in members.items() if b"rack42" in content]
        assert json.loads(members["manifest.json"])["description"]
        assert "description of the bundle" not in load.bundle_at(out, None).recording.documents


def test_a_capture_that_could_not_be_stored_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the machine was read")

    monkeypatch.setattr(capturing, "take", never)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EpctlError, match="no regular file"):
        capturing.capture(capturing.Request(tmp_path / "pipe"))


def test_a_capture_holds_every_tool_that_has_a_reader_also_those_the_probes_did_not_need(tmp_path: Path) -> None:
    from epctl.probes.archive import read_archive

    capturing.capture(capturing.Request(tmp_path / "x.tgz", active=False))
    found = bundle.unpack(read_archive(tmp_path / "x.tgz"), "x").recording.commands
    assert set(load.PRINTED.values()) - set(found) == {capturing.SWEEPS_THE_FABRIC}
