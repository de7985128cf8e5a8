"""One rank's place among the ranks: communicator, symmetric memory, barrier, and how kernels wait."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from epctl.comm import links
from epctl.comm.control import Control
from epctl.comm.links import Seat
from epctl.comm.symmetric import Plan, SymmetricMemory
from epctl.comm.wait_record import WaitRecord
from epctl.core.errors import EpctlError
from epctl.native import communicator, families, peers, toolchain, waits
from epctl.native.communicator import Communicator
from epctl.native.launcher import Launcher
from epctl.native.peers import Limits, Peers

FLAG_BYTES = 8
BARRIER_THREADS = 128


class Domain:
    """Collective: all ranks make it together, and close it together. `timeout_s`: how long a kernel waits for a peer."""

    def __init__(
        self, control: Control, rank: int, num_ranks: int, device_idx: int, *, timeout_s: float, adopt: int = 0
    ) -> None:
        """`adopt`: an ncclComm_t of these ranks that somebody else owns; 0 makes one. Raises EpctlError."""
        import torch

        self.rank, self.num_ranks, self.device_idx = rank, num_ranks, device_idx
        self.control = control
        self.timeout_s = timeout_s
        self._torch = torch
        self._memory: list[SymmetricMemory] = []
        self._closed = False
        major, minor = torch.cuda.get_device_capability(device_idx)
        architecture = toolchain.architecture_of(f"{major}.{minor}")
        self.launcher = Launcher(device_idx, architecture, with_torch=True)
        self._barrier = self.launcher.kernel(
            families.BARRIER, families.BARRIER.variants[0], "epctl_barrier", BARRIER_THREADS
        )
        self._record = WaitRecord(self.device)
        self.comm = Communicator.adopt(adopt, device_idx) if adopt else self._create()
        self._check_ranks()
        seats = self._seats()
        self.ranks_per_gpu = seats.count(seats[rank])
        """Ranks that share this rank's GPU, itself among them."""
        told = self.control.all_gather("whether NVLink joins the GPUs", str(links.joined(seats[rank], seats)).encode())
        self.has_nvlink = set(told) == {b"True"}
        """NVLink joins every pair of GPUs, as far as NVML tells. The same on all ranks."""
        self._rounds = 0
        self._flags = self.symmetric(FLAG_BYTES * num_ranks)

    def _create(self) -> Communicator:
        mine = communicator.unique_id() if self.rank == 0 else b""
        first = self.control.all_gather("exchange the communicator's id", mine)[0]
        return Communicator.create(first, self.num_ranks, self.rank, self.device_idx)

    def _check_ranks(self) -> None:
        found = self.comm.properties
        if (found.num_ranks, found.rank) != (self.num_ranks, self.rank):
            raise EpctlError(
                f"NCCL's communicator is rank {found.rank} of {found.num_ranks}, not {self.rank} of {self.num_ranks}",
                "the job has split, or the communicator belongs to other ranks",
                "start all ranks with one address and one number of ranks",
                exit_code=1,
            )
        if not found.device_api:
            raise EpctlError(
                "NCCL offers no device API between these ranks",
                f"{found.num_lsa_teams} load/store teams of {found.lsa_size}, GIN type {communicator.gin_name(found.gin_type)}",
                "epctl doctor names the gate that is closed (VMM, GIN, peer access)",
                exit_code=4,
            )

    def _seats(self) -> tuple[Seat, ...]:
        uuid = str(self._torch.cuda.get_device_properties(self.device_idx).uuid)
        mine = Seat(os.uname().nodename, uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        found = self.control.all_gather("which GPU", msgspec.json.encode(mine))
        return tuple(msgspec.json.decode(one, type=Seat) for one in found)

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """This rank's GPU."""
        return self._torch.device("cuda", self.device_idx)

    @property
    def nccl_version(self) -> tuple[int, int, int]:
        """Of the loaded library."""
        number = communicator.loaded_version()
        return number // 10000, number // 100 % 100, number % 100

    @property
    def lsa_rank(self) -> int:
        """Place in the load/store domain."""
        return self.comm.properties.lsa_rank

    @property
    def lsa_size(self) -> int:
        """Ranks of the load/store domain."""
        return self.comm.properties.lsa_size

    def symmetric(self, num_bytes: int) -> SymmetricMemory:
        """Zeroed on all ranks when it returns. Collective; the sizes must be equal. Raises EpctlError."""
        sizes = self.control.all_gather("symmetric memory", str(num_bytes).encode())
        if len(set(sizes)) != 1:
            told = ", ".join(f"rank {rank}: {size.decode()}" for rank, size in enumerate(sizes))
            raise EpctlError(
                "symmetric memory must have one size on all ranks",
                f"asked for are {told} bytes",
                "give all ranks the same sizes",
            )
        memory = SymmetricMemory(self.comm, num_bytes, self.device_idx)
        self._memory.append(memory)
        self._torch.cuda.synchronize(self.device_idx)
        self.control.all_gather("symmetric memory is clear", b"")
        return memory

    def release(self, memory: SymmetricMemory) -> None:
        """Gives one piece back before the rest. Collective; nothing may use it any more on any rank."""
        self._memory.remove(memory)
        memory.close()

    def materialise(self, plan: Plan) -> SymmetricMemory:
        """Memory for a plan, whose meta tensors become views of it. Collective."""
        memory = self.symmetric(plan.num_bytes)
        memory.materialise(plan)
        return memory

    def peers(self, memory: SymmetricMemory) -> Peers:
        """For kernels: the memory of all ranks of the load/store domain."""
        return Peers(tuple(memory.peer_address(rank) for rank in range(self.lsa_size)), self.lsa_rank)

    def limits(self, timeout_s: float | None = None) -> Limits:
        """How a kernel of this rank waits."""
        return self._record.limits(self.timeout_s if timeout_s is None else timeout_s, self.rank)

    def timeout(self) -> waits.Timeout | None:
        """The wait that has given up, if any. After one, no kernel of this rank waits any more."""
        return self._record.timeout()

    def clear(self) -> None:
        """Forgets the wait that gave up, so that kernels wait again. Collective. All ranks have ended what they did, and what the kernels
        counted together is made anew."""
        self._record.clear()
        # A rank that gave up has met fewer times, and flags only grow: all go on behind the one that has come furthest.
        met = self.control.all_gather("how often ranks have met", str(self._rounds).encode())
        self._rounds = max(int(rounds) for rounds in met)

    def check(self) -> None:
        """Raises EpctlError when a wait has given up. Call it after the stream has been waited for."""
        told = self.timeout()
        if told is not None:
            raise EpctlError(
                str(told),
                "the peer died, hangs, or never made the call",
                f"look at rank {told.peer}; raise the GPU timeout when it is only late",
                exit_code=1,
            )

    def barrier(self, stream: int | None = None) -> None:
        """All ranks of the load/store domain meet on the GPU: a kernel in the stream (the current one by default)."""
        if stream is None:
            stream = self._torch.cuda.current_stream(self.device_idx).cuda_stream
        self._rounds += 1
        arguments = peers.pack_barrier(self.peers_of_flags, 0, self._rounds, self.limits())
        self._barrier.launch(1, stream, arguments)

    @property
    def peers_of_flags(self) -> Peers:
        """Kept: asking NCCL for addresses takes microseconds."""
        if not hasattr(self, "_peers_of_flags"):
            self._peers_of_flags = self.peers(self._flags)
        return self._peers_of_flags

    def close(self, *, failed: bool = False) -> None:
        """Gives everything back, in the order that NCCL needs. Collective unless `failed`: after an error nothing waits for the
        others. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if failed:
            with contextlib.suppress(EpctlError):
                self.comm.abort()
            return
        self._torch.cuda.synchronize(self.device_idx)
        self.control.all_gather("close", b"")
        for memory in reversed(self._memory):
            memory.close()
        self.comm.destroy()


def of_world(world: object) -> Domain:
    """The domain of a world of GPUs, which has it as `comm`. Raises EpctlError, exit code 4, for a world without one."""
    found = getattr(world, "comm", None)
    if not isinstance(found, Domain):
        raise EpctlError(
            "this world has no NCCL communicator", "the op's kernels use one", "run on GPUs: --tier gpu", exit_code=4
        )
    return found


def torch_communicator(group: Any, device: Any) -> int:  # noqa: ANN401 - ProcessGroup, torch.device
    """Address of the ncclComm_t of a process group, 0 where it cannot be had: another backend, not connected yet, or a PyTorch
    that does not tell (ProcessGroupNCCL._comm_ptr, since 2.6)."""
    try:
        return int(group._get_backend(device)._comm_ptr())
    except (AttributeError, RuntimeError, TypeError):
        return 0
