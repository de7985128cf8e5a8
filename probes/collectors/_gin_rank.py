"""One of the two ranks of the GIN canary: a process of its own, without PyTorch. Its parent ends it when a stage takes too long.

Prints one JSON line a stage. NVLink multicast is not used; no clock or mode is touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.native.communicator import Communicator
    from epctl.native.gin_args import GinArgs
    from epctl.native.launcher import Launcher
    from epctl.probes.collectors import _cuda_driver as cuda
else:
    import _cuda_driver as cuda

WAIT_S = 5.0
"""How long the kernel waits for the peer's signal."""
KERNEL_S = 3 * WAIT_S
"""After that the kernel hangs: it gives up by itself after two waits at most."""
BYTES = 64 * 1024
NUM_ROUNDS = 64
ROUND_BYTES = 8
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


class Driver(cuda.Driver):
    """With streams and host memory that the device maps."""

    def stream(self, context: int) -> int:
        """One that waits for no other stream."""
        self._use(context)
        made = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(_NON_BLOCKING))
        return int(made.value or 0)

    def is_done(self, context: int, stream: int) -> bool:
        """Whether all that was enqueued has ended. Raises CudaError when it ended with an error."""
        self._use(context)
        code = int(self._cuda.cuStreamQuery(ctypes.c_void_p(stream)))
        if code not in (0, _NOT_READY):
            raise cuda.CudaError("cuStreamQuery", code)
        return code == 0

    def pinned(self, context: int, num_bytes: int) -> int:
        """Zeroed host memory; the device reaches it at the same address."""
        self._use(context)
        made = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(made), ctypes.c_size_t(num_bytes), ctypes.c_uint(_MAPPED))
        address = int(made.value or 0)
        ctypes.memset(address, 0, num_bytes)
        return address

    def architecture(self, ordinal: int) -> str:
        """Compute capability: 9.0"""
        numbers = [self.attribute(self.device(ordinal), which) for which in (75, 76)]
        return f"{numbers[0]}.{numbers[1]}"


class TrialError(Exception):
    """A trial that did not go well. `outcome`: one of GIN_OUTCOMES; `where`: the stage."""

    def __init__(self, outcome: str, where: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.where, self.detail = outcome, where, detail


def main() -> None:
    """Arguments: rank, device, types to leave out separated by commas, seed. Standard input: the id, for rank 1."""
    rank, device_idx, leave_out, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4])
    from epctl.core.errors import EpctlError

    try:
        Rank(rank, device_idx, seed).run(leave_out)
    except EpctlError as error:
        reason = "tool_missing" if error.exit_code == 4 else "failed"
        tell({"stage": "failed", "error": reason, "detail": f"{error.what}: {error.why}"})
    except cuda.CudaError as error:
        tell({"stage": "failed", "error": "failed", "detail": f"{error.call} gave {error.code}"})
    except OSError as error:
        tell({"stage": "failed", "error": "not_found", "detail": str(error)})
    # Whoever waits for the other rank inside NCCL, as its threads may, would never end.
    os._exit(0)


def tell(entry: dict[str, Any]) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


class Rank:
    """Communicator, memory and stream of one rank."""

    def __init__(self, rank: int, device_idx: int, seed: int) -> None:
        self.rank, self.device_idx, self.seed = rank, device_idx, seed
        self.driver = Driver()

    def run(self, leave_out: list[str]) -> None:
        """Tries all types that are offered, up to the first that does not work."""
        from epctl.native import communicator, toolchain
        from epctl.native.launcher import Launcher

        tell({"begin": "load"})
        if (code := self.driver.init()) != 0:
            raise cuda.CudaError("cuInit", code)
        self.context = self.driver.retain(self.device_idx)
        self.stream = self.driver.stream(self.context)
        communicator.load()
        architecture = toolchain.architecture_of(self.driver.architecture(self.device_idx))
        launcher = Launcher(self.device_idx, architecture)
        tell({"begin": "communicator"})
        comm = communicator.Communicator.create(self._unique_id(), 2, self.rank, self.device_idx)
        numbers = {number: name for name, number in communicator.GIN_TYPES.items()}
        offered = [numbers[number] for number in comm.properties.gin_types if number in numbers]
        tell({"stage": "offered", "types": offered, "lsa_size": comm.properties.lsa_size})
        for name in offered:
            if name not in leave_out and not self._tried(comm, launcher, name):
                return
        tell({"begin": "destroy"})
        comm.destroy()
        tell({"stage": "end"})

    def _unique_id(self) -> bytes:
        from epctl.native import communicator

        if self.rank != 0:
            return bytes.fromhex(sys.stdin.readline().strip())
        made = communicator.unique_id()
        tell({"stage": "id", "id": made.hex()})
        return made

    def _tried(self, comm: Communicator, launcher: Launcher, name: str) -> bool:
        """Tells how the type did; False when it is not to go on."""
        from epctl.core.errors import EpctlError

        try:
            round_ns = Trial(self, comm, launcher, name).run()
        except TrialError as error:
            found: dict[str, Any] = {"outcome": error.outcome, "where": error.where, "detail": error.detail}
        except EpctlError as error:
            found = {"outcome": "failed", "where": "device communicator", "detail": f"{error.what}: {error.why}"}
        except cuda.CudaError as error:
            found = {"outcome": "failed", "where": "kernel", "detail": f"{error.call} gave {error.code}"}
        else:
            found = {"outcome": "ok", "round_ns": round_ns}
        tell({"stage": "trial", "name": name, **found})
        return found["outcome"] in ("ok", "untried")


class Trial:
    """One type: put with signal to the other rank and wait for its own, then the time of a round."""

    def __init__(self, rank: Rank, comm: Communicator, launcher: Launcher, name: str) -> None:
        self.rank, self.comm, self.launcher, self.name = rank, comm, launcher, name
        self.driver, self.context = rank.driver, rank.context

    def run(self) -> int:
        """Nanoseconds of a round. Raises TrialError, EpctlError."""
        from epctl.core.errors import EpctlError
        from epctl.native import gin_family
        from epctl.native.communicator import GinWish
        from epctl.native.gin_args import BLOCK_THREADS

        tell({"begin": f"kernels {self.name}"})
        names = ("epctl_gin_put_signal", "epctl_gin_ping_pong")
        try:
            variant = gin_family.variant(self.name)
            kernels = [self.launcher.kernel(gin_family.GIN, variant, name, BLOCK_THREADS) for name in names]
        except EpctlError as error:  # a compiler that is missing says nothing about GIN
            raise TrialError("untried", "kernels", f"{error.what}: {error.why}") from None
        tell({"begin": f"device communicator {self.name}"})
        image = self.comm.add_device_comm(GinWish(type=self.name, num_contexts=1, num_signals=2))
        self.memory = self.comm.allocate(2 * BYTES)
        window = self.comm.add_window(self.memory, 2 * BYTES)
        self.record = self.driver.pinned(self.context, 4096)
        self.elapsed, self.given_up = self.record + 1024, self.record + 2048
        self.driver.write(self.context, self.memory, self._pattern(self.rank.rank) + bytes(BYTES))
        # Both ranks have cleared their memory before the window is made known to all again.
        tell({"begin": f"trial {self.name}"})
        other = self.comm.add_window(self.comm.allocate(4096), 4096)
        self._launch(lambda: kernels[0].launch(1, self.rank.stream, self._put(window).pack(image)))
        self._compare()
        self._launch(lambda: kernels[1].launch(1, self.rank.stream, self._rounds(window).pack(image)))
        took = ctypes.c_uint64.from_address(self.elapsed).value
        self.comm.remove_window(other)
        self.comm.remove_window(window)
        self.comm.remove_device_comm(image)
        return int(took) // NUM_ROUNDS

    def _pattern(self, rank: int) -> bytes:
        return random.Random(f"{self.rank.seed} {self.name} {rank}").randbytes(BYTES)  # noqa: S311 - test data

    def _args(self, window: int, **more: Any) -> GinArgs:  # noqa: ANN401 - fields of the struct
        from epctl.native.gin_args import GinArgs
        from epctl.native.peers import Limits

        peer = 1 - self.rank.rank
        limits = Limits(self.record, self.given_up, WAIT_S, self.rank.rank)
        return GinArgs(window, self.elapsed, peer, limits, sender=peer, target_offset=BYTES, **more)

    def _put(self, window: int) -> GinArgs:
        from epctl.native.gin_args import GinFlag

        return self._args(window, num_bytes=BYTES, num_expected=1, flags=GinFlag.STRONG)

    def _rounds(self, window: int) -> GinArgs:
        from epctl.native.gin_args import GinFlag

        serves = GinFlag.SERVES if self.rank.rank == 0 else GinFlag(0)
        return self._args(
            window, num_bytes=ROUND_BYTES, num_messages=NUM_ROUNDS, signal=1, flags=GinFlag.STRONG | serves
        )

    def _launch(self, launch: Callable[[], None]) -> None:
        """Waits for the kernel, never for ever, and raises TrialError when it gave up or does not end."""
        from epctl.native import waits

        launch()
        end = time.monotonic() + KERNEL_S
        while not self.driver.is_done(self.context, self.rank.stream):
            if time.monotonic() > end:
                raise TrialError(
                    "hang", "kernel", f"the kernel of rank {self.rank.rank} has not ended after {KERNEL_S:g} s"
                )
            time.sleep(1e-3)
        told = waits.read(ctypes.string_at(self.record, waits.RECORD_BYTES))
        if told is not None:
            raise TrialError("lost", waits.STAGES[told.stage][1], str(told))

    def _compare(self) -> None:
        found = self.driver.read(self.context, self.memory + BYTES, BYTES)
        wanted = self._pattern(1 - self.rank.rank)
        if found != wanted:
            wrong = [idx for idx in range(BYTES) if found[idx] != wanted[idx]]
            text = f"{len(wrong)} of {BYTES} bytes differ at rank {self.rank.rank}, the first at {wrong[0]}"
            raise TrialError("wrong", "data", text)
