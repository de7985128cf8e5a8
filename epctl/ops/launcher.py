"""What ops on a GPU share: kernels of this process, and copies by the copy engines."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

from epctl.core.errors import EpctlError
from epctl.core.op import World
from epctl.native import toolchain
from epctl.native.launcher import Launcher


def launcher(world: World) -> Launcher:
    """Of the world's GPU; one for each device, so that a kernel is loaded once. Raises EpctlError for a GPU without kernels."""
    return _launcher(device_idx(world), *world.torch.cuda.get_device_capability(world.device))


@cache
def _launcher(device: int, major: int, minor: int) -> Launcher:
    return Launcher(device, toolchain.architecture_of(f"{major}.{minor}"), with_torch=True)


def device_idx(world: World) -> int:
    """Ordinal of the world's GPU in this process."""
    index = world.device.index
    return int(index) if index is not None else int(world.torch.cuda.current_device())


def stream(world: World) -> int:
    """The current stream, as an integer."""
    return int(world.torch.cuda.current_stream(world.device).cuda_stream)


def num_sms(world: World) -> int:
    """SMs of the world's GPU."""
    return int(world.torch.cuda.get_device_properties(world.device).multi_processor_count)


def copy(world: World, target: int, source: int, num_bytes: int) -> None:
    """Enqueues a copy between device addresses, which the copy engines do when they lie on two GPUs. PyTorch's own copy would make
    this process a user of the other GPU. Raises EpctlError."""
    if num_bytes == 0:
        return
    driver = _driver()
    code = driver.cuMemcpyDtoDAsync_v2(target, source, num_bytes, stream(world))
    if code != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        told = (name.value or b"unknown error").decode()
        why = f"cuMemcpyDtoDAsync of {num_bytes} bytes: {code} {told}"
        raise EpctlError("a copy between GPUs could not be started", why, "look at epctl doctor", exit_code=1)


@lru_cache(maxsize=1)
def _driver() -> Any:  # noqa: ANN401 - ctypes.CDLL
    """PyTorch has made its context current to this thread, which the call needs."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuMemcpyDtoDAsync_v2.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
    library.cuGetErrorName.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    return library
