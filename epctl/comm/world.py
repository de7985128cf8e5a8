"""The world of GPUs: what an op gets on each rank, from the device to the communicator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec
from msgspec import structs

from epctl.comm import cpu_world, node_facts
from epctl.comm.domain import Domain
from epctl.comm.gin import GinDomain
from epctl.comm.node_facts import NodeFacts
from epctl.comm.symmetric import SymmetricMemory
from epctl.core.context import Context
from epctl.core.errors import EpctlError
from epctl.core.op import Layout, Meeting, Tier
from epctl.core.views import gin
from epctl.core.views.gates import Gate
from epctl.native.communicator import gin_name
from epctl.probes import load
from epctl.ranks import facts
from epctl.ranks.rank import Rank
from epctl.ranks.work import nccl_version

SETUP_S = 180.0
"""Compiling at first use, contexts of the GPUs, and NCCL's own start."""
WAIT_S = 20.0
"""Longest wait of a kernel for a peer."""


class MeetingControl:
    """A meeting as the way in which ranks exchange bytes: each stage of it is used once, so they are numbered."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._count = 0

    def all_gather(self, stage: str, payload: bytes) -> list[bytes]:
        """See epctl.comm.control.Control."""
        self._count += 1
        return self._meeting.all_gather(f"{stage} ({self._count})", payload)


class RankMemory:
    """Symmetric memory by ranks of the world, as ops count them; see Memory of epctl.core.op."""

    def __init__(self, memory: SymmetricMemory, domain: Domain) -> None:
        self.memory = memory
        self._domain = domain

    @property
    def address(self) -> int:
        """See Memory."""
        return self.memory.address

    def peer_address(self, rank: int) -> int:
        """See Memory. Raises ValueError for a rank of another load/store domain."""
        lsa_rank = rank - (self._domain.rank - self._domain.lsa_rank)
        if not 0 <= lsa_rank < self._domain.lsa_size:
            raise ValueError(f"rank {rank} is of another load/store domain than rank {self._domain.rank}")
        return self.memory.peer_address(lsa_rank)

    def bytes_tensor(self) -> Any:  # noqa: ANN401 - a tensor
        """See Memory."""
        return self.memory.bytes_tensor()

    def close(self) -> None:
        """See Memory."""
        self._domain.release(self.memory)


class GpuWorld:
    """See World of epctl.core.op. `comm`: the domain, for ops with kernels of their own."""

    tier: Tier = "gpu"

    def __init__(
        self,
        rank: int,
        layout: Layout,
        meeting: Meeting,
        group: Any,  # noqa: ANN401 - ProcessGroup
        domain: Domain,
        gin_gates: tuple[Gate, ...] = (),
    ) -> None:
        """`gin_gates`: of this node, for the message where there is no GIN."""
        self.rank, self.size, self.layout, self.meeting, self.group = rank, layout.num_ranks, layout, meeting, group
        self.comm = domain
        self.gin_gates = gin_gates
        self._gin: GinDomain | None = None

    @property
    def torch(self) -> ModuleType:
        """PyTorch."""
        import torch

        module: ModuleType = torch
        return module

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """The rank's GPU."""
        return self.torch.device("cuda", self.comm.device_idx)

    def barrier(self) -> None:
        """Of all ranks, in the current stream; over GIN where there are several load/store domains. Raises EpctlError."""
        self.comm.check()
        if self.layout.scale_out == 1:
            self.comm.barrier()
        else:
            self.gin().barrier()

    def gin(self) -> GinDomain:
        """GIN between all ranks, made at the first call, which is collective. Raises EpctlError where there is none."""
        if self._gin is None:
            self._gin = GinDomain(self.comm, static_gates=self.gin_gates)
        return self._gin

    def generator(self, seed: int) -> Any:  # noqa: ANN401 - torch.Generator
        """See World."""
        return self.torch.Generator(self.device).manual_seed(seed)

    def symmetric(self, num_bytes: int) -> RankMemory:
        """See World."""
        return RankMemory(self.comm.symmetric(num_bytes), self.comm)

    def close(self, *, failed: bool) -> None:
        """Collective unless `failed`."""
        if self._gin is not None and not failed:
            self._gin.close()
        self.comm.close(failed=failed)


@contextmanager
def opened(rank: Rank, *, emulate_nodes: int | None) -> Iterator[GpuWorld]:
    """The world of this rank's GPU. The environment of an emulation is set already. Raises EpctlError."""
    import torch

    place = rank.placement
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not num_gpus:
        raise EpctlError(
            "PyTorch sees no GPU", "kernels need one", "give --device cpu for a functional run", exit_code=4
        )
    device_idx = place.local_rank % num_gpus
    torch.cuda.set_device(device_idx)
    num_used = _verified(rank, str(torch.cuda.get_device_properties(device_idx).uuid))
    node = load.live(active=False)
    told = rank.meeting.all_gather("facts of the nodes", msgspec.json.encode(node_facts.of_snapshot(node)))
    nodes = [msgspec.json.decode(one, type=NodeFacts) for one in told]
    address = cpu_world.reachable(nodes, place.address)
    with cpu_world.group_of(place.rank, place.world_size, rank.meeting, address) as group:
        with rank.stage("set up communicator and memory", SETUP_S):
            control = MeetingControl(rank.meeting)
            domain = Domain(control, place.rank, place.world_size, device_idx, timeout_s=WAIT_S)
        layout = _layout(nodes, domain, num_used, emulate_nodes)
        world = GpuWorld(place.rank, layout, rank.meeting, group, domain, gin.gates(Context(node)))
        failed = True
        try:
            yield world
            failed = False
        finally:
            with rank.stage("give communicator and memory back", SETUP_S):
                world.close(failed=failed)


def _verified(rank: Rank, gpu: str) -> int:
    """How many GPUs the ranks use together. Raises JobError before any communicator is made when ranks share a GPU, unless the
    environment says that they may, or when they loaded different NCCLs."""
    shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    mine = facts.own(rank.placement, nccl=nccl_version(), gpu=gpu)
    every = rank.meeting.verify(mine, several_ranks_a_gpu=shared)
    return len({(*one.machine, one.gpu) for one in every})


def _layout(told: list[NodeFacts], domain: Domain, num_gpus: int, emulate_nodes: int | None) -> Layout:
    properties = domain.comm.properties
    version = ".".join(map(str, domain.nccl_version))
    named = [node_facts.with_nccl(one, version) for one in told]
    layout = node_facts.layout_of(named, "gpu", scale_up=domain.lsa_size, num_gpus=num_gpus)
    type_ = "" if properties.gin_type == 0 else gin_name(properties.gin_type)
    return structs.replace(layout, emulated=(emulate_nodes or 1) > 1, gin_type=type_)
