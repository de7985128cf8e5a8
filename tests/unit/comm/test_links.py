"""Which ranks' GPUs NVLink joins: asked of NVML by identity, so that it does not matter which GPUs a rank's CUDA sees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from epctl.comm.links import NVLINK, Seat, joined
from tests.support.fake_pynvml import fake_pynvml, raising

NOT_SUPPORTED = 1
"""NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED."""


def seat(uuid: str, host: str = "node-7") -> Seat:
    return Seat(host, f"GPU-{uuid}")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """NVML of a machine on which the named pairs are joined by NVLink, and all by PCIe."""

    def made(*pairs: str, **replaced: Any) -> None:  # noqa: ANN401
        def status(a: str, b: str, index: int) -> int:
            joins = f"{a[4:]}{b[4:]}" in pairs or f"{b[4:]}{a[4:]}" in pairs
            return 0 if index != NVLINK or joins else NOT_SUPPORTED

        answers = {"nvmlDeviceGetHandleByUUID": lambda uuid: uuid, "nvmlDeviceGetP2PStatus": status, **replaced}
        monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(**answers))

    return made


def test_every_pair_of_a_rank_counts(machine: Callable[..., None]) -> None:
    machine("ab", "bc")
    assert joined(seat("a"), (seat("a"), seat("b")))
    assert joined(seat("b"), (seat("a"), seat("b"), seat("c")))
    assert not joined(seat("a"), (seat("a"), seat("b"), seat("c")))


def test_ranks_that_share_a_gpu_need_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert joined(seat("a"), (seat("a"), seat("a")))


def test_across_hosts_there_is_nothing_but_nvlink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert joined(seat("a"), (seat("a"), seat("b", "node-8")))


def test_what_nvml_does_not_tell_is_no_link(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    both = (seat("a"), seat("b"))
    machine("ab", nvmlDeviceGetHandleByUUID=raising(2))
    assert not joined(both[0], both)
    machine("ab", nvmlInit=raising(9))
    assert not joined(both[0], both)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not joined(both[0], both)
