"""Ranks that met are one job, or every one of them says why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctl.core.placement import UNKNOWN, Placement
from epctl.ranks.facts import Facts, JobError, digest, own, settled, verify


def job(num_nodes: int = 2, local: int = 2, told: int | None = None) -> list[Facts]:
    """A job as it should be."""
    size = num_nodes * local
    return [
        Facts(
            *(rank, size, rank % local, local, rank // local, num_nodes if told is None else told, "srun"),
            *(f"host-{rank // local}", f"boot-{rank // local}", 100 + rank, 1, "pid:[1]"),
            epctl="0.1.0",
            nccl="2.32.3",
            request="d",
            gpu=f"GPU-{rank}",
        )
        for rank in range(size)
    ]


def refused(every: list[Facts], *words: str) -> None:
    with pytest.raises(JobError) as caught:
        verify(every)
    for word in words:
        assert word in f"{caught.value.what} {caught.value.why}", str(caught.value)


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_regular_job_of_any_shape_is_one_job(num_nodes: int, local: int) -> None:
    verify(job(num_nodes, local))
    verify(job(num_nodes, local, told=UNKNOWN))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epctl": "0.0.9"}, ("versions of epctl", "0.0.9 on rank 3 (host-1)", "0.1.0 on ranks 0, 1, 2")),
        ({"nccl": "2.28.9"}, ("versions of NCCL", "2.28.9 on rank 3 (host-1)")),
        ({"nccl": ""}, ("none on rank 3",)),
        ({"request": "e"}, ("asked for different things", "rank 3 (host-1)")),
        ({"world_size": 8}, ("disagree on how many", "8 on rank 3")),
        ({"rank": 2}, ("not 0 to 3", "rank 2 is there twice")),
        ({"rank": 4}, ("not 0 to 3", "0, 1, 2, 4")),
        ({"host": "host-2"}, ("says 2 nodes", "are on 3", "host-2")),
        ({"boot": "other"}, ("says 2 nodes", "are on 3")),
        ({"local_rank": 0}, ("host-1 has 2 ranks", "local ranks there: 0")),
        ({"gpu": "GPU-2"}, ("ranks 2, 3 use the same GPU GPU-2 on host-1",)),
        ({"gpu": ""}, ("without a GPU: rank 3",)),
    ],
)
def test_one_rank_that_differs_is_named(change: dict[str, object], words: tuple[str, ...]) -> None:
    every = job()
    every[3] = replace(every[3], **change)
    refused(every, *words)


def test_a_job_that_split_is_refused_though_each_part_looks_whole() -> None:
    """Two nodes that each believe to be the only one, and met at one point; and a node that is missing."""
    half = job(1, 2)
    refused(
        [*half, *(replace(facts, host="host-1", boot="boot-1") for facts in half)],
        "not 0 to 1",
        "rank 0 is there twice",
    )
    refused(job()[:2], "not 0 to 3")


def test_two_nodes_on_one_machine_are_not_two() -> None:
    refused([replace(facts, host="host-0", boot="boot-0") for facts in job()], "says 2 nodes, but the ranks are on 1")


def test_the_same_gpu_on_two_hosts_is_two_gpus_and_sharing_may_be_asked_for() -> None:
    every = [replace(facts, gpu=f"GPU-{facts.local_rank}") for facts in job()]
    verify(every)
    verify([replace(facts, gpu="GPU-0") for facts in every], several_ranks_a_gpu=True)
    verify([replace(facts, gpu="") for facts in every])


def test_the_digest_of_a_request_does_not_depend_on_the_order_of_keys_but_on_each_value() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1, "b": [2]}) != digest({"a": 1, "b": [3]})


def test_nodes_that_no_launcher_told_count_by_their_lowest_rank() -> None:
    every = [replace(facts, host=f"h{facts.rank % 2}", boot="b") for facts in job(told=UNKNOWN)]
    place = Placement(3, 4, 1, 2, UNKNOWN, UNKNOWN, "a", 1, "mpirun")
    assert (settled(place, every).node_idx, settled(place, every).num_nodes) == (1, 2)
    told = replace(place, node_idx=0, num_nodes=1)
    assert settled(told, every) == told


def test_this_process_tells_about_itself() -> None:
    facts = own(Placement(0, 1, 0, 1, 0, 1, "a", 1, "spawn"), request="r", gpu="G")
    assert facts.host
    assert facts.started > 0
    verify([facts])
