"""Opens the world that the ops of a run get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from epctl.bench.job import Job
from epctl.core.op import World
from epctl.ranks.rank import Rank

GPU_WORLD = "epctl.comm.world"
"""Imported when GPUs are used: it needs NCCL."""


@contextmanager
def opened(rank: Rank, job: Job) -> Iterator[World]:
    """The world of the job's tier. Raises EpctlError."""
    place = rank.placement
    if job.tier == "cpu":
        from epctl.comm import cpu_world

        opening = cpu_world.opened(
            place.rank, place.world_size, rank.meeting, emulate_nodes=job.emulate_nodes, address=place.address
        )
        with opening as world:
            yield world
        return
    with import_module(GPU_WORLD).opened(rank, emulate_nodes=job.emulate_nodes) as world:
        yield world
