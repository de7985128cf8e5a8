"""Symmetric memory: planned as meta tensors, then one allocation on each rank whose offsets mean the same everywhere."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.core.errors import EpctlError
from epctl.native import host_extension
from epctl.native.communicator import WINDOW_ALIGN_BYTES, Communicator

Tensor: TypeAlias = Any
"""torch.Tensor."""
ALIGN_BYTES = 1024
"""Of each planned tensor: bulk copies are fastest from multiples of 128 bytes, and pages of counters stay apart."""


class Plan:
    """What one symmetric allocation is to hold. `allocate` gives meta tensors, which become views of it when it is made."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Tensor, int]] = []
        self.num_bytes = 0
        self._used = False

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Tensor:  # noqa: ANN401 - torch.dtype
        """A meta tensor of that shape. Raises EpctlError when the plan has been taken by an allocation already."""
        import torch

        if self._used:
            raise EpctlError(
                "the plan has been used",
                "its memory exists already and cannot grow",
                "make a new plan for more tensors",
            )
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self._tensors.append((tensor, self.num_bytes))
        self.num_bytes += -(-tensor.numel() * tensor.element_size() // ALIGN_BYTES) * ALIGN_BYTES
        return tensor

    def take(self) -> list[tuple[Tensor, int]]:
        """(tensor, offset) of all, once. Raises EpctlError for a plan that has been used."""
        if self._used:
            raise EpctlError("the plan has been used", "a plan makes one allocation", "make a new plan")
        self._used = True
        return self._tensors


class SymmetricMemory:
    """Zeroed device memory of equal size on all ranks. Making and closing it is collective."""

    def __init__(self, comm: Communicator, num_bytes: int, device_idx: int) -> None:
        self._comm = comm
        self._device_idx = device_idx
        self.num_bytes = max(1, -(-num_bytes // WINDOW_ALIGN_BYTES)) * WINDOW_ALIGN_BYTES
        self.address = comm.allocate(self.num_bytes)
        self._window = 0
        self._open = True
        self.bytes_tensor().zero_()
        try:
            self._window = comm.add_window(self.address, self.num_bytes)
        except EpctlError:
            comm.free(self.address)
            self._open = False
            raise

    @property
    def window(self) -> int:
        """ncclWindow_t, for kernels over NCCL's device API."""
        return self._window

    def peer_address(self, lsa_rank: int) -> int:
        """Where the memory of that rank of the load/store domain lies in this rank's address space."""
        return self._comm.lsa_address(self._window, lsa_rank)

    def bytes_tensor(self, offset: int = 0, num_bytes: int | None = None) -> Tensor:
        """uint8 [num_bytes]: a view that dies with this memory."""
        import torch

        size = self.num_bytes - offset if num_bytes is None else num_bytes
        if not 0 <= offset <= offset + size <= self.num_bytes:
            raise ValueError(f"{size} bytes from {offset} of {self.num_bytes}")
        capsule = host_extension.load().bytes_tensor(self.address + offset, size, self._device_idx)
        return torch.utils.dlpack.from_dlpack(capsule)

    def view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Tensor:  # noqa: ANN401 - torch.dtype
        """A tensor at that offset, which must suit the dtype."""
        import math

        import torch

        item = torch.empty(0, dtype=dtype).element_size()
        size = math.prod(shape) * item
        if size == 0:
            return torch.empty(shape, dtype=dtype, device=f"cuda:{self._device_idx}")
        return self.bytes_tensor(offset, size).view(dtype).view(shape)

    def materialise(self, plan: Plan, offset: int = 0) -> None:
        """Turns the plan's meta tensors into views from `offset` on: the same Python objects, now with memory."""
        import torch

        for tensor, at in plan.take():
            made = self.view(offset + at, tuple(tensor.shape), tensor.dtype)
            torch.utils.swap_tensors(tensor, made)

    def close(self) -> None:
        """Collective. All kernels that use it have ended on all ranks before. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._comm.remove_window(self._window)
        self._comm.free(self.address)
