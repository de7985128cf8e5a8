"""Processes that somebody else started as ranks or as nodes, with the environment that a launcher sets."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epctl.core.placement import LOOPBACK
from epctl.ranks.store import listener

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing"),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[3]
MEET = {"task": "epctl.ranks.drill:meet"}
LIMITS = {"join_s": 20.0, "grace_s": 1.0}


def free_port() -> int:
    with listener(LOOPBACK, 0) as found:
        return int(found.getsockname()[1])


def torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {**{name: str(value) for name, value in place.items()}, "MASTER_ADDR": LOOPBACK}


def own_name() -> str:
    """A name of this machine that is not loopback's own."""
    name = os.uname().nodename
    try:
        listener(name, 0).close()
    except OSError:
        pytest.skip("this machine's own name has no address")
    return name


def second_host() -> tuple[str, ...]:
    """What to put before a command, so that it runs under a host name of its own."""
    words = ("unshare", "--uts", "sh", "-c", 'hostname epctl-second && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not give a process a host name of its own")
    return words


def start(
    env: dict[str, str],
    request: dict[str, Any],
    limits: dict[str, Any] = LIMITS,
    *,
    num_local: int = 0,
    before: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    return subprocess.Popen(
        [
            *before,
            sys.executable,
            "-m",
            "tests.support.ranks_parent",
            str(num_local),
            json.dumps(request),
            json.dumps(limits),
        ],
        cwd=ROOT,
        env={**clean, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(children: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    found = []
    for child in children:
        out, err = child.communicate(timeout=60)
        found.append((child.returncode, out, err))
    return found


def test_ranks_of_torchrun_meet_and_rank_0_alone_renders_for_all() -> None:
    port = free_port()
    first, *others = finish([start(torchrun(rank, 2, port), MEET) for rank in range(2)])
    events = [json.loads(line) for line in first[1].splitlines()]
    assert sorted(event["rank"] for event in events if event["kind"] == "here") == [0, 1]
    assert [event["kind"] for event in events].count("met") == 1
    assert first[0] == 0
    assert others == [(0, "", "")]


def test_a_rank_that_fails_says_it_in_full_and_the_others_in_short() -> None:
    port = free_port()
    request = {"task": "epctl.ranks.drill:misbehave", "who": 2, "what": "raise"}
    first, second, third = finish([start(torchrun(rank, 3, port), request) for rank in range(3)])
    cause = 'rank 2 failed in stage "middle": ValueError: a drill'
    assert [code for code, _, _ in (first, second, third)] == [1, 1, 1]
    assert third[2].startswith(f"error: {cause}\n")
    assert first[2].startswith(f"error: {cause}\n")
    assert second[2] == f"[rank 1] ends: {cause}\n"


def test_a_rank_that_is_killed_is_noticed_by_its_neighbours() -> None:
    port = free_port()
    request = {"task": "epctl.ranks.drill:misbehave", "who": 1, "what": "kill"}
    first, second = finish([start(torchrun(rank, 2, port), request) for rank in range(2)])
    assert second[0] == -signal.SIGKILL
    assert first[0] == 1
    assert "error: rank 1 ended without a word (process " in first[2]
    assert 'in stage "middle"' in first[2]


def test_a_rank_0_that_is_killed_takes_the_store_with_it_and_is_named() -> None:
    port = free_port()
    request = {"task": "epctl.ranks.drill:misbehave", "who": 0, "what": "kill"}
    _, second = finish([start(torchrun(rank, 2, port), request) for rank in range(2)])
    assert second[0] == 1
    assert "[rank 1] ends: rank 0 ended" in second[2]


def test_a_hang_ends_at_the_limit() -> None:
    request = {"task": "epctl.ranks.drill:misbehave", "who": 0, "what": "hang", "limit_s": 0.5}
    (only,) = finish([start(torchrun(0, 1, free_port()), request)])
    assert (only[0], only[2]) == (4, 'rank 0 did not get through the stage "middle" within 0.5 s\n')


def test_different_requests_are_refused_before_anything_runs() -> None:
    port = free_port()
    first, second = finish([start(torchrun(rank, 2, port), {**MEET, "rounds": rank}) for rank in range(2)])
    assert (first[0], second[0]) == (2, 2)
    assert first[1] == ""
    assert "error: the ranks were asked for different things" in first[2]
    assert second[2].startswith("[rank 1] ends: the ranks were asked for different things")


def test_two_nodes_meet_and_the_first_one_renders_for_all() -> None:
    name = own_name()
    env = {"MASTER_ADDR": name, "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    children = [
        start({**env, "RANK": "0"}, MEET, num_local=1),
        start({**env, "RANK": "1"}, MEET, num_local=1, before=second_host()),
    ]
    first, second = finish(children)
    assert (first[0], first[2], second) == (0, "", (0, "", ""))
    here = {
        event["rank"]: event["fields"] for event in map(json.loads, first[1].splitlines()) if event["kind"] == "here"
    }
    assert {rank: (fields["host"], fields["node_idx"]) for rank, fields in here.items()} == {
        0: (name, 0),
        1: ("epctl-second", 1),
    }


def test_a_rank_that_dies_on_another_node_is_named_on_the_first() -> None:
    name = own_name()
    env = {"MASTER_ADDR": name, "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    request = {"task": "epctl.ranks.drill:misbehave", "who": 2, "what": "kill"}
    children = [
        start({**env, "RANK": "0"}, request, num_local=2),
        start({**env, "RANK": "1"}, request, num_local=2, before=second_host()),
    ]
    first, second = finish(children)
    assert (first[0], second[0]) == (1, 1)
    for _, _, err in (first, second):
        assert 'error: rank 2 ended by signal 9 (SIGKILL) in stage "middle"' in err
