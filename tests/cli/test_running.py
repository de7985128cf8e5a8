"""What bench and selftest make of their options."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.bench import devices
from epctl.bench.job import Job
from epctl.commands import running
from epctl.core import launch
from epctl.core.errors import EpctlError
from epctl.core.op import Tier
from epctl.native import loopback_plugin


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher around."""
    monkeypatch.setattr(launch, "detect", lambda _: None)


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    good = tmp_path / "old.json"
    good.write_text("old")
    running.writable({"--json": good, "--output": tmp_path / "new", "--calibration": None})
    running.writable({"--output": Path("/dev/null")})
    for path, why in ((tmp_path, "it is a folder"), (tmp_path / "none" / "x", "there is no folder")):
        with pytest.raises(EpctlError, match=r"--json .* cannot be written") as caught:
            running.writable({"--output": good, "--json": path})
        assert why in caught.value.why
    assert good.read_text() == "old"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["64K,16M"], (65536, 16 << 20)),
        (["1GiB", "7168"], (1 << 30, 7168)),
        (["3kb"], (3072,)),
        (None, ()),
        ([" 8 , 8 "], (8,)),
    ],
)
def test_sizes(words: list[str] | None, found: tuple[int, ...]) -> None:
    assert running.sizes(words) == found


@pytest.mark.parametrize("word", ["", "K", "1.5M", "-1", "1T", "٣", "1 0", "1" * 16])
def test_what_is_no_size(word: str) -> None:
    if word:
        with pytest.raises(EpctlError, match="is no size"):
            running.sizes([word])
    else:
        assert running.sizes([word]) == ()


def test_counts() -> None:
    assert running.counts(["8,24", "auto"], "--sms") == (8, 24)
    assert running.counts(["auto"], "--sms") == ()


@given(st.text(max_size=12))
def test_any_text_is_a_list_of_numbers_or_an_error(text: str) -> None:
    try:
        assert all(number > 0 for number in running.counts([text], "--sms"))
    except EpctlError as error:
        assert error.exit_code == 2


@pytest.mark.parametrize(
    ("ranks", "nodes", "gpus", "found"),
    [
        (None, None, 8, 8),
        (None, None, 0, 2),
        (None, 2, 8, 8),
        (None, 3, 8, 3),
        (4, 2, 2, 4),
        (None, 2, 1, 2),
        (1, None, 2, 1),
    ],
)
def test_ranks(ranks: int | None, nodes: int | None, gpus: int, found: int) -> None:
    place = running.placing(ranks, nodes, gpus)
    assert place.num_local == found
    assert running.spawned_ranks(place) == found


def test_ranks_that_do_not_fill_the_nodes() -> None:
    with pytest.raises(EpctlError, match="5 ranks do not divide into 2 nodes") as caught:
        running.placing(5, 2, 2)
    assert "--ranks 4" in caught.value.todo


def emulated(monkeypatch: pytest.MonkeyPatch, tier: Tier, ranks: int, nodes: int | None) -> list[dict[str, str]]:
    monkeypatch.setattr(loopback_plugin, "obtain", lambda: Path("/cache/libepctl-loopback.so"))
    monkeypatch.setattr(devices, "visible", lambda: devices.Devices(2))
    place = launch.spawned(ranks)
    found = running.emulation(Job(tier, emulate_nodes=nodes), place)
    return [] if found is None else [found(rank) for rank in place.placements()]


def test_every_rank_is_told_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    found = emulated(monkeypatch, "gpu", 4, 2)
    assert [one["NCCL_HOSTID"][-1] for one in found] == ["0", "0", "1", "1"]
    assert {one["NCCL_RMA_PLUGIN"] for one in found} == {"/cache/libepctl-loopback.so"}
    assert all(one["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" for one in found)
    assert not any("NCCL_MULTI_RANK_GPU_ENABLE" in one for one in emulated(monkeypatch, "gpu", 2, 2))


def test_nothing_is_emulated_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert emulated(monkeypatch, "gpu", 2, None) == []
    assert emulated(monkeypatch, "cpu", 4, 2) == []
