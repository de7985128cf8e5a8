"""A communicator whose memory is the host's: what lies above it can be tried without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.native import host_extension
from epctl.native.communicator import Properties
from tests.support.worlds import torch_or_skip

PROPERTIES = Properties(
    rank=0,
    num_ranks=2,
    device_idx=0,
    nvml_idx=0,
    device_api=True,
    multimem=False,
    gin_type=0,
    railed_gin_type=0,
    gin_types=(),
    gin_connection=0,
    gin_min_stride=0,
    num_lsa_teams=1,
    host_rma=False,
    comm_hash=1,
    lsa_rank=0,
    lsa_size=2,
)
PEER_STRIDE = 1 << 40
"""Between the memory of two ranks, as this one sees it."""


class PlayedComm:
    """Keeps what it was asked for, in order."""

    def __init__(self, properties: Properties = PROPERTIES, *, refuses_windows: bool = False) -> None:
        self.properties = properties
        self.said: list[str] = []
        self._refuses = refuses_windows
        self._held: dict[int, Any] = {}
        self._windows: dict[int, int] = {}

    def allocate(self, num_bytes: int) -> int:
        """Not zeroed, as device memory is not."""
        memory = (ctypes.c_uint8 * num_bytes).from_buffer(bytearray(b"\xa5" * num_bytes))
        address = ctypes.addressof(memory)
        self._held[address] = memory
        self.said.append("allocate")
        return address

    def free(self, address: int) -> None:
        del self._held[address]
        self.said.append("free")

    def add_window(self, address: int, num_bytes: int) -> int:
        assert num_bytes == len(self._held[address])
        if self._refuses:
            raise EpctlError("no window", "played", "nothing", exit_code=4)
        self._windows[7000 + len(self._windows)] = address
        self.said.append("add window")
        return 7000 + len(self._windows) - 1

    def remove_window(self, window: int) -> None:
        del self._windows[window]
        self.said.append("remove window")

    def lsa_address(self, window: int, lsa_rank: int) -> int:
        return self._windows[window] + PEER_STRIDE * lsa_rank

    def abort(self) -> None:
        self.said.append("abort")

    def destroy(self) -> None:
        self.said.append("destroy")


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets symmetric memory make tensors of host memory."""
    torch = torch_or_skip()

    def bytes_tensor(address: int, num_bytes: int, device_idx: int) -> Any:  # noqa: ANN401 - a capsule
        assert device_idx == 0
        view = (ctypes.c_uint8 * num_bytes).from_address(address)
        return torch.utils.dlpack.to_dlpack(torch.frombuffer(view, dtype=torch.uint8))

    monkeypatch.setattr(host_extension, "load", lambda: SimpleNamespace(bytes_tensor=bytes_tensor))
