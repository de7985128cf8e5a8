"""`epctl selftest` and `epctl bench` whose reader goes away, as `| head -1` does: they end, and leave nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epctl.ranks import litter
from epctl.ranks.process import started
from tests.support.worlds import torch_or_skip

pytestmark = pytest.mark.slow
LIMIT_S = 4.0
"""From the end of the reader to the end of the command: the next result, and the ends of the ranks."""
START_S = 6.0
"""Until the first result of ranks that import PyTorch; the whole self-test takes longer than both."""
SELFTEST = ("selftest", "--tier", "cpu", "--ranks", "2")
BENCH = ("bench", "--op", "link", "--device", "cpu", "--ranks", "2", "--budget", "0.5")


@pytest.fixture(autouse=True)
def torch() -> None:
    torch_or_skip()


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Killed in the end, should it still run."""
    argv = (sys.executable, "-m", "epctl", *arguments)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ranks_of(process: subprocess.Popen[str], count: int) -> dict[int, int]:
    """Process ids and start times of a command's ranks, once so many are there."""
    found: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        pids = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split())
        found = {pid: started(pid) for pid in pids if b"epctl.ranks" in Path(f"/proc/{pid}/cmdline").read_bytes()}
        time.sleep(0.01)
    assert len(found) == count
    return found


def ends_early(process: subprocess.Popen[str], ranks: dict[int, int]) -> None:
    """Its reader has just gone: it ends soon, as well as it went until then, without a word and with its ranks."""
    began = time.monotonic()
    assert process.wait(timeout=60) == 0
    assert time.monotonic() - began < LIMIT_S
    nothing_left(process, ranks)


def nothing_left(process: subprocess.Popen[str], ranks: dict[int, int]) -> None:
    assert [pid for pid, since in ranks.items() if started(pid) == since] == []
    assert litter.orphans(time.time() - 120) == set()
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.parametrize("arguments", [SELFTEST, BENCH])
def test_lines_that_nobody_reads_end_the_run(arguments: tuple[str, ...]) -> None:
    with command(*arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("NO KERNEL RAN")
        ranks = ranks_of(process, 2)
        process.stdout.close()
        ends_early(process, ranks)


def test_a_result_that_nobody_will_read_is_not_made() -> None:
    """JSON comes at the end, but the pipe tells before that its reader is gone."""
    with command(*SELFTEST, "--format", "json") as process:
        assert process.stdout is not None
        ranks = ranks_of(process, 2)
        began = time.monotonic()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < START_S + LIMIT_S
        nothing_left(process, ranks)


@pytest.mark.parametrize("option", ["--json", "--output"])
def test_a_file_that_gets_the_results_gets_all_of_them(tmp_path: Path, option: str) -> None:
    path = tmp_path / "record.json"
    few = (*BENCH, "--sizes", "64K", "--samples", "3", "--case", "round-trip/*")
    with command(*few, option, str(path), *(("--format", "json") if option == "--output" else ())) as process:
        assert process.stdout is not None
        ranks_of(process, 2)
        process.stdout.close()
        assert process.wait(timeout=60) == 0
    assert json.loads(path.read_bytes())["complete"] is True
