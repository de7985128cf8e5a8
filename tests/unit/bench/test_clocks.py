from __future__ import annotations

import sys
from typing import Any

import pytest

from epctl.bench import clocks
from epctl.bench.clocks import Clocks, RankClocks
from tests.support.fake_pynvml import fake_pynvml, giving, raising


def play(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> None:  # noqa: ANN401
    answers = {
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle {uuid[-1]}",
        "nvmlDeviceGetComputeRunningProcesses": giving([]),
        **replaced,
    }
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(**answers))


def test_what_nvml_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, nvmlDeviceGetCurrentClocksEventReasons=giving(0x4 | 0x40))
    found = clocks.read("GPU-0")
    assert (found.sm_mhz, found.memory_mhz, found.sm_max_mhz, found.temperature_c) == (345, 3201, 1980, 38)
    assert found.power_w == pytest.approx(104.627)
    assert found.slowed() == ("power cap", "hardware thermal slowdown")
    assert found.num_processes == 0
    assert found.missing == ""


def test_idle_and_set_clocks_are_no_slowdown() -> None:
    assert Clocks(reasons=0x1 | 0x2 | 0x100).slowed() == ()
    assert Clocks(reasons=None).slowed() == ()


def test_a_call_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, nvmlDeviceGetClockInfo=raising(3), nvmlDeviceGetComputeRunningProcesses=None)
    found = clocks.read("GPU-0")
    assert (found.sm_mhz, found.num_processes, found.temperature_c) == (None, None, 38)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_without_nvml_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    play(monkeypatch, **{call: raising(15)})
    assert clocks.read("GPU-0") == Clocks(missing="GPU is lost")


def of(rank: int, uuid: str, before: Clocks, after: Clocks | None = None) -> RankClocks:
    return RankClocks(rank, uuid, before, before if after is None else after)


def test_a_busy_gpu_warns() -> None:
    found = clocks.warnings([of(0, "a", Clocks(num_processes=3)), of(1, "b", Clocks(num_processes=1))])
    assert found == ("rank 0's GPU is busy: 2 other processes have a context on it",)


def test_ranks_that_share_a_gpu_are_no_strangers() -> None:
    both = Clocks(num_processes=2)
    assert clocks.warnings([of(0, "a", both), of(1, "a", both)]) == ()


def test_clocks_that_are_held_down_warn_before_and_after() -> None:
    slow = Clocks(reasons=0x8)
    found = clocks.warnings([of(2, "a", Clocks(), slow), of(3, "b", slow, Clocks())])
    assert found == (
        "rank 2's clocks are held down after timing: hardware slowdown",
        "rank 3's clocks are held down before timing: hardware slowdown",
    )


def test_clocks_that_nobody_could_read_warn() -> None:
    told = ("rank 0's clocks could not be read: no NVML",)
    assert clocks.warnings([of(0, "a", Clocks(missing="no NVML"))]) == told
