"""What srun tells its tasks. Pure. Source: https://slurm.schedmd.com/srun.html, output environment variables."""

from __future__ import annotations

from epctl.core import hostlist
from epctl.core.errors import EpctlError
from epctl.core.placement import LOOPBACK, UNKNOWN, Job, Placement
from epctl.core.variables import Env, derived_port, given, half, index_of, job_of, number, port

_NO_STEP = 0xFFFFFFF0
"""Slurm's step ids from here on are no steps of srun: batch script, interactive step, extern."""


def in_step(env: Env) -> bool:
    """A task of srun. In a batch script SLURM_PROCID and SLURM_NTASKS are set too, but no step, or one that srun did not make."""
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID"))
    return step is not None and "SLURM_PROCID" in env and step.isdecimal() and int(step[:12]) < _NO_STEP


def srun(env: Env) -> Job | None:
    """A task of a Slurm step. The meeting point is MASTER_ADDR and MASTER_PORT, else the step's first host and a port that follows
    from the ids of job and step."""
    if not in_step(env):
        return None
    size_name = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS") if name in env), None)
    if size_name is None or "SLURM_LOCALID" not in env:
        raise half("srun's", env, ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID"), _srun_lacks(env, size_name))
    rank, size = index_of(env, "SLURM_PROCID", size_name)
    names = [name for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES") if name in env]
    num_nodes = number(env, names[0], 1) if names else 1
    node_idx = number(env, "SLURM_NODEID") if "SLURM_NODEID" in env else (0 if num_nodes == 1 else UNKNOWN)
    local_size = _tasks_here(env, size_name, size, node_idx, num_nodes)
    which = f"slurm-{env.get('SLURM_JOB_ID', env.get('SLURM_JOBID', ''))}.{env.get('SLURM_STEP_ID', env.get('SLURM_STEPID'))}"
    where = port(env) if "MASTER_PORT" in env else derived_port(which)
    address = env.get("MASTER_ADDR") or (LOOPBACK if num_nodes == 1 else _first_host(env))
    local_rank = number(env, "SLURM_LOCALID")
    place = Placement(rank, size, local_rank, local_size, node_idx, num_nodes, address, where, "srun", which)
    return job_of(
        place,
        env,
        ("SLURM_PROCID", size_name, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", *names[:1]),
    )


def _srun_lacks(env: Env, size_name: str | None) -> list[str]:
    lacks = [] if size_name else ["SLURM_STEP_NUM_TASKS"]
    return lacks if "SLURM_LOCALID" in env else [*lacks, "SLURM_LOCALID"]


def _tasks_here(env: Env, size_name: str, size: int, node_idx: int, num_nodes: int) -> int:
    name = next((name for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if name in env), None)
    if name is None:
        if num_nodes == 1:
            return size
        raise half("srun's", env, ("SLURM_PROCID", size_name), ("SLURM_STEP_TASKS_PER_NODE",))
    try:
        counts = hostlist.counts(env[name])
    except ValueError as error:
        raise EpctlError(f"{name}={env[name]} is not understood", str(error), f"correct or unset {name}") from None
    if (
        sum(counts) != size
        or len(counts) != num_nodes
        or (node_idx == UNKNOWN and len(set(counts)) > 1)
        or node_idx >= num_nodes
    ):
        raise EpctlError(
            f"Slurm's variables contradict each other: {given(env, (name, size_name, 'SLURM_NODEID'))}",
            f"{sum(counts)} tasks on {len(counts)} nodes, against {size} on {num_nodes}",
            "start the job with srun, and set none of these variables by hand",
        )
    return counts[max(0, node_idx)]


def _first_host(env: Env) -> str:
    names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    name = next((name for name in names if name in env), None)
    if name is None:
        raise half("srun's", env, ("SLURM_STEP_ID", "SLURM_PROCID"), names[:1])
    try:
        return hostlist.hosts(env[name])[0]
    except ValueError as error:
        raise EpctlError(
            f"{name}={env[name]} is not understood", str(error), "set MASTER_ADDR to the host of rank 0"
        ) from None
