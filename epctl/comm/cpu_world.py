"""Ranks without GPUs: processes that reach each other over gloo, for the CPU tier of every op."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import msgspec
from msgspec import structs

from epctl.comm import node_facts
from epctl.comm.node_facts import NodeFacts
from epctl.core.errors import EpctlError
from epctl.core.op import Layout, Meeting, Memory, Tier
from epctl.core.placement import LOOPBACK

MESSAGE_S = 60.0
"""Longest wait for a message of another rank."""


class CpuWorld:
    """See World of epctl.core.op."""

    tier: Tier = "cpu"

    def __init__(self, rank: int, layout: Layout, meeting: Meeting, group: Any) -> None:  # noqa: ANN401 - ProcessGroup or None
        self.rank, self.size, self.layout, self.meeting, self.group = rank, layout.num_ranks, layout, meeting, group

    @property
    def torch(self) -> ModuleType:
        """PyTorch."""
        import torch

        module: ModuleType = torch
        return module

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """The CPU."""
        return self.torch.device("cpu")

    def barrier(self) -> None:
        """Of all ranks, at once."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier(self.group)

    def generator(self, seed: int) -> Any:  # noqa: ANN401 - torch.Generator
        """See World."""
        return self.torch.Generator(self.device).manual_seed(seed)

    def symmetric(self, num_bytes: int) -> Memory:
        """There is none between processes. Raises EpctlError."""
        raise EpctlError(
            "there is no symmetric memory on the CPU tier",
            f"{num_bytes} bytes were asked for",
            "run on GPUs, or send over the group",
        )


@contextmanager
def opened(
    rank: int, size: int, meeting: Meeting, *, emulate_nodes: int | None = None, address: str = LOOPBACK
) -> Iterator[CpuWorld]:
    """A world of `size` ranks. Each host is a load/store domain, or one host plays `emulate_nodes` of them, which is EMULATED.
    `address`: where rank 0 can be reached. Raises EpctlError."""
    _check_torch()
    if emulate_nodes is not None and (emulate_nodes < 1 or size % emulate_nodes):
        raise EpctlError(
            f"{size} ranks make no {emulate_nodes} nodes",
            "each emulated node has as many ranks",
            "give a multiple of --emulate-nodes to --ranks",
        )
    told = meeting.all_gather("facts of the nodes", msgspec.json.encode(node_facts.live()))
    facts = [msgspec.json.decode(one, type=NodeFacts) for one in told]
    played, hosts = emulate_nodes or 1, len({one.host for one in facts})
    layout = node_facts.layout_of(facts, "cpu", scale_up=size // (played if played > 1 else hosts), num_gpus=0)
    layout = structs.replace(layout, emulated=played > hosts, gin_type="")
    with group_of(rank, size, meeting, reachable(facts, address)) as group:
        yield CpuWorld(rank, layout, meeting, group)


def reachable(facts: list[NodeFacts], address: str) -> str:
    """Where rank 0 is reached: the loopback interface does where all ranks are on one host."""
    return LOOPBACK if len({one.host for one in facts}) == 1 else address


def _check_torch() -> None:
    try:
        import torch  # noqa: F401 - whether it is there
    except ImportError as error:
        raise EpctlError(
            "PyTorch cannot be imported",
            f"the CPU tier runs every op in plain PyTorch ({error})",
            "pip install 'epctl[gpu]', or pip install torch",
            exit_code=4,
        ) from None


@contextmanager
def group_of(rank: int, size: int, meeting: Meeting, host: str) -> Iterator[Any]:
    """A gloo group of all ranks, whose rank 0 is reached at `host`; None for one rank."""
    if size == 1:
        yield None
        return
    import torch.distributed as dist

    if host == LOOPBACK:
        # A container's host name may lead nowhere; the loopback interface always leads home.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = timedelta(seconds=MESSAGE_S)
    store = dist.TCPStore(host, 0, None, is_master=True, wait_for_workers=False, timeout=limit) if rank == 0 else None
    mine = str(store.port) if store is not None else ""
    port = int(meeting.all_gather("port of the CPU group", mine.encode())[0])
    if store is None:
        store = dist.TCPStore(host, port, None, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    try:
        yield dist.group.WORLD
        meeting.all_gather("end of the CPU group", b"")
    finally:
        dist.destroy_process_group()
