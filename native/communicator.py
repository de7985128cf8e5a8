"""One rank's NCCL communicator, without PyTorch: addresses are integers. Who calls what is collective is said at each call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.native import host_extension, toolchain
from epctl.native.cache import Cache

T = TypeVar("T")
GIN_TYPES = {"proxy": 2, "gdaki": 3, "efa_gda": 5}
"""Name → ncclGinType_t (nccl_device/core.h of 2.32.3). `auto` leaves the choice to NCCL (0)."""
CONNECTIONS = {"none": 0, "full": 1, "rail": 2}
"""Whom a rank can reach over GIN: ncclGinConnectionType_t."""
WINDOW_SYMMETRIC = 1
"""NCCL_WIN_COLL_SYMMETRIC: the same offset on every rank."""
WINDOW_ALIGN_BYTES = 4096
"""NCCL_WIN_REQUIRED_ALIGNMENT (nccl.h)."""


class Properties(Struct, frozen=True):
    """What NCCL says of a communicator (ncclCommProperties_t), and its load/store team."""

    rank: int
    num_ranks: int
    device_idx: int
    nvml_idx: int
    device_api: bool
    multimem: bool
    gin_type: int
    """ncclGinType_t between all ranks; 0: none."""
    railed_gin_type: int
    """The same between ranks of one rail."""
    gin_types: tuple[int, ...]
    """All that NCCL offers here."""
    gin_connection: int
    gin_min_stride: int
    num_lsa_teams: int
    """Load/store (NVLink) teams."""
    host_rma: bool
    comm_hash: int
    lsa_rank: int
    lsa_size: int


class GinWish(Struct, frozen=True):
    """What a device communicator is asked to have of GIN."""

    type: str = "auto"
    """auto, proxy, gdaki or efa_gda."""
    connection: str = "full"
    num_contexts: int = 4
    num_signals: int = 16
    num_counters: int = 0
    queue_depth: int = 0
    """0: NCCL's choice."""
    traffic_class: int = -1
    """InfiniBand service level or RoCE traffic class; -1: NCCL's choice."""
    strong_signals: bool = True
    num_world_barriers: int = 0


NO_GIN = GinWish(connection="none", num_contexts=0, num_signals=0, strong_signals=False)


def gin_name(number: int) -> str:
    """proxy; 'none' for 0."""
    names = {value: name for name, value in GIN_TYPES.items()}
    return "none" if number == 0 else names.get(number, f"type {number}")


class Communicator:
    """Wraps the extension's Comm: errors say what to do, and what it made it can destroy in any order, once."""

    def __init__(self, module: Any, comm: Any) -> None:  # noqa: ANN401 - built at run time
        self._module = module
        self._comm = comm
        self._memory: set[int] = set()
        self._windows: set[int] = set()
        self._device_comms: list[bytes] = []
        self.properties: Properties = self._properties()

    @classmethod
    def create(
        cls, unique_id: bytes, num_ranks: int, rank: int, device_idx: int, *, traffic_class: int = -1
    ) -> Communicator:
        """A new one, by all ranks together. Blocks until all have come: call it under a watchdog. Raises EpctlError."""
        module = load()
        make = _guarded(module, lambda: module.Comm(unique_id, num_ranks, rank, device_idx, traffic_class))
        return cls(module, make)

    @classmethod
    def adopt(cls, address: int, device_idx: int) -> Communicator:
        """One that somebody else made and destroys, as PyTorch's (ncclComm_t as an integer). Raises EpctlError."""
        module = load()
        return cls(module, _guarded(module, lambda: module.Comm.adopt(address, device_idx)))

    def _properties(self) -> Properties:
        told = self._call(self._comm.properties)
        return Properties(**{**told, "gin_types": tuple(told["gin_types"])})

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return _guarded(self._module, lambda: function(*arguments))

    def allocate(self, num_bytes: int) -> int:
        """Device memory that can become a window; its address. Not collective."""
        address: int = self._call(self._comm.allocate, num_bytes)
        self._memory.add(address)
        return address

    def free(self, address: int) -> None:
        """Gives `allocate`'s memory back, after its window has gone."""
        self._memory.discard(address)
        self._call(self._comm.free, address)

    def add_window(self, address: int, num_bytes: int) -> int:
        """Makes the memory of all ranks known to each other, at the same offsets. Collective; sizes must be equal."""
        window: int = self._call(self._comm.add_window, address, num_bytes, WINDOW_SYMMETRIC)
        self._windows.add(window)
        return window

    def remove_window(self, window: int) -> None:
        """Collective."""
        self._windows.discard(window)
        self._call(self._comm.remove_window, window)

    def lsa_address(self, window: int, lsa_rank: int, offset: int = 0) -> int:
        """Where that rank's memory lies in this rank's address space. Only for ranks of the load/store team."""
        return int(self._call(self._comm.lsa_address, window, offset, lsa_rank))

    def add_device_comm(self, wish: GinWish = NO_GIN) -> bytes:
        """The struct that kernels over NCCL's device API take as an argument. Collective. Raises EpctlError."""
        if wish.type != "auto" and wish.type not in GIN_TYPES:
            raise EpctlError(
                f"GIN type {wish.type!r} is unknown", f"there are auto, {', '.join(GIN_TYPES)}", "choose one of them"
            )
        number = GIN_TYPES.get(wish.type, 0)
        made: bytes = self._call(
            self._comm.add_device_comm,
            number,
            CONNECTIONS[wish.connection],
            wish.num_contexts,
            wish.num_signals,
            wish.num_counters,
            wish.queue_depth,
            wish.traffic_class,
            wish.strong_signals,
            wish.num_world_barriers,
        )
        self._device_comms.append(made)
        return made

    def remove_device_comm(self, image: bytes) -> None:
        """Not before all kernels that take it have ended."""
        self._device_comms.remove(image)
        self._call(self._comm.remove_device_comm, image)

    def async_error(self) -> str:
        """What has gone wrong in the background; '' while all is well."""
        return str(self._call(self._comm.async_error))

    def destroy(self) -> None:
        """Everything that is left, then the communicator. Collective; a second call does nothing."""
        for image in self._device_comms[:]:
            self.remove_device_comm(image)
        for window in sorted(self._windows):
            self.remove_window(window)
        for address in sorted(self._memory):
            self.free(address)
        self._call(self._comm.destroy)

    def abort(self) -> None:
        """Ends it without the others, after an error: nothing waits. Windows and memory stay until the process ends."""
        self._windows.clear()
        self._memory.clear()
        self._device_comms.clear()
        self._call(self._comm.abort)


def load() -> Any:  # noqa: ANN401 - built at run time
    """The extension with NCCL loaded into it: the library that `toolchain.find_nccl` names, the only one in the process. Raises
    EpctlError."""
    found = toolchain.find_nccl(with_torch="torch" in sys.modules)
    module = host_extension.load(Cache(), host_extension.NCCL, found)
    _guarded(module, lambda: module.load(found.library.path))
    return module


def loaded_version() -> int:
    """23203 for NCCL 2.32.3. Raises EpctlError."""
    found = toolchain.find_nccl(with_torch="torch" in sys.modules)
    return int(host_extension.load(Cache(), host_extension.NCCL, found).load(found.library.path))


def unique_id() -> bytes:
    """What rank 0 makes and gives to all others, for one communicator. Raises EpctlError."""
    module = load()
    return bytes(_guarded(module, module.unique_id))


def _guarded(module: Any, call: Callable[[], T]) -> T:  # noqa: ANN401 - built at run time
    try:
        return call()
    except module.NcclError as error:
        raise EpctlError(
            f"{error.call} failed",
            str(error).partition(": ")[2],
            "start again with NCCL_DEBUG=INFO, whose lines say more; epctl doctor looks at what NCCL needs",
            exit_code=1,
        ) from None
    except RuntimeError as error:
        raise EpctlError(
            "a call of the CUDA driver failed", str(error), "look at the GPU with epctl doctor", exit_code=1
        ) from None
