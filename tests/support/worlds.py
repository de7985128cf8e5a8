"""Worlds of ops for tests: one rank alone, or some as threads of this process, with memory that all of them reach."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, TypeVar

import pytest

from epctl.comm.cpu_world import CpuWorld
from epctl.core.op import Layout

T = TypeVar("T")
LIMIT_S = 20.0


def torch_or_skip() -> ModuleType:
    """PyTorch, for the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch: ModuleType = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
        torch.randn(1).to(torch.bfloat16)  # the first use warns of a missing numpy
    return torch


def layout(num_ranks: int, **more: Any) -> Layout:  # noqa: ANN401
    """One domain on one host."""
    told = {"num_gpus": num_ranks, "scale_out": 1, "scale_up": num_ranks, "tier": "cpu", **more}
    return Layout(("node-7",), num_ranks, num_ranks, **told)


class Meeting:
    """All ranks of this process."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._stages: list[str] = [""] * size
        self._values: list[bytes] = [b""] * size
        self._rank = threading.local()

    def enter(self, rank: int) -> None:
        """This thread is `rank`."""
        self._rank.idx = rank

    def arrive(self) -> None:
        """Waits for all."""
        self._barrier.wait(LIMIT_S)

    def all_gather(self, stage: str, value: bytes) -> list[bytes]:
        """See epctl.core.op."""
        rank = self._rank.idx
        self._stages[rank], self._values[rank] = stage, value
        self.arrive()
        found = list(self._values)
        assert set(self._stages) == {stage}, self._stages
        self.arrive()
        return found


class _Memory:
    """Host memory of one rank, whose addresses are good in all threads."""

    def __init__(self, mine: Any, everyone: list[int], freed: list[int]) -> None:  # noqa: ANN401
        self._mine, self._everyone, self._freed = mine, everyone, freed
        self.address = int(mine.data_ptr())

    def peer_address(self, rank: int) -> int:
        return self._everyone[rank]

    def bytes_tensor(self) -> Any:  # noqa: ANN401
        return self._mine

    def close(self) -> None:
        self._freed.append(self.address)


class ThreadWorld(CpuWorld):
    """A rank that is a thread."""

    def __init__(self, rank: int, where: Layout, meeting: Meeting) -> None:
        super().__init__(rank, where, meeting, None)
        self._all = meeting
        self.freed: list[int] = []
        """Addresses of memory that was given back."""

    def barrier(self) -> None:
        self._all.arrive()

    def symmetric(self, num_bytes: int) -> _Memory:
        mine = self.torch.zeros(num_bytes, dtype=self.torch.uint8)
        told = self.meeting.all_gather("memory", str(mine.data_ptr()).encode())
        return _Memory(mine, [int(one) for one in told], self.freed)


def on_ranks(size: int, work: Callable[[ThreadWorld], T], **more: Any) -> list[T]:  # noqa: ANN401
    """What `work` returns on each rank."""
    torch_or_skip()
    meeting, where = Meeting(size), layout(size, **more)

    def one(rank: int) -> T:
        meeting.enter(rank)
        return work(ThreadWorld(rank, where, meeting))

    with ThreadPoolExecutor(size) as pool:
        return [done.result(60) for done in [pool.submit(one, rank) for rank in range(size)]]
