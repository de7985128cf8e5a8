"""Kernels by name: compiled at first use, loaded once for each device, launched with the bytes of one struct."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from epctl.native import host_extension, kernels
from epctl.native.cache import Cache
from epctl.native.families import Family, Variant
from epctl.native.kernels import Wanted


class Kernel:
    """A kernel of one variant on one device."""

    def __init__(self, loaded: Any, block_threads: int) -> None:  # noqa: ANN401 - epctl_host.Kernel
        self._loaded = loaded
        self.block_threads = block_threads

    def launch(self, grid: int, stream: int, arguments: bytes) -> None:
        """Into the stream (cudaStream_t as an integer). Raises epctl_host.DriverError."""
        self._loaded.launch(grid, self.block_threads, stream, arguments)

    def attribute(self, which: int) -> int:
        """cuFuncGetAttribute."""
        return int(self._loaded.attribute(which))


class Launcher:
    """Kernels for one device."""

    def __init__(self, device_idx: int, architecture: str, *, with_torch: bool = False) -> None:
        self._device_idx = device_idx
        self._architecture = architecture
        self._with_torch = with_torch
        self._host = host_extension.load()
        self._cubin = lru_cache(None)(self._load)
        self._kernel = lru_cache(None)(self._make)

    def kernel(self, family: Family, variant: Variant, name: str, block_threads: int, shared_bytes: int = 0) -> Kernel:
        """Compiled now, or out of the cache. Load every kernel before any kernel waits for a peer: loading one may wait for all that
        run. Raises EpctlError when it does not compile."""
        return self._kernel(family, variant, name, block_threads, shared_bytes)

    def _load(self, family: Family, variant: Variant) -> Any:  # noqa: ANN401 - epctl_host.Cubin
        made = kernels.obtain(Wanted(family, variant, self._architecture), Cache(), with_torch=self._with_torch)
        return self._host.Cubin(made.cubin.read_bytes(), self._device_idx)

    def _make(self, family: Family, variant: Variant, name: str, block_threads: int, shared_bytes: int) -> Kernel:
        return Kernel(self._host.Kernel(self._cubin(family, variant), name, shared_bytes), block_threads)
