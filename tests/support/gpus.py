"""GPUs, or the reason why a test is skipped; nothing here waits without a limit."""

from __future__ import annotations

import ctypes
import time
import warnings
from types import ModuleType
from typing import Any, TypeAlias

import pytest

SETTLE_S = 20.0
Tensor: TypeAlias = Any
"""A tensor of PyTorch, which is not installed where types are checked."""
_ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


def torch_or_skip(num_gpus: int) -> ModuleType:
    """PyTorch, on a machine where it sees that many GPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch: ModuleType = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"{num_gpus} GPUs are needed, PyTorch sees {torch.cuda.device_count()}")
    return torch


def two_ranks_or_skip() -> dict[str, str]:
    """Settings with which two ranks run here: on two GPUs, or both on one. Under MPS their kernels run at the same time also there."""
    if torch_or_skip(1).cuda.device_count() >= 2:
        return {}
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_MODULE_LOADING": "EAGER"}


def enable_peers(torch: ModuleType, num_gpus: int) -> None:
    """Lets each GPU reach the memory of all others, by the driver: PyTorch does so only when it copies."""
    for one in range(num_gpus):
        torch.zeros(1, device=f"cuda:{one}")
        for other in range(num_gpus):
            if one != other and not torch.cuda.can_device_access_peer(one, other):
                pytest.skip(f"GPU {one} cannot reach the memory of GPU {other}")
    driver = ctypes.CDLL("libcuda.so.1")
    contexts = [_primary_context(driver, ordinal) for ordinal in range(num_gpus)]
    for one in range(num_gpus):
        _check(driver.cuCtxPushCurrent_v2(contexts[one]), "cuCtxPushCurrent")
        try:
            for other in range(num_gpus):
                if one != other:
                    code = driver.cuCtxEnablePeerAccess(contexts[other], 0)
                    _check(0 if code == _ALREADY_ENABLED else code, "cuCtxEnablePeerAccess")
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _primary_context(driver: ctypes.CDLL, ordinal: int) -> ctypes.c_void_p:
    """Kept until the process ends, as PyTorch keeps it."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    return context


def _check(code: int, call: str) -> None:
    assert code == 0, f"{call}: error {code}"


def settle(torch: ModuleType, limit_s: float = SETTLE_S) -> float:
    """Waits until all GPUs are idle, and returns the seconds that it took. The test fails when the limit is over."""
    waiting = []
    for ordinal in range(torch.cuda.device_count()):
        with torch.cuda.device(ordinal):
            event = torch.cuda.Event()
            event.record()
            waiting.append(event)
    begin = time.monotonic()
    while not all(event.query() for event in waiting):
        if time.monotonic() - begin > limit_s:
            pytest.fail(f"the GPUs are not idle after {limit_s:g} s")
        time.sleep(1e-4)
    return time.monotonic() - begin
