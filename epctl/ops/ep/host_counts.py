"""Host memory that a dispatch writes its counts to."""

from __future__ import annotations

import ctypes
import time

from epctl.core.errors import EpctlError
from epctl.ops.ep.engine import Engine

HEAD = 3
"""Words before those of the experts: call, tokens, aligned entries. Then aligned entries of each local expert."""
POLL_S = 5e-6


class HostCounts:
    """Host memory that a dispatch writes its counts to, and waiting for them with a limit."""

    def __init__(self, num_words: int, limit_s: float, engine: Engine) -> None:
        import torch

        self._words = torch.zeros(num_words, dtype=torch.int64, pin_memory=engine.device.type == "cuda")
        self.address: int = self._words.data_ptr()
        self._call = 0
        self._limit_s = limit_s
        self._engine = engine

    def expect(self) -> int:
        """Number of the next call that tells its counts."""
        self._call += 1
        return self._call

    def wait(self, num_words: int) -> list[int]:
        """Words of the call. Raises EpctlError when they do not come: at once when a wait on the GPU has given up."""
        view = (ctypes.c_int64 * num_words).from_address(self.address)
        end = time.monotonic() + self._limit_s
        while view[0] != self._call:
            if time.monotonic() > end:
                raise EpctlError(
                    f"the counts of dispatch did not come within {self._limit_s:g} s",
                    "the GPU is busy with something else, or a peer has not made the call",
                    "look at the other ranks; raise num_cpu_timeout_secs when they are only late",
                    exit_code=1,
                )
            self._engine.domain.check()
            time.sleep(POLL_S)
        return list(view)
