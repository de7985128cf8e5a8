"""`epctl build` compiles ahead, says what it did, and lists it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epctl import cli
from epctl.native import building, cache, compilers
from epctl.native.toolchain import Toolchain

ROOT = Path(__file__).parents[2]


def epctl(*argv: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, cache.VARIABLE: str(folder), **environ}
    command = [sys.executable, "-W", "error", "-m", "epctl", "build", *argv]
    return subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, check=False)


def on_a_terminal(folder: Path) -> bytes:
    """What a build writes to a terminal on standard error."""
    ours, theirs = pty.openpty()
    everything = {**os.environ, cache.VARIABLE: str(folder), "TERM": "xterm"}
    command = [sys.executable, "-m", "epctl", "build"]
    subprocess.run(command, cwd=ROOT, env=everything, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    told = os.read(ours, 1 << 16)
    os.close(ours)
    return told


@pytest.mark.nvcc
@pytest.mark.slow
def test_build_and_list(tools: Toolchain, cache_folder: Path) -> None:
    if tools.nccl is None:
        pytest.skip("it needs NCCL's headers and library")
    pytest.importorskip("pybind11", reason="pybind11 is not installed")
    first = epctl("--arch", "sm_90a,100a", folder=cache_folder)
    assert (first.returncode, first.stderr) == (0, "")
    again = epctl("--format", "json", folder=cache_folder)
    document = json.loads(again.stdout)
    assert document["schema"] == {"name": "epctl.build", "version": 1}
    rows = document["build"]["rows"]
    assert [row["built"] for row in rows] == [False] * len(rows)
    assert {row["architecture"] for row in rows} == {"90a", "100a", ""}
    assert {row["name"] for row in rows if not row["architecture"]} == {"host", "nccl", "loopback"}
    assert f"{len(rows)}/{len(rows)}".encode() in on_a_terminal(cache_folder)
    listed = epctl("--list", folder=cache_folder).stdout
    for row in rows:
        assert row["name"] in first.stdout
        assert row["name"] in listed
    assert f"nvcc {tools.nvcc.version}" in listed


@pytest.mark.nvcc
@pytest.mark.slow
def test_one_op_comes_with_all_that_it_needs_to_run(tools: Toolchain, cache_folder: Path) -> None:
    if tools.nccl is None:
        pytest.skip("it needs NCCL's headers and library")
    """An image that was filled for one op has its communicator's parts, too."""
    pytest.importorskip("pybind11", reason="pybind11 is not installed")
    done = epctl("--op", "link", "--arch", "90a", "--format", "json", folder=cache_folder)
    rows = json.loads(done.stdout)["build"]["rows"]
    assert {row["name"] for row in rows if not row["name"].startswith("link-")} == {
        "barrier-lsa-90a",
        "host",
        "nccl",
        "loopback",
    }


def test_without_nccl_what_needs_none_is_still_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from epctl.core.errors import EpctlError
    from epctl.native import families, toolchain

    def none(**_: object) -> object:
        raise EpctlError("there is no NCCL", "nowhere", "install it", exit_code=4)

    monkeypatch.setattr(toolchain, "find_nccl", none)
    nccl, why = building._nccl((families.LINK, families.BARRIER))
    assert nccl is None
    assert "there is no NCCL (nowhere)" in why
    with pytest.raises(EpctlError, match="there is no NCCL"):
        building._nccl((families.GIN,))


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--arch", "80"), "before Hopper"),
        (("--op", "x"), "there are kernels for link"),
        (("--format", "x"), "it may be"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, argv: tuple[str, ...], why: str) -> None:
    done = epctl(*argv, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pybind11", reason="pybind11 is not installed")
    monkeypatch.setattr(compilers, "_toolkits", lambda: iter(()))
    monkeypatch.setattr(sys, "argv", ["epctl", "build"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4
    assert "there is no CUDA compiler" in capsys.readouterr().err


def test_without_pybind11_nothing_is_compiled_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pybind11", None)
    monkeypatch.setattr(sys, "argv", ["epctl", "build"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4
    assert "pybind11 is not installed" in capsys.readouterr().err


def test_list_needs_no_compiler(tmp_path: Path) -> None:
    done = epctl("--list", folder=tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0
    assert "nothing is cached" in done.stdout
    (tmp_path / "v1" / "link-x").mkdir(parents=True)
    told = json.loads(epctl("--list", "--format", "json", folder=tmp_path).stdout)
    assert told["list"]["broken"] == [str(tmp_path / "v1" / "link-x")]
    shutil.rmtree(tmp_path / "v1")


def test_a_toolkit_that_knows_one_architecture_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from epctl.core.errors import EpctlError
    from epctl.native.compilers import Gxx, Nvcc

    def with_nvcc(version: str) -> Toolchain:
        return Toolchain(Nvcc("/n", "/h", version, "CUDA_HOME"), Gxx("/g", "12.2.0", "PATH"))

    assert building.known(with_nvcc("12.4.1")) == ("90a",)
    assert building.known(with_nvcc("13.0.88")) == ("90a", "100a")
    with pytest.raises(EpctlError, match="too old for sm_90a"):
        building.known(with_nvcc("11.8.0"))
