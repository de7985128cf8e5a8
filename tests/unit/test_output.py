"""Where results go: files appear whole, streams may be closed, and exit codes stay those of the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epctl.commands import options
from epctl.core.errors import EpctlError


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    argv = ["bash", "-c", line.replace("EPCTL", f"{sys.executable} -m epctl")]
    return subprocess.run(argv, capture_output=True, check=False, timeout=60)


def test_a_reader_that_closes_the_pipe_does_not_change_the_exit_code() -> None:
    done = shell("EPCTL doctor --sample hgx-h100-ib --format json | true; exit ${PIPESTATUS[0]}")
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize("where", [">&-", "> /dev/full", "2>&- >&-"])
def test_output_that_cannot_be_written_is_no_traceback(where: str) -> None:
    done = shell(f"EPCTL doctor --sample laptop {where}")
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_full_disk_does_not_cost_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(EpctlError, match="No space left"):
        options.emit("new", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "old"


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    (tmp_path / "out").chmod(0o640)
    (tmp_path / "link").symlink_to("out")
    options.emit("new", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out").read_text() == "new"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_stays_one() -> None:
    options.emit("new", Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["a" * 300, "none/out"])
def test_a_place_that_does_not_exist_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(EpctlError, match="could not be written"):
        options.emit("new", tmp_path / name)
