"""Which job a process belongs to: environments as launchers set them, and contradictions that must not pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.errors import EpctlError
from epctl.core.launch import LOOPBACK, UNKNOWN, Job, Placement, detect, resolve

TORCHRUN = {
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_RANK": "3",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "RANK": "11",
    "ROLE_NAME": "default",
    "ROLE_RANK": "11",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "WORLD_SIZE": "16",
}
SRUN = {
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.0.10",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "2",
    "SLURM_NODELIST": "gnode[10,20,25,37]",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gnode[10,20,25,37]",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
}
BATCH = {  # a batch script: no step of srun
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "1(x4)",
}
OPENMPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_UNIVERSE_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-node-a-4242@1",
    "PMIX_RANK": "1",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "0",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "0",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_PORT": "4000",
}
NODES = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
POD = {"JOB_COMPLETION_INDEX": "3", "MASTER_ADDR": "bench-0.bench", "MASTER_PORT": "29500", "NNODES": "4"}


def place(env: dict[str, str]) -> Placement:
    job = detect(env)
    assert job is not None
    assert job.placement is not None
    assert (job.address, job.port, job.node_idx) == (job.placement.address, job.placement.port, job.placement.node_idx)
    return job.placement


def numbers(found: Placement) -> tuple[int, ...]:
    return (found.rank, found.world_size, found.local_rank, found.local_world_size, found.node_idx, found.num_nodes)


@pytest.mark.parametrize(
    ("env", "expected", "address", "origin"),
    [
        (TORCHRUN, (11, 16, 3, 8, 1, 2), "node-a", "torchrun"),
        (SRUN, (5, 8, 1, 2, 2, 4), "gnode10", "srun"),
        (OPENMPI, (1, 4, 1, 4, 0, 1), LOOPBACK, "mpirun"),
        ({**HYDRA, "MASTER_ADDR": "a", "MASTER_PORT": "4000"}, (2, 4, 0, 2, UNKNOWN, UNKNOWN), "a", "mpirun"),
        (MVAPICH, (0, 2, 0, 2, 0, 1), LOOPBACK, "mpirun"),
    ],
)
def test_what_launchers_set_gives_the_rank(
    env: dict[str, str], expected: tuple[int, ...], address: str, origin: str
) -> None:
    found = place(env)
    assert numbers(found) == expected
    assert (found.address, found.origin) == (address, origin)
    assert 1 <= found.port <= 65535


def test_torchrun_keeps_the_store_itself_unless_it_says_otherwise() -> None:
    assert place(TORCHRUN).hosted
    assert not place({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}).hosted


def test_all_tasks_of_a_step_find_one_meeting_point_and_another_step_another_one() -> None:
    other_task = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    assert (place(SRUN).address, place(SRUN).port, place(SRUN).job_id) == (
        place(other_task).address,
        place(other_task).port,
        place(other_task).job_id,
    )
    assert place({**SRUN, "SLURM_STEP_ID": "1"}).port != place(SRUN).port
    assert place({**SRUN, "MASTER_ADDR": "m", "MASTER_PORT": "7"}).port == 7


@pytest.mark.parametrize(
    "env", [{}, BATCH, {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA)}, {"MASTER_ADDR": "a", "MASTER_PORT": "1"}]
)
def test_a_shell_is_no_job(env: dict[str, str]) -> None:
    """A batch script, an interactive step, and an exported address alone."""
    assert detect(env) is None


def test_a_pod_of_an_indexed_job_alone_is_no_job() -> None:
    assert detect({"JOB_COMPLETION_INDEX": "3"}) is None


@pytest.mark.parametrize(
    ("env", "node_idx", "num_nodes"), [(NODES, 1, 2), (POD, 3, 4), ({**NODES, "JOB_COMPLETION_INDEX": "1"}, 1, 2)]
)
def test_a_node_starts_its_own_ranks(env: dict[str, str], node_idx: int, num_nodes: int) -> None:
    job = resolve(env, 4, 8)
    assert job.placement is None
    assert [found.rank for found in job.placements()] == list(range(4 * node_idx, 4 * node_idx + 4))
    assert {numbers(found)[1:2] + numbers(found)[3:] for found in job.placements()} == {
        (4 * num_nodes, 4, node_idx, num_nodes)
    }
    assert {found.address for found in job.placements()} == {env["MASTER_ADDR"]}


def test_a_job_of_one_node_needs_no_port_of_the_user() -> None:
    job = detect({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "WORLD_SIZE": "1", "RANK": "0"})
    assert job == Job("nodes", LOOPBACK, 0, 0, 1)


def test_torchrun_inside_srun_wins_and_mpirun_inside_slurm_too() -> None:
    assert place({**SRUN, **TORCHRUN}).origin == "torchrun"
    assert place({**SRUN, **OPENMPI}).origin == "mpirun"
    assert place({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"}).origin == "srun"


def test_a_wrapper_that_exports_sruns_numbers_is_srun() -> None:
    wrapped = {**SRUN, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert place(wrapped).origin == "srun"
    assert place({**SRUN, "RANK": "5", "WORLD_SIZE": "8"}).origin == "srun"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({**TORCHRUN, "RANK": "16"}, ["RANK=16", "WORLD_SIZE=16"]),
        ({**TORCHRUN, "LOCAL_RANK": "8"}, ["LOCAL_RANK=8", "LOCAL_WORLD_SIZE=8"]),
        ({**TORCHRUN, "MASTER_PORT": "0"}, ["MASTER_PORT=0"]),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, ["MASTER_PORT=70000"]),
        ({**TORCHRUN, "WORLD_SIZE": "x"}, ["WORLD_SIZE=x"]),
        ({**TORCHRUN, "MASTER_ADDR": "localhost"}, ["MASTER_ADDR=localhost"]),
        ({**TORCHRUN, "RANK": "2"}, ["RANK=2", "LOCAL_RANK=3"]),
        ({name: value for name, value in TORCHRUN.items() if name != "MASTER_ADDR"}, ["RANK=11", "MASTER_ADDR"]),
        ({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}, ["RANK=0", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]),
        ({"RANK": "0"}, ["RANK=0", "WORLD_SIZE", "MASTER_ADDR"]),
        ({"WORLD_SIZE": "4"}, ["WORLD_SIZE=4", "RANK"]),
        ({**NODES, "RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        ({**NODES, "MASTER_ADDR": "127.0.0.1"}, ["MASTER_ADDR=127.0.0.1"]),
        ({**NODES, "JOB_COMPLETION_INDEX": "0"}, ["RANK=1", "JOB_COMPLETION_INDEX=0"]),
        ({**POD, "JOB_COMPLETION_INDEX": "4"}, ["JOB_COMPLETION_INDEX=4", "NNODES=4"]),
        ({"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "a"}, ["JOB_COMPLETION_INDEX=1", "NUM_NODES"]),
        ({**SRUN, "SLURM_PROCID": "8"}, ["SLURM_PROCID=8", "SLURM_STEP_NUM_TASKS=8"]),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, ["SLURM_STEP_TASKS_PER_NODE=2(x3)", "SLURM_STEP_NUM_TASKS=8"]),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "zwei"}, ["SLURM_STEP_TASKS_PER_NODE=zwei"]),
        ({**SRUN, "SLURM_STEP_NODELIST": "g["}, ["SLURM_STEP_NODELIST=g["]),
        ({**SRUN, "WORLD_SIZE": "16"}, ["WORLD_SIZE=16", "8 ranks"]),
        ({**SRUN, "RANK": "1", "WORLD_SIZE": "4"}, ["RANK=1", "WORLD_SIZE=4", "rank 5"]),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, ["OMPI_COMM_WORLD_RANK=4"]),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ["OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE"]),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ["PMI_RANK=1", "MPI_LOCALRANKID"]),
        ({"PMIX_RANK": "1"}, ["PMIX_RANK=1"]),
        (HYDRA, ["MASTER_ADDR", "PMI_SIZE=4"]),
        ({**HYDRA, "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "2"}, ["MASTER_PORT"]),
    ],
)
def test_contradictions_name_variables_and_values(env: dict[str, str], said: list[str]) -> None:
    with pytest.raises(EpctlError) as caught:
        detect(env)
    assert caught.value.exit_code == 2
    for words in said:
        assert words in f"{caught.value.what} {caught.value.why}", str(caught.value)


def test_ranks_inside_a_job_that_has_ranks_is_an_error_unless_both_agree() -> None:
    with pytest.raises(EpctlError, match="--ranks 8 contradicts torchrun"):
        resolve(TORCHRUN, 8, 1)
    assert resolve(TORCHRUN, 16, 1).placement == place(TORCHRUN)
    assert resolve(TORCHRUN, None, 1).placement == place(TORCHRUN)


def test_ranks_are_spawned_where_no_launcher_is_or_only_a_step_of_one_task() -> None:
    assert resolve({}, 3, 8).num_local == 3
    assert [found.rank for found in resolve({}, None, 2).placements()] == [0, 1]
    one = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    assert resolve(one, 8, 1) == resolve({}, 8, 1)
    with pytest.raises(EpctlError, match="--ranks 0 is out of range"):
        resolve({}, 0, 1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 200))
def test_every_rank_of_a_regular_job_is_accepted_and_none_beyond(num_nodes: int, local: int, rank: int) -> None:
    size = num_nodes * local
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }
    if rank >= size:
        with pytest.raises(EpctlError, match=f"RANK={rank}"):
            detect(env)
        return
    assert numbers(place(env)) == (rank, size, rank % local, local, rank // local, num_nodes)


ENV = st.dictionaries(
    st.sampled_from(sorted({*TORCHRUN, *SRUN, *OPENMPI, *HYDRA, *POD})),
    st.one_of(st.integers(-1, 9).map(str), st.sampled_from(["2(x2)", "n[1-2]", "", "x", "127.0.0.1"])),
    max_size=12,
)


@given(ENV)
def test_any_environment_gives_a_placement_that_holds_or_an_error_in_words(env: dict[str, Any]) -> None:
    try:
        job = detect(env)
    except EpctlError as error:
        assert error.exit_code == 2
        assert any(name in f"{error.what} {error.why}" for name in env if env[name])
        return
    if job is None or job.placement is None:
        assert job is None or 0 <= job.node_idx < job.num_nodes
        return
    found = job.placement
    assert 0 <= found.rank < found.world_size
    assert 0 <= found.local_rank < found.local_world_size <= found.world_size
    assert found.node_idx == UNKNOWN or 0 <= found.node_idx < found.num_nodes <= found.world_size
