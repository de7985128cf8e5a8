"""What each launcher's variables say. Pure; each reader gives None where its launcher was not at work.

Sources: https://pytorch.org/docs/stable/elastic/run.html (torchrun), https://slurm.schedmd.com/srun.html (output environment
variables), https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html (OMPI_*), the user guides of MPICH and Intel MPI
(PMI_*, MPI_LOCALRANKID), of MVAPICH (MV2_*, MVP_*), and https://kubernetes.io/docs/concepts/workloads/controllers/job/ (indexed jobs).
"""

from __future__ import annotations

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.placement import LOOPBACK, UNKNOWN, Job, Placement
from epctl.core.slurm import in_step
from epctl.core.variables import Env, all_of, derived_port, given, half, index_of, job_of, number, port, reachable

_NODE_COUNTS = ("NUM_NODES", "NNODES", "PET_NNODES", "WORLD_SIZE")


class Names(Struct, frozen=True):
    """The variables in which one family of MPI says the same four things."""

    rank: str
    size: str
    local_rank: str
    local_size: str


MPI = (
    Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Names("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    Names("MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_SIZE"),
    Names("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_MPI_JOBS = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PALS_APID",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "JOB_ID",
)
"""Variables that tell one mpirun from another, the surest first."""


def torchrun(env: Env) -> Job:
    """torchrun, or who sets the same variables."""
    needed = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    all_of("torchrun's", env, needed)
    rank, size = index_of(env, "RANK", "WORLD_SIZE")
    local_rank, local_size = index_of(env, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if "GROUP_RANK" in env and "GROUP_WORLD_SIZE" in env:
        node_idx, num_nodes = index_of(env, "GROUP_RANK", "GROUP_WORLD_SIZE")
    elif size % local_size == 0:
        num_nodes = size // local_size
        node_idx = number(env, "GROUP_RANK") if "GROUP_RANK" in env else rank // local_size
    else:
        node_idx, num_nodes = UNKNOWN, UNKNOWN
    job_id = "torchrun-" + "-".join(env.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    place = Placement(
        *(rank, size, local_rank, local_size, node_idx, num_nodes, env["MASTER_ADDR"], port(env), "torchrun", job_id),
        hosted=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    return job_of(place, env, (*needed, "GROUP_RANK", "GROUP_WORLD_SIZE"))


def mpi(env: Env) -> Job | None:
    """mpirun of Open MPI, MPICH, Intel MPI, MVAPICH, or Cray's PALS."""
    for names in MPI:
        every = (names.rank, names.size, names.local_rank, names.local_size)
        have = [name for name in every if name in env]
        if have and not (names.rank.startswith("PMI") and names.local_rank not in env):
            all_of("mpirun's", env, every)
            return _mpi(env, names)
    pmi = [name for name in ("PMI_RANK", "PMI_SIZE", "PMIX_RANK") if name in env]
    if pmi and not in_step(env) and "LOCAL_RANK" not in env:
        raise half("mpirun's", env, pmi, ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
    return None


def _mpi(env: Env, names: Names) -> Job:
    rank, size = index_of(env, names.rank, names.size)
    local_rank, local_size = index_of(env, names.local_rank, names.local_size)
    one_node = local_size == size
    which = next((f"{name}-{env[name]}" for name in _MPI_JOBS if name in env), "")
    if "MASTER_ADDR" not in env and not one_node:
        raise EpctlError(
            f"mpirun has started {size} ranks on several nodes, and MASTER_ADDR does not say where they meet",
            f"{given(env, (names.rank, names.size, names.local_size))}; MPI's variables hold no address",
            "pass the host of rank 0: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 … (-genv NAME VALUE with MPICH and Intel MPI)",
        )
    if "MASTER_PORT" not in env and not which:
        raise EpctlError(
            "mpirun has started this rank, and MASTER_PORT does not say where the ranks meet",
            f"none of {', '.join(_MPI_JOBS[:3])} is set, so that two jobs on one machine could not be told apart",
            "pass a free port: mpirun -x MASTER_PORT=29500 … (-genv MASTER_PORT 29500 with MPICH and Intel MPI)",
        )
    where = port(env) if "MASTER_PORT" in env else derived_port(which)
    node_idx, num_nodes = (0, 1) if one_node else (UNKNOWN, UNKNOWN)
    address = env.get("MASTER_ADDR", LOOPBACK)
    place = Placement(rank, size, local_rank, local_size, node_idx, num_nodes, address, where, "mpirun", which)
    return job_of(place, env, (names.rank, names.size, names.local_rank, names.local_size))


def nodes(env: Env) -> Job:
    """MASTER_ADDR and MASTER_PORT, with WORLD_SIZE = nodes and RANK = this node: this process starts the node's ranks."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    all_of("the nodes'", env, needed)
    node_idx, num_nodes = index_of(env, "RANK", "WORLD_SIZE")
    index = env.get("JOB_COMPLETION_INDEX")
    if index is not None and num_nodes > 1 and number(env, "JOB_COMPLETION_INDEX") != node_idx:
        raise EpctlError(
            f"RANK={env['RANK']} contradicts JOB_COMPLETION_INDEX={index}",
            "both are this node's index, so they are equal",
            "unset RANK, or set it from the completion index",
        )
    return _of_nodes("nodes", env, node_idx, num_nodes)


def kubernetes(env: Env) -> Job:
    """An indexed job of Kubernetes, one pod a node, with MASTER_ADDR, MASTER_PORT and the number of nodes in its template."""
    name = next((name for name in _NODE_COUNTS if name in env), None)
    if name is None:
        raise half("the indexed job's", env, ("JOB_COMPLETION_INDEX", "MASTER_ADDR"), ("NUM_NODES",))
    all_of("the indexed job's", env, ("JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT"))
    return _of_nodes("kubernetes", env, *index_of(env, "JOB_COMPLETION_INDEX", name))


def _of_nodes(origin: str, env: Env, node_idx: int, num_nodes: int) -> Job:
    where = port(env)
    reachable(env["MASTER_ADDR"], num_nodes, env)
    if num_nodes == 1:  # nobody else has to find it: a port of our own cannot collide
        return Job(origin, LOOPBACK, 0, 0, 1)
    return Job(origin, env["MASTER_ADDR"], where, node_idx, num_nodes, job_id=f"{origin}-{num_nodes}")
