"""Which job this process belongs to, read from the environment that launchers set. Pure: the environment is an argument.

A launcher inside another wins: torchrun, then MPI, then srun. A set of variables that is incomplete or contradicts itself or another
set is an error, since a job that split in two would be measured without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from epctl.core import launchers
from epctl.core.errors import EpctlError
from epctl.core.placement import LOOPBACK, UNKNOWN, Job, Placement, spawned
from epctl.core.slurm import srun
from epctl.core.variables import given, half, number

__all__ = ["LOOPBACK", "MAX_RANKS_HERE", "UNKNOWN", "Job", "Placement", "detect", "resolve", "spawned"]

MAX_RANKS_HERE = 1024


def detect(environ: Mapping[str, str]) -> Job | None:
    """The job that a launcher put this process into; None when there is none. Raises EpctlError that names the variables and their
    values when they contradict each other or are incomplete."""
    env = {name: value.strip() for name, value in environ.items() if value.strip()}
    if "RANK" in env and "LOCAL_RANK" in env and "LOCAL_WORLD_SIZE" in env:
        return launchers.torchrun(env)
    around = launchers.mpi(env) or srun(env)
    if "RANK" in env and "LOCAL_RANK" in env:
        if around is not None and _agrees(env, around):
            return around
        return launchers.torchrun(env)
    if "RANK" in env:
        return _rank_alone(env, around)
    if around is not None:
        _same_size(env, around)
        return around
    if "JOB_COMPLETION_INDEX" in env and "MASTER_ADDR" in env:
        return launchers.kubernetes(env)
    lonely = [name for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") if name in env]
    if lonely:
        raise half("a launcher's", env, lonely, ("RANK",))
    return None


def resolve(environ: Mapping[str, str], ranks: int | None, default: int) -> Job:
    """The job, with how many ranks this process starts. `ranks`: what the user asked for with --ranks, None when nothing; `default`:
    how many a node gets then. Raises EpctlError when --ranks contradicts a launcher that starts the ranks itself."""
    if ranks is not None and not 1 <= ranks <= MAX_RANKS_HERE:
        raise EpctlError(
            f"--ranks {ranks} is out of range",
            f"it may be 1 to {MAX_RANKS_HERE}",
            "give a number of ranks in that range",
        )
    job = detect(environ)
    num_local = default if ranks is None else ranks
    if job is None:
        return spawned(num_local)
    place = job.placement
    if place is None:
        return replace(job, num_local=num_local)
    if ranks is None or ranks == place.world_size:
        return job
    if place.world_size == 1:
        return spawned(ranks)  # an interactive shell in a step of one task: nothing says that it is a rank
    raise EpctlError(
        f"--ranks {ranks} contradicts {job.origin}",
        f"{job.origin} has started {place.world_size} ranks, of which this is rank {place.rank}",
        f"leave --ranks out, or let {job.origin} start {ranks} ranks",
    )


def _agrees(env: Mapping[str, str], job: Job) -> bool:
    """A wrapper has exported the launcher's own numbers under PyTorch's names."""
    place = job.placement
    named = (number(env, "RANK"), number(env, "LOCAL_RANK"), number(env, "WORLD_SIZE") if "WORLD_SIZE" in env else None)
    return place is not None and named == (place.rank, place.local_rank, place.world_size)


def _rank_alone(env: Mapping[str, str], around: Job | None) -> Job:
    """RANK without LOCAL_RANK: the index of a node, unless a launcher around it started several ranks a node with these numbers."""
    place = around.placement if around is not None else None
    if place is None or place.local_world_size == 1:
        return launchers.nodes(env)
    if "WORLD_SIZE" in env and (number(env, "RANK"), number(env, "WORLD_SIZE")) == (place.rank, place.world_size):
        assert around is not None  # noqa: S101 - it has the place
        return around
    raise EpctlError(
        f"two launchers contradict each other: {given(env, ('RANK', 'WORLD_SIZE'))}, but {place.origin} says rank {place.rank} "
        f"of {place.world_size}",
        f"RANK without LOCAL_RANK is a node's index, but {place.origin} has started {place.local_world_size} processes on this node",
        "unset RANK and WORLD_SIZE, or start one process a node",
    )


def _same_size(env: Mapping[str, str], job: Job) -> None:
    place = job.placement
    if place is None or "WORLD_SIZE" not in env or number(env, "WORLD_SIZE") == place.world_size:
        return
    raise EpctlError(
        f"WORLD_SIZE={env['WORLD_SIZE']} contradicts {job.origin}, which has started {place.world_size} ranks",
        "one of both is left over from elsewhere, or the job has split into several",
        f"unset WORLD_SIZE, or let {job.origin} start as many ranks",
    )
