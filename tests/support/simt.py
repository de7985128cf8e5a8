"""The expert-parallel kernels on ranks that are threads of this process, compiled for the CPU (tests/simt): the whole of EPBuffer and its
kernels, without a GPU. Streams do nothing; a launch ends when its kernel has."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from epctl.comm.domain import Domain
from epctl.comm.symmetric import SymmetricMemory
from epctl.comm.wait_record import WaitRecord
from epctl.core.op import Layout
from epctl.native.kernels import INCLUDE
from epctl.ops.ep import buffer, streams
from epctl.ops.ep.trial import guard
from tests.support.worlds import Meeting, ThreadWorld, layout, torch_or_skip

ROOT = Path(__file__).parents[1] / "simt"
LIMIT_S = 300.0
NUM_SMS = 3
"""Of each rank. Every block is a thread of the system with 512 fibers."""
Tensor = Any
T = TypeVar("T")


@cache
def library(folder: Path) -> ctypes.CDLL:
    """The kernels, compiled with g++."""
    built = folder / "libsimt.so"
    flags = ("-std=c++20", "-O1", "-g", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-pthread")
    command = (
        "g++",
        *flags,
        "-include",
        "simt.hpp",
        f"-I{ROOT}",
        f"-I{INCLUDE}",
        str(ROOT / "ep.cpp"),
        "-o",
        str(built),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(built))
    loaded.simt_launch.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
    loaded.simt_pauses.argtypes = (ctypes.c_uint32, ctypes.c_uint32)
    return loaded


@contextmanager
def uneven(folder: Path, one_in: int, us: int) -> Iterator[None]:
    """Blocks pause once in so many turns of their threads: ranks get ahead of each other."""
    loaded = library(folder)
    loaded.simt_pauses(one_in, us)
    try:
        yield
    finally:
        loaded.simt_pauses(1 << 17, 2000)


class Stream:
    """Things happen at once."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...

    def wait_event(self, _: object) -> None: ...

    def record_event(self) -> Event:
        return Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    """Everything has happened already."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def record(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's `cuda` is of the host."""
    torch = torch_or_skip()
    current = Stream()
    played = {
        "synchronize": lambda *_: None,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *_: current,
        "stream": lambda stream: stream,
        "device": lambda _: nullcontext(),
        "current_device": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda _: SimpleNamespace(multi_processor_count=NUM_SMS),
    }
    for name, value in played.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for module in (streams, buffer):
        monkeypatch.setattr(module, "record", lambda *_: None)
    monkeypatch.setattr(guard, "WAIT_S", LIMIT_S / 4)  # a loaded machine is slow, and not wrong


class _Kernel:
    def __init__(self, loaded: ctypes.CDLL, name: str, block_threads: int, shared_bytes: int) -> None:
        self._loaded, self._name = loaded, name.encode()
        self._block_threads, self._shared_bytes = block_threads, shared_bytes

    def launch(self, grid: int, stream: int, arguments: bytes) -> None:  # noqa: ARG002
        assert self._loaded.simt_launch(self._name, arguments, grid, self._block_threads, self._shared_bytes) == 0


class _Launcher:
    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded

    def kernel(self, family: object, variant: object, name: str, block_threads: int, shared_bytes: int = 0) -> _Kernel:  # noqa: ARG002
        return _Kernel(self._loaded, name, block_threads, shared_bytes)


class _Memory(SymmetricMemory):
    """Host memory of one rank, whose addresses are good in all threads."""

    def __init__(self, mine: Tensor, everyone: list[int]) -> None:
        self._mine, self._everyone, self._device_idx = mine, everyone, None

    @property
    def address(self) -> int:
        return int(self._mine.data_ptr())

    def peer_address(self, rank: int) -> int:
        return self._everyone[rank]

    def bytes_tensor(self, offset: int = 0, num_bytes: int | None = None) -> Tensor:
        return self._mine[offset : None if num_bytes is None else offset + num_bytes]

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Tensor:  # noqa: ANN401
        if 0 in shape:
            return self._mine.new_empty(shape, dtype=dtype)
        return super().view(offset, shape, dtype)

    def close(self) -> None: ...


class SimtDomain(Domain):
    """One rank."""

    def __init__(self, loaded: ctypes.CDLL, meeting: Meeting, rank: int, num_ranks: int) -> None:
        import torch

        self.rank, self.num_ranks, self.device_idx, self.timeout_s = rank, num_ranks, 0, LIMIT_S
        self.control, self.meeting, self._torch = meeting, meeting, torch
        self.ranks_per_gpu, self.has_nvlink = 1, True
        self.launcher = _Launcher(loaded)
        self._record = WaitRecord(self.device)
        self._rounds = 0

    @property
    def device(self) -> Any:  # noqa: ANN401
        return self._torch.device("cpu")

    @property
    def lsa_rank(self) -> int:
        return self.rank

    @property
    def lsa_size(self) -> int:
        return self.num_ranks

    def symmetric(self, num_bytes: int) -> _Memory:
        mine = self._torch.zeros(num_bytes, dtype=self._torch.uint8)
        told = self.control.all_gather("memory", str(mine.data_ptr()).encode())
        return _Memory(mine, [int(one) for one in told])

    def release(self, memory: SymmetricMemory) -> None: ...

    def barrier(self, stream: int | None = None) -> None:  # noqa: ARG002
        self.meeting.arrive()


class SimtWorld(ThreadWorld):
    """As if it were on a GPU."""

    tier = "gpu"

    def __init__(self, loaded: ctypes.CDLL, rank: int, where: Layout, meeting: Meeting) -> None:
        super().__init__(rank, where, meeting)
        self.comm = SimtDomain(loaded, meeting, rank, where.num_ranks)


def on_ranks(folder: Path, size: int, work: Callable[[SimtWorld], T]) -> list[T]:
    """What `work` returns on each rank. Skipped without g++."""
    torch_or_skip()
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    loaded, meeting, where = library(folder), Meeting(size), layout(size, tier="gpu")

    def one(rank: int) -> T:
        meeting.enter(rank)
        return work(SimtWorld(loaded, rank, where, meeting))

    with ThreadPoolExecutor(size) as pool:
        return [done.result(LIMIT_S) for done in [pool.submit(one, rank) for rank in range(size)]]
