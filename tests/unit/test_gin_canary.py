"""The GIN canary: ranks that lose signals, hang, die or cannot start, and what becomes of it; real child processes, no GPU."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.core.snapshot.software import GinTrial
from epctl.native import loopback_plugin
from epctl.probes import gin_canary
from epctl.probes.collectors import _gin_pair, active_gin  # the second one makes its folder known

from epctl.probes.collectors import _gin_rank  # isort: skip
from tests.support.probing import odd_document

HEAD = """
import json, os, sys, time
rank, skip = int(sys.argv[1]), sys.argv[2].split(",")
def tell(**entry): print(json.dumps(entry), flush=True)
def trial(name, outcome, **more): tell(stage="trial", name=name, outcome=outcome, **more)
def start(*types):
    tell(begin="load"); tell(begin="communicator")
    if rank == 0: tell(stage="id", id="ab" * 4)
    else: assert sys.stdin.readline() == "abababab\\n"
    tell(stage="offered", types=list(types))
def begin(name):
    for stage in ("kernels", "device communicator", "trial"): tell(begin=f"{stage} {name}")
def end(): tell(begin="destroy"); tell(stage="end")
"""


def lines(tmp_path: Path, code: str, deadline_s: float = 20.0) -> list[dict[str, Any]]:
    """What the canary tells of two ranks that run `code`."""
    script = tmp_path / "rank.py"
    script.write_text(HEAD + code)
    one, other = ((sys.executable, str(script), str(rank)) for rank in range(2))
    environ = dict(os.environ)
    return list(_gin_pair.canary((one, other), (environ, environ), time.monotonic() + deadline_s))


def facts(found: list[dict[str, Any]]) -> Any:  # noqa: ANN401 - trials or an Absent
    return gin_canary.trials({"stages": found, "ended": "", "detail": ""})


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gin_pair, "LIMITS_S", {"communicator": 1.0, "device communicator": 1.0, "trial": 1.0})
    monkeypatch.setattr(_gin_pair, "DEFAULT_S", 5.0)
    monkeypatch.setattr(_gin_pair, "GRACE_S", 0.5)


def test_all_types_work_in_one_pair_of_processes(tmp_path: Path) -> None:
    code = (
        "start('proxy', 'gdaki')\nfor n in ('proxy', 'gdaki'): begin(n); trial(n, 'ok', round_ns=31000 + rank)\nend()"
    )
    found = facts(lines(tmp_path, code))
    assert found == (GinTrial("proxy", "ok", round_ns=31001), GinTrial("gdaki", "ok", round_ns=31001))


def test_nothing_offered_is_an_empty_answer(tmp_path: Path) -> None:
    assert facts(lines(tmp_path, "start()\nend()")) == ()


def test_a_lost_signal_does_not_keep_the_next_type_from_its_trial(tmp_path: Path) -> None:
    code = """
start("gdaki", "proxy")
if "gdaki" not in skip:
    begin("gdaki"); trial("gdaki", "lost", where="GIN put", detail=f"rank {rank} waited 5 s"); sys.exit()
begin("proxy"); trial("proxy", "ok", round_ns=5); end()
"""
    found = facts(lines(tmp_path, code))
    assert [(one.name, one.value) for one in found] == [("gdaki", "lost"), ("proxy", "ok")]
    assert (found[0].where, found[0].detail) == ("GIN put", "rank 0 waited 5 s; rank 1 waited 5 s")


@pytest.mark.parametrize(("stage", "where"), [("device communicator", "device communicator"), ("trial", "trial")])
def test_a_hang_is_a_finding_of_its_type_and_stage(tmp_path: Path, stage: str, where: str) -> None:
    code = f"""
start("gdaki", "proxy")
if "gdaki" not in skip:
    tell(begin="kernels gdaki"); tell(begin="{stage} gdaki"); time.sleep(60)
begin("proxy"); trial("proxy", "ok", round_ns=5); end()
"""
    begin = time.monotonic()
    found = facts(lines(tmp_path, code))
    assert time.monotonic() - begin < 10
    assert [(one.name, one.value, one.where) for one in found] == [("gdaki", "hang", where), ("proxy", "ok", "")]
    assert f"has not come out of the stage '{stage} gdaki'" in found[0].detail


def test_the_cause_on_one_rank_counts_more_than_the_wait_of_the_other(tmp_path: Path) -> None:
    code = """
start("gdaki"); begin("gdaki")
if rank == 0: trial("gdaki", "failed", where="device communicator", detail="DOCA error 21"); sys.exit()
time.sleep(60)
"""
    (found,) = facts(lines(tmp_path, code))
    assert (found.value, found.where, found.detail) == ("failed", "device communicator", "DOCA error 21")


def test_a_rank_that_dies_in_a_trial_is_told_with_its_last_words(tmp_path: Path) -> None:
    code = """
start("proxy"); begin("proxy")
if rank == 0: trial("proxy", "ok", round_ns=5); end(); sys.exit()
print("Segmentation fault", file=sys.stderr, flush=True); os.kill(os.getpid(), 11)
"""
    (found,) = facts(lines(tmp_path, code))
    assert found.value == "failed"
    assert found.detail == "rank 1 ended in the stage 'trial proxy': Segmentation fault"


@pytest.mark.parametrize(
    ("code", "reason", "says"),
    [
        ("tell(stage='failed', error='tool_missing', detail='there is no CUDA compiler')", "tool_missing", "compiler"),
        ("tell(begin='load'); sys.exit('boom')", "failed", "code 1 in the stage 'load': boom"),
        ("tell(begin='communicator'); time.sleep(60)", "timed_out", "'communicator'"),
        ("start('proxy'); end()", "failed", "did not try proxy"),
    ],
)
def test_a_canary_that_cannot_be_done_says_why(tmp_path: Path, code: str, reason: str, says: str) -> None:
    found = facts(lines(tmp_path, code))
    assert isinstance(found, Absent)
    assert found.absent == reason
    assert says in found.detail


def test_output_that_is_not_the_ranks_own_is_passed_over(tmp_path: Path) -> None:
    code = "print('host:1 [0] NCCL INFO x'); print('[1]'); tell(stage='trial')\nstart('proxy'); begin('proxy')\n"
    assert [one.value for one in facts(lines(tmp_path, code + "trial('proxy', 'ok', round_ns=1); end()"))] == ["ok"]


def test_the_overall_limit_ends_it_and_is_no_hang_of_a_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gin_pair, "LIMITS_S", {})
    found = facts(lines(tmp_path, "start('proxy'); begin('proxy'); time.sleep(60)", 1.0))
    assert isinstance(found, Absent)
    assert found.absent == "timed_out"


def test_no_process_is_left(tmp_path: Path) -> None:
    mark = tmp_path / "pids"
    code = f"open({str(mark)!r}, 'a').write(f'{{os.getpid()}} ')\nstart('proxy'); begin('proxy'); time.sleep(60)"
    lines(tmp_path, code)
    pids = [int(word) for word in mark.read_text().split()]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_emulation_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_gin_pair.EMULATE, "2")
    (found,) = facts(lines(tmp_path, "start('proxy'); begin('proxy'); trial('proxy', 'ok', round_ns=1); end()"))
    assert found.emulated


def test_nodes_are_played_only_when_that_is_said_in_so_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_plugin, "obtain", lambda: Path("/plugin.so"))
    for value in (None, "", "0", "1"):
        environ = {"A": "b"} if value is None else {"A": "b", _gin_pair.EMULATE: value}
        for one in active_gin.environments(environ, 2):
            assert one["A"] == "b"
            assert not {_gin_pair.EMULATE, "NCCL_HOSTID", "NCCL_RMA_PLUGIN"} & set(one)
    first, second = active_gin.environments({_gin_pair.EMULATE: "2"}, 1)
    assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
    assert first[_gin_pair.EMULATE] == second[_gin_pair.EMULATE] == "2"
    for value in ("3", "yes", "-2"):
        with pytest.raises(EpctlError, match=f"EPCTL_EMULATE_NODES={value}"):
            active_gin.environments({_gin_pair.EMULATE: value}, 2)


@pytest.mark.parametrize("name", ["proxy", "gdaki", "efa_gda", "gpi"])
def test_kernels_that_cannot_be_had_are_no_failure_of_gin(name: str) -> None:
    """nvcc may be missing where g++ is there, so that the communicator works and the kernels do not."""

    class NoCompiler:
        def kernel(self, *_: object) -> None:
            raise EpctlError("there is no CUDA compiler", "looked everywhere", "install one", exit_code=4)

    trial = object.__new__(_gin_rank.Trial)
    trial.name, trial.launcher = name, cast("Any", NoCompiler())
    with pytest.raises(_gin_rank.TrialError) as caught:
        trial.run()
    assert (caught.value.outcome, caught.value.where) == ("untried", "kernels")
    assert ("no CUDA compiler" in caught.value.detail) is (name != "gpi")


def test_what_was_found_before_the_collector_was_cut_counts() -> None:
    document = {"stages": [{"stage": "trial", "name": "proxy", "outcome": "ok"}], "ended": "timed_out", "detail": "x"}
    (found,) = facts_of(document)
    assert (found.name, found.value) == ("proxy", "ok")
    assert facts_of({"stages": [], "ended": "timed_out", "detail": "x"}) == Absent("timed_out", "x")


def facts_of(document: Any) -> Any:  # noqa: ANN401 - JSON in, facts out
    return gin_canary.trials(document)


@given(st.data())
def test_any_damage_gives_a_fact(data: st.DataObject) -> None:
    line = {"stage": "trial", "name": "proxy", "outcome": "ok", "round_ns": 5, "emulated": True}
    document = {"stages": [line, {"stage": "end", "tried": 1}], "ended": "", "detail": ""}
    found = facts_of(odd_document(document, data))
    assert isinstance(found, (tuple, Absent))
