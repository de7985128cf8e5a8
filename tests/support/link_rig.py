"""The link kernels on two GPUs: compiled into epctl's cache, loaded by its host extension, run on PyTorch's memory."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from epctl.comm.wait_record import WaitRecord
from epctl.core.errors import EpctlError
from epctl.native import host_extension, kernels, toolchain, waits
from epctl.native.cache import Cache
from epctl.native.families import LINK, Variant
from epctl.native.kernels import Kernels
from epctl.native.link_args import LinkArgs, PingPongArgs
from tests.support import gpus
from tests.support.gpus import Tensor

Kernel: TypeAlias = Any
"""epctl_host.Kernel, which is built at run time."""
GUARD_BYTES = 16 * 257
"""Before and after each buffer. Rows then begin at a multiple of 16 bytes and of no more."""
ALIGNED_GUARD_BYTES = 16 * 256
"""Rows then begin at a multiple of 128 bytes, which bulk copies are faster with."""
_WORD = 1 << 64
_BLOCK_SHARED_BYTES = 227 * 1024
_RESERVED_SHARED_BYTES = 1024


def _signed(value: int) -> int:
    return value - _WORD if value >= _WORD // 2 else value


class Rig:
    """All variants of the link kernels, on both GPUs."""

    def __init__(self, torch: ModuleType, host: ModuleType, made: dict[str, Kernels]) -> None:
        self.torch = torch
        self.made = made
        self._host = host
        self.num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.kernel = lru_cache(None)(self._kernel)

    def _kernel(self, function: str, variant: Variant, device_idx: int) -> Kernel:
        shared = dict(variant.defines)["EPCTL_BULK_SHARED_BYTES"] if function == "bulk_copy" else 0
        cubin = self._host.Cubin(self.made[variant.name].cubin.read_bytes(), device_idx)
        return self._host.Kernel(cubin, f"epctl_link_{function}", shared)

    def launch(self, function: str, variant: Variant, device_idx: int, grid: int, arguments: bytes) -> None:
        """Into the current stream of the GPU."""
        block = 32 if function == "ping_pong" else block_threads(variant)
        stream = self.torch.cuda.current_stream(device_idx).cuda_stream
        self.kernel(function, variant, device_idx).launch(grid, block, stream, arguments)

    def full_grid(self, function: str, variant: Variant) -> int:
        """Blocks that run at once, 1024 threads for each SM at most."""
        if function == "bulk_copy":
            shared = dict(variant.defines)["EPCTL_BULK_SHARED_BYTES"] + _RESERVED_SHARED_BYTES
            return int(self.num_sms * max(1, _BLOCK_SHARED_BYTES // shared))
        return int(self.num_sms * 1024 // block_threads(variant))

    def settle(self, limit_s: float = gpus.SETTLE_S) -> float:
        """Waits for both GPUs; the test fails when they take longer."""
        return gpus.settle(self.torch, limit_s)

    def median_ms(self, function: str, variant: Variant, grid: int, arguments: bytes, samples: int = 20) -> float:
        """Time of a launch on GPU 0 between two events, after three launches that do not count."""
        cuda = self.torch.cuda
        with cuda.device(0):
            for _ in range(3):
                self.launch(function, variant, 0, grid, arguments)
            events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(samples)]
            for begin, end in events:
                begin.record()
                self.launch(function, variant, 0, grid, arguments)
                end.record()
        self.settle()
        return float(statistics.median([begin.elapsed_time(end) for begin, end in events]))


def row_bytes(variant: Variant) -> int:
    """Bytes of a row of the variant."""
    return dict(variant.defines)["EPCTL_ROW_BYTES"]


def block_threads(variant: Variant) -> int:
    """Threads of a block of the variant."""
    return dict(variant.defines)["EPCTL_BLOCK_THREADS"]


def rig_or_skip() -> Rig:
    """The rig; skipped with the reason where a GPU, PyTorch, pybind11 or the compiler is missing. What does not compile is an error."""
    pytest.importorskip("pybind11", reason="pybind11 is not installed")
    torch = gpus.torch_or_skip(2)
    try:
        major, minor = torch.cuda.get_device_capability(0)
        architecture = toolchain.architecture_of(f"{major}.{minor}")
        toolchain.find((architecture,))
    except EpctlError as error:
        pytest.skip(f"{error.what}: {error.why}")
    gpus.enable_peers(torch, 2)
    cache = Cache()
    wanted = kernels.wanted((LINK,), (architecture,))
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda one: kernels.obtain(one, cache), wanted))
    return Rig(torch, host_extension.load(cache), {one.wanted.variant.name: one for one in made})


class Rows:
    """Random bytes on one GPU between guards, which nobody may change."""

    def __init__(self, rig: Rig, device_idx: int, size_bytes: int, seed: int, guard_bytes: int = GUARD_BYTES) -> None:
        self._torch = rig.torch
        device = f"cuda:{device_idx}"
        generator = self._torch.Generator(device).manual_seed(seed)
        shape = (size_bytes + 2 * guard_bytes,)
        self._whole = self._torch.randint(0, 256, shape, dtype=self._torch.uint8, device=device, generator=generator)
        self._begin, self._end = guard_bytes, guard_bytes + size_bytes
        self._guards = self._whole[: self._begin].clone(), self._whole[self._end :].clone()
        self.body = self._whole[self._begin : self._end]
        self.address: int = self.body.data_ptr()

    def expect(self, wanted: Tensor) -> None:
        """Each bit inside is as in `wanted` (bytes), and the guards are as they were."""
        same = self.body == wanted.to(self.body.device)
        if not bool(same.all()):
            wrong = (~same).nonzero()
            pytest.fail(f"{wrong.numel()} of {same.numel()} bytes differ, the first at {int(wrong[0])}")
        assert self._torch.equal(self._whole[: self._begin], self._guards[0]), "bytes before the rows were changed"
        assert self._torch.equal(self._whole[self._end :], self._guards[1]), "bytes after the rows were changed"


class PingPong:
    """Flags, times and records of two ranks, one for each GPU; rank 0 serves."""

    def __init__(self, rig: Rig, variant: Variant, begin: int) -> None:
        torch = rig.torch
        self._rig, self._variant, self.begin = rig, variant, begin
        self._flags = [torch.full((1,), _signed(begin), dtype=torch.int64, device=f"cuda:{i}") for i in range(2)]
        self._elapsed = [torch.full((1,), -1, dtype=torch.int64, device=f"cuda:{i}") for i in range(2)]
        self._records = [WaitRecord(torch.device("cuda", i)) for i in range(2)]
        rig.settle()
        for rank in range(2):  # a module that is loaded while another kernel spins may wait for it
            rig.kernel("ping_pong", variant, rank)

    def start(self, rank: int, num_rounds: int, timeout_s: float) -> None:
        """Launches the side of `rank`."""
        mine, theirs = self._flags[rank].data_ptr(), self._flags[1 - rank].data_ptr()
        elapsed, limits = self._elapsed[rank].data_ptr(), self._records[rank].limits(timeout_s, rank)
        args = PingPongArgs(mine, theirs, self.begin, num_rounds, elapsed, 1 - rank, rank == 0, limits)
        self._rig.launch("ping_pong", self._variant, rank, 1, args.pack())

    def flag(self, rank: int) -> int:
        """Value of the flag in the memory of `rank`."""
        return int(self._flags[rank]) % _WORD

    def elapsed_ns(self, rank: int) -> int:
        """What the kernel measured; -1 when it has not ended well."""
        return int(self._elapsed[rank])

    def timeout(self, rank: int) -> waits.Timeout | None:
        """What the record of `rank` says."""
        return self._records[rank].timeout()


def link_bytes(num_rows: int, **addresses: int) -> bytes:
    """Packed LinkArgs."""
    return LinkArgs(num_rows, **addresses).pack()
