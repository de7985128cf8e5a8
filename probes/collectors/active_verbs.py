"""Opens each RDMA device through libibverbs and tries what NCCL and IBGDA need of it: registering DMA-BUF memory (descriptor -1,
which must fail and tells by how it fails; then a real descriptor of GPU memory), and a doorbell page through DevX. One JSON
line a finished step, so that a crash or a hang leaves the steps before it; CUDA comes last, as it is what takes longest.

Unverified on RDMA hardware: tested against libraries that play it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _cuda_driver as cuda
    from epctl.probes.collectors import _verbs as rdma
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    import _cuda_driver as cuda
    import _verbs as rdma

INVALID_FD_BYTES = 4096
GPU_BYTES = 2 << 20
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def main() -> None:
    """Prints {"stage": "list", "devices": [NAME]}, then for each device the stages open, dmabuf, devx and gpu."""
    try:
        verbs = rdma.Verbs()
    except OSError as error:
        _tell({"stage": "list", "devices": {"error": "not_found", "detail": str(error)}})
        return
    _tell({"begin": "list"})
    found = verbs.listed()
    if isinstance(found, dict):
        _tell({"stage": "list", "devices": found})
        return
    listed, devices = found
    _tell({"stage": "list", "devices": [name for _, name in devices]})
    with ExitStack() as stack:
        stack.callback(verbs.free_list, listed)
        tried = [_open(verbs, handle, name, stack) for handle, name in devices]
        opened = [device for device in tried if device is not None]
        for device in opened:
            _begin("dmabuf", device.name)
            _tell(_line("dmabuf", device.name, device.register(INVALID_FD_BYTES, 0, -1, 0)))
        if opened:
            _devx(verbs, opened)
            _gpu(opened)
    _tell({"stage": "end"})


class Opened:
    """A device that could be opened, with its protection domain or why it has none."""

    def __init__(self, verbs: rdma.Verbs, handle: Any, name: str, context: Any, stack: ExitStack) -> None:  # noqa: ANN401
        self._verbs = verbs
        self.handle = handle
        self.name = name
        self._domain, self._number = verbs.domain(context)
        if self._domain:
            stack.callback(verbs.free_domain, self._domain)

    def register(self, num_bytes: int, address: int, descriptor: int, access: int) -> Any:  # noqa: ANN401
        """errno of a DMA-BUF registration, or an error."""
        if not self._domain:
            return rdma.refusal("ibv_alloc_pd", self._number)
        return self._verbs.register(self._domain, num_bytes, address, descriptor, access)


def _open(verbs: rdma.Verbs, handle: Any, name: str, stack: ExitStack) -> Opened | None:  # noqa: ANN401 - ctypes
    _begin("open", name)
    context, number = verbs.open(handle)
    _tell({**_line("open", name, number), "opened": bool(context)})
    if not context:
        return None
    stack.callback(verbs.close, context)
    return Opened(verbs, handle, name, context, stack)


def _devx(verbs: rdma.Verbs, opened: list[Opened]) -> None:
    mlx5 = _mlx5(verbs)
    for device in opened:
        _begin("devx", device.name)
        _tell(_line("devx", device.name, mlx5 if isinstance(mlx5, dict) else mlx5.uar_errno(device.handle)))


def _mlx5(verbs: rdma.Verbs) -> rdma.Mlx5 | dict[str, str]:
    try:
        return rdma.Mlx5(verbs)
    except OSError as error:
        return {"error": "not_found", "detail": str(error)}
    except AttributeError as error:
        return {"error": "unsupported", "detail": f"this libmlx5 lacks a call: {error}"}


def _gpu(opened: list[Opened]) -> None:
    _tell({"begin": "gpu memory"})
    with ExitStack() as stack:
        memory = _exported(stack)
        for device in opened:
            if isinstance(memory, dict):
                _tell(_line("gpu", device.name, memory))
                continue
            _begin("gpu", device.name)
            address, descriptor = memory
            _tell(_line("gpu", device.name, device.register(GPU_BYTES, address, descriptor, rdma.ACCESS_GPU)))


def _exported(stack: ExitStack) -> Any:  # noqa: ANN401 - address and descriptor, or an error
    """2 MiB on CUDA device 0 as a DMA-BUF."""
    try:
        driver = cuda.Driver()
    except OSError as error:
        return {"error": "not_found", "detail": str(error)}
    try:
        return _refused(driver) or _allocated(driver, stack)
    except cuda.CudaError as error:
        return {"error": "failed", "detail": str(error)}
    except AttributeError as error:
        return {"error": "unsupported", "detail": f"this libcuda lacks a call: {error}"}


def _refused(driver: cuda.Driver) -> dict[str, Any] | None:
    """Why there is nothing to export, before any memory is taken."""
    code = driver.init()
    if code == _NO_DEVICE or (code == 0 and driver.count() == 0):
        return {"error": "unsupported", "detail": "no CUDA device"}
    if code != 0:
        return {"error": "failed", "detail": f"cuInit: {code}"}
    able = driver.attribute(driver.device(0), cuda.ATTRIBUTES["dma_buf"])
    if able == 0:
        return {"error": "unsupported", "detail": "CUDA device 0 has no DMA_BUF_SUPPORTED"}
    if isinstance(able, dict):
        return (
            able
            if able["error"] == "unsupported"
            else {"error": "failed", "detail": f"{able['detail']}: {able['error']}"}
        )
    return None


def _allocated(driver: cuda.Driver, stack: ExitStack) -> tuple[int, int]:
    context = driver.retain(0)
    stack.callback(driver.release, 0)
    address = driver.allocate(context, GPU_BYTES)
    stack.callback(driver.free, context, address)
    descriptor = driver.dma_buf(address, GPU_BYTES)
    stack.callback(os.close, descriptor)
    return address, descriptor


def _begin(stage: str, name: str) -> None:
    _tell({"begin": f"{stage} of {name}"})


def _line(stage: str, name: str, number: Any) -> dict[str, Any]:  # noqa: ANN401 - errno, or an error
    return {"stage": stage, "device": name, "errno": number}


def _tell(entry: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
