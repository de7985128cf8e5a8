"""Where the kernels of a rank leave which wait gave up."""

from __future__ import annotations

import ctypes
from typing import Any

from epctl.native import waits
from epctl.native.peers import Limits

GIVEN_UP_BYTES = 4


class WaitRecord:
    """One record, and the word that tells kernels of it. `device`: torch.device; on the CPU both are plain memory."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401
        import torch

        self._torch, self._device = torch, device
        self._record = torch.zeros(waits.RECORD_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._given_up = torch.zeros(GIVEN_UP_BYTES, dtype=torch.uint8, device=device)
        self._addresses = int(self._record.data_ptr()), int(self._given_up.data_ptr())
        self._settle()

    def limits(self, timeout_s: float, rank: int) -> Limits:
        """How a kernel of this rank waits."""
        return Limits(*self._addresses, timeout_s, rank)

    def timeout(self) -> waits.Timeout | None:
        """The wait that has given up, if any. After one, no kernel waits any more."""
        return waits.read(ctypes.string_at(self._addresses[0], waits.RECORD_BYTES))

    def clear(self) -> None:
        """So that kernels wait again. Waits for those that run."""
        self._settle()
        self._record.zero_()
        self._given_up.zero_()
        self._settle()

    def _settle(self) -> None:
        """Kernels may go to another stream than the one that clears."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
