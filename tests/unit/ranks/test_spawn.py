"""Real rank processes: that they come together, and every way in which one can end. The others end within the limit, the message names
rank and stage, and nothing is left."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.core.placement import Placement, spawned
from epctl.ranks.events import Event
from epctl.ranks.litter import SHM
from epctl.ranks.process import started
from epctl.ranks.run import Limits, run
from epctl.ranks.spawn import Environment

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing"),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[3]
SHORT = Limits(join_s=30.0, grace_s=0.5, term_s=1.0)


def act(
    size: int, task: str, environment: Environment | None = None, limits: Limits = SHORT, **request: object
) -> list[Event]:
    """The events of a run in this process."""
    events: list[Event] = []
    whole = {"task": f"epctl.ranks.drill:{task}", **request}
    assert run(whole, spawned(size), events.append, environment=environment, limits=limits) == 0
    return events


def failing(what: str, size: int = 2, who: int = 1, limits: Limits = SHORT, **request: Any) -> EpctlError:  # noqa: ANN401
    """The error of a run in which rank `who` does `what`; none of its processes and files may be left."""
    events: list[Event] = []
    whole = {"task": "epctl.ranks.drill:misbehave", "who": who, "what": what, "memory": 1, **request}
    gc.collect()
    num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(EpctlError) as caught:
        run(whole, spawned(size), events.append, limits=limits)
    assert len(os.listdir("/proc/self/fd")) <= num_open  # noqa: PTH208
    pids = [event.fields["pid"] for event in events if event.kind == "ready"]
    assert not [pid for pid in pids if started(pid)]
    assert not [pid for pid in pids if Path(f"{SHM}epctl-drill-{pid}").exists()]
    return caught.value


def test_four_ranks_meet_and_every_one_of_them_is_heard() -> None:
    events = act(4, "meet", lambda place: {"EPCTL_DRILL_ECHO": f"value {place.rank}"})
    assert sorted(event.rank for event in events if event.kind == "here") == [0, 1, 2, 3]
    assert len({event.fields["pid"] for event in events if event.kind == "here"}) == 4
    assert all(event.fields["echo"] == f"value {event.rank}" for event in events if event.kind == "here")
    assert [(event.rank, event.fields) for event in events if event.kind == "met"] == [(0, {"num_ranks": 4})]


@pytest.mark.parametrize(
    ("what", "size", "words", "exit_code"),
    [
        ("kill", 2, 'rank 0 ended by signal 9 (SIGKILL) in stage "middle"', 1),
        ("exit", 1, 'rank 0 ended with exit code 3 in stage "middle"', 1),
        ("leave", 1, 'rank 0 ended with exit code 0 in stage "middle", before its work was done', 1),
        ("raise", 2, 'rank 0 failed in stage "middle": ValueError: a drill', 1),
        ("refuse", 1, 'the drill refuses (rank 0, stage "middle")', 4),
    ],
)
def test_a_rank_that_ends_in_the_middle_is_named_with_its_stage(
    what: str, size: int, words: str, exit_code: int
) -> None:
    began = time.monotonic()
    error = failing(what, size=size, who=0)
    assert (error.what, error.exit_code) == (words, exit_code)
    assert time.monotonic() - began < 25


def test_a_hang_ends_at_the_limit_of_the_stage_and_the_rank_that_hangs_is_the_cause(
    capfd: pytest.CaptureFixture[str],
) -> None:
    error = failing("hang", who=0, limit_s=1.5)
    assert (error.what, error.exit_code) == ('rank 0 did not get through the stage "middle" within 1.5 s', 4)
    assert '[rank 0] rank 0 did not get through the stage "middle" within 1.5 s\n' in capfd.readouterr().err


def test_a_rank_that_is_stopped_is_killed_and_named() -> None:
    error = failing("stop", limit_s=1.0)
    assert 'it waited for rank 1 to come to "after"' in error.what
    assert 'rank 1 (stage "middle") did not end when it was told to, and was killed' in error.why


def test_the_limit_of_the_whole_run_holds_and_tells_where_each_rank_stood() -> None:
    error = failing("hang", size=1, who=0, limits=Limits(whole_s=1.5, grace_s=0.5, term_s=1.0))
    assert (error.what, error.exit_code) == ("the ranks were not done within 1.5 s", 4)
    assert error.why.startswith('at the end: rank 0 in stage "')


def test_a_rank_whose_watchdog_cannot_run_is_ended_by_the_kernel() -> None:
    error = failing("freeze", size=1, who=0, limit_s=0.5)
    assert (error.what, error.exit_code) == ('rank 0 ended by signal 14 (SIGALRM) in stage "middle"', 4)
    assert "not even its watchdog could run" in error.why


def test_a_barrier_that_one_rank_misses_names_it() -> None:
    error = failing("hang", who=0, arrive_s=0.5)
    assert error.what == 'rank 0 did not come to stage "after" within 0.5 s (rank 1, stage "middle")'
    assert error.exit_code == 4


def test_a_rank_that_dies_before_it_joins_ends_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    """Its interpreter cannot even start."""

    def broken(place: Placement) -> dict[str, str]:
        return {"PYTHONHOME": "/nonexistent"} if place.rank == 1 else {}

    began = time.monotonic()
    with pytest.raises(EpctlError) as caught:
        act(2, "meet", broken)
    assert caught.value.what == 'rank 1 ended with exit code 1 in stage "start"'
    assert time.monotonic() - began < 25
    assert "[rank 1] " in capfd.readouterr().err


def test_standard_error_is_passed_on_by_rank_and_what_ranks_print_is_no_data(capfd: pytest.CaptureFixture[str]) -> None:
    act(1, "misbehave", who=0, what="chatter")
    out, err = capfd.readouterr()
    assert out == ""
    assert "[rank 0] a line?[31m\n" in err
    assert "no end of line" in err
    assert "no data" in err


def test_a_task_outside_epctl_is_refused() -> None:
    with pytest.raises(EpctlError, match=r"the task 'os:getpid' cannot be run"):
        run({"task": "os:getpid"}, spawned(1), lambda _: None, limits=SHORT)


def parent(size: int, request: dict[str, Any]) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.support.ranks_parent", str(size), json.dumps(request), '{"term_s":1.0}']
    return subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ready(child: subprocess.Popen[str], size: int) -> list[int]:
    assert child.stdout is not None
    return [json.loads(child.stdout.readline())["fields"]["pid"] for _ in range(size)]


def gone(pids: list[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(started(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("number", "size", "code"), [(signal.SIGINT, 2, 130), (signal.SIGTERM, 1, 143), (signal.SIGKILL, 2, -9)]
)
def test_the_end_of_the_parent_ends_all_ranks_and_leaves_nothing(number: signal.Signals, size: int, code: int) -> None:
    """Also when it is killed, which no program can answer: the kernel ends the ranks then."""
    with parent(size, {"task": "epctl.ranks.drill:misbehave", "who": size - 1, "what": "hang", "memory": 1}) as child:
        pids = ready(child, size)
        began = time.monotonic()
        child.send_signal(number)
        assert child.wait(timeout=20) == code
        assert gone(pids, 5.0)
        assert time.monotonic() - began < 8
        assert child.stderr is not None
        assert "Traceback" not in child.stderr.read()
    left = [path for pid in pids if (path := Path(f"{SHM}epctl-drill-{pid}")).exists()]
    if number == signal.SIGKILL:
        for path in left:  # nobody is there to remove them
            path.unlink()
        return
    assert left == []


def test_an_error_of_who_renders_ends_the_ranks() -> None:
    """Nobody reads the results any more, say."""
    pids = []

    def full(event: Event) -> None:
        pids.append(event.fields["pid"])
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run({"task": "epctl.ranks.drill:misbehave", "who": 0, "what": "hang"}, spawned(1), full, limits=SHORT)
    assert len(pids) == 1
    assert started(pids[0]) == 0


def test_two_jobs_at_once_do_not_collide() -> None:
    with parent(1, {"task": "epctl.ranks.drill:meet"}) as one, parent(1, {"task": "epctl.ranks.drill:meet"}) as other:
        for child, num_events in ((one, 2), (other, 2)):
            out, err = child.communicate(timeout=60)
            assert (child.returncode, err) == (0, "")
            assert len(out.splitlines()) == num_events
