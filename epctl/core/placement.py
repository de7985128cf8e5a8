"""Where a process stands in a job of ranks, and how the job is laid out over nodes. Pure."""

from __future__ import annotations

from msgspec import Struct

UNKNOWN = -1
"""A node index or count that the launcher does not tell; the meeting finds it."""
LOOPBACK = "127.0.0.1"


class Placement(Struct, frozen=True):
    """One rank. `address` and `port` name the meeting point, which rank 0 keeps unless `hosted`."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Ranks of the job on this node."""
    node_idx: int
    """UNKNOWN where the launcher does not tell."""
    num_nodes: int
    """UNKNOWN where the launcher does not tell."""
    address: str
    port: int
    """0: not chosen yet."""
    origin: str
    """Who placed it: torchrun, srun, mpirun, kubernetes, nodes (MASTER_ADDR and a node's index) or spawn."""
    job_id: str = ""
    """What tells two jobs at one meeting point apart; the same on all ranks."""
    hosted: bool = False
    """The launcher itself keeps a store at the meeting point (torchrun does)."""


class Job(Struct, frozen=True):
    """What a launcher says about the job that this process belongs to: either the process is a rank (`placement`), or it stands for
    a node, and starts that node's `num_local` ranks itself."""

    origin: str
    address: str
    port: int
    node_idx: int
    num_nodes: int
    placement: Placement | None = None
    num_local: int = 0
    """Ranks that this process starts; 0 as long as nobody has said how many."""
    job_id: str = ""

    def placements(self) -> tuple[Placement, ...]:
        """The ranks that this process starts. Every node starts the same number, rank by rank: node 1 of 8 ranks a node has 8 to 15."""
        size = self.num_local * self.num_nodes
        first = self.node_idx * self.num_local
        return tuple(
            Placement(
                rank=first + local,
                world_size=size,
                local_rank=local,
                local_world_size=self.num_local,
                node_idx=self.node_idx,
                num_nodes=self.num_nodes,
                address=self.address,
                port=self.port,
                origin=self.origin,
                job_id=self.job_id,
            )
            for local in range(self.num_local)
        )


def spawned(num_ranks: int) -> Job:
    """A job of one node, whose ranks this process starts."""
    return Job("spawn", LOOPBACK, 0, 0, 1, num_local=num_ranks)
