"""What each rank says about itself when a job meets, and whether these add up to one job."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from epctl import __version__
from epctl.core.errors import CommonError
from epctl.core.placement import UNKNOWN, Placement
from epctl.ranks import process

_SHOWN = 8


class JobError(CommonError):
    """The ranks are not one job; every one of them finds the same."""


class Facts(Struct, frozen=True):
    """One rank's word. Empty strings are what does not apply, or is not known yet."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_idx: int
    num_nodes: int
    origin: str
    host: str
    boot: str
    """/proc/sys/kernel/random/boot_id: NCCL tells hosts apart by host name and this."""
    pid: int
    started: int
    pid_space: str
    epctl: str
    nccl: str = ""
    request: str = ""
    """Digest of the request: all ranks run the same one."""
    gpu: str = ""
    """UUID, or PCI address, of the GPU that the rank uses."""

    @property
    def machine(self) -> tuple[str, str]:
        return self.host, self.boot

    @property
    def where(self) -> str:
        return f"rank {self.rank} ({self.host}, process {self.pid})"


def digest(request: Any) -> str:  # noqa: ANN401 - JSON
    """The same for equal requests, whatever the order of their keys."""
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()[:16]


def own(place: Placement, *, request: str = "", nccl: str = "", gpu: str = "") -> Facts:
    """The facts of this process."""
    return Facts(
        *(
            place.rank,
            place.world_size,
            place.local_rank,
            place.local_world_size,
            place.node_idx,
            place.num_nodes,
            place.origin,
        ),
        *(socket.gethostname(), process.boot_id(), os.getpid(), process.started(os.getpid()), process.pid_space()),
        epctl=__version__,
        nccl=nccl,
        request=request,
        gpu=gpu,
    )


def settled(place: Placement, every: Sequence[Facts]) -> Placement:
    """The placement with what the launcher did not tell: nodes count by their lowest rank."""
    machines = list(dict.fromkeys(facts.machine for facts in sorted(every, key=lambda facts: facts.rank)))
    if place.num_nodes != UNKNOWN and place.node_idx != UNKNOWN:
        return place
    mine = next(facts for facts in every if facts.rank == place.rank).machine
    return msgspec.structs.replace(place, node_idx=machines.index(mine), num_nodes=len(machines))


def verify(every: Sequence[Facts], *, several_ranks_a_gpu: bool = False) -> None:
    """Raises JobError unless these are the ranks of one job: each once, agreeing on its size and nodes, on versions and on the
    request, and each with a GPU of its own (unless `several_ranks_a_gpu`)."""
    _complete(every)
    _same(
        every, "epctl", lambda facts: facts.epctl, "install the same version of epctl in the environment of every node"
    )
    _same(
        every,
        "NCCL",
        lambda facts: facts.nccl or "none",
        "install the same nvidia-nccl package everywhere, and check EPCTL_NCCL_ROOT, LD_LIBRARY_PATH and LD_PRELOAD on each node",
    )
    if len({facts.request for facts in every}) > 1:
        raise JobError(
            f"the ranks were asked for different things: {_groups(every, lambda facts: facts.request)}",
            "the digests of their requests differ, so that they would measure different things under one name",
            "give the same command line, files and EPCTL_ variables to every rank",
        )
    _nodes(every)
    if not several_ranks_a_gpu:
        _one_gpu_each(every)


def _complete(every: Sequence[Facts]) -> None:
    size = len(every)
    if len({facts.world_size for facts in every}) > 1:
        raise JobError(
            f"the ranks disagree on how many they are: {_groups(every, lambda facts: str(facts.world_size))}",
            "parts of different jobs have met, or the nodes were started with different numbers of ranks",
            "start every node with the same command line, and every job with a meeting point (MASTER_ADDR, MASTER_PORT) of its own",
        )
    twice = [rank for rank, times in Counter(facts.rank for facts in every).items() if times > 1]
    if twice or sorted(facts.rank for facts in every) != list(range(size)) or every[0].world_size != size:
        raise JobError(
            f"the ranks that met are not 0 to {every[0].world_size - 1}: {_list(facts.rank for facts in every)}",
            f"rank {twice[0]} is there twice" if twice else "some are missing or of another job",
            "start one process for each rank, with a meeting point (MASTER_ADDR, MASTER_PORT) that no other job uses",
        )


def _nodes(every: Sequence[Facts]) -> None:
    machines: dict[tuple[str, str], list[Facts]] = {}
    for facts in every:
        machines.setdefault(facts.machine, []).append(facts)
    told = {facts.num_nodes for facts in every} - {UNKNOWN}
    names = _list(name for name, _ in machines)
    if told and told != {len(machines)}:
        raise JobError(
            f"the launcher says {_list(told)} nodes, but the ranks are on {len(machines)}: {names}",
            "a node is a host name and a boot id, as NCCL tells them",
            "start the job on as many machines as it has nodes; with --emulate-nodes one machine plays several",
        )
    for (name, _), here in machines.items():
        sizes = {facts.local_world_size for facts in here}
        if sizes != {len(here)} or sorted(facts.local_rank for facts in here) != list(range(len(here))):
            raise JobError(
                f"{name} has {len(here)} ranks of the job, but they say {_list(sizes)}",
                f"local ranks there: {_list(facts.local_rank for facts in here)}; two machines with one host name look like this too, "
                "when /proc/sys/kernel/random/boot_id cannot be read",
                "check the launcher's number of ranks a node, and that hosts have names of their own",
            )


def _one_gpu_each(every: Sequence[Facts]) -> None:
    users: dict[tuple[str, str, str], list[int]] = {}
    for facts in every:
        if facts.gpu:
            users.setdefault((*facts.machine, facts.gpu), []).append(facts.rank)
    shared = next(((key, ranks) for key, ranks in users.items() if len(ranks) > 1), None)
    if shared is not None:
        (host, _, gpu), ranks = shared
        raise JobError(
            f"{named(ranks)} use the same GPU {gpu} on {host}",
            "each rank needs a GPU of its own: their transfers would share one memory, and NCCL refuses it",
            "start at most as many ranks a node as it has GPUs, and check CUDA_VISIBLE_DEVICES; --emulate-nodes allows several a GPU",
        )
    without = [facts.rank for facts in every if not facts.gpu]
    if without and len(without) < len(every):
        raise JobError(
            f"without a GPU: {named(without)}; the others have one",
            "a job runs on GPUs or without, not mixed",
            "check CUDA_VISIBLE_DEVICES and the driver on their nodes: epctl doctor",
        )


def _same(every: Sequence[Facts], what: str, of: Callable[[Facts], str], todo: str) -> None:
    if len({of(facts) for facts in every}) > 1:
        raise JobError(
            f"the ranks use different versions of {what}: {_groups(every, of)}",
            "a mixture fails later in ways that are hard to tell, or measures something else on each node",
            todo,
        )


def _groups(every: Sequence[Facts], of: Callable[[Facts], str]) -> str:
    """`2.32.3 on ranks 0, 1 (host a); 2.28.9 on rank 2 (host b)`."""
    groups: dict[str, list[Facts]] = {}
    for facts in every:
        groups.setdefault(of(facts), []).append(facts)
    told = []
    for value, members in list(groups.items())[:_SHOWN]:
        told.append(f"{value} on {named(facts.rank for facts in members)} ({_list(facts.host for facts in members)})")
    return "; ".join(told)


def _list(values: Iterable[object]) -> str:
    words = list(dict.fromkeys(str(value) for value in values))
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")


def named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5`."""
    found = list(ranks)
    shown = ", ".join(map(str, found[:16])) + (f" and {len(found) - 16} more" if len(found) > 16 else "")
    return f"{'rank' if len(found) == 1 else 'ranks'} {shown}"
