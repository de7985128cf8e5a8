"""What a domain itself decides, over a communicator that is played. Launches, and how it is made, are tested on GPUs."""

from __future__ import annotations

import ctypes
import os
import struct
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from epctl.comm.domain import Domain, torch_communicator
from epctl.comm.links import Seat
from epctl.comm.symmetric import Plan
from epctl.comm.wait_record import WaitRecord
from epctl.core.errors import EpctlError
from tests.support.played_comm import PEER_STRIDE, PROPERTIES, PlayedComm, play
from tests.support.worlds import torch_or_skip


class Others:
    """Control of rank 0, beside ranks that say the same unless told what else."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.num_ranks = num_ranks
        self.answers: dict[str, list[bytes]] = {}
        self.stages: list[str] = []

    def all_gather(self, stage: str, payload: bytes) -> list[bytes]:
        self.stages.append(stage)
        return [payload, *self.answers.get(stage, [payload] * (self.num_ranks - 1))]


class Parts(SimpleNamespace):
    domain: Domain
    comm: PlayedComm
    others: Others


def domain_of(comm: PlayedComm, uuid: str = "a") -> Parts:
    """Rank 0 of 2, in host memory: all but the kernels."""
    torch = torch_or_skip()
    found, others = object.__new__(Domain), Others()
    found.rank, found.num_ranks, found.device_idx, found.timeout_s = 0, 2, 0, 5.0
    found.comm, found.control = cast("Any", comm), others
    cuda = SimpleNamespace(synchronize=lambda _: None, get_device_properties=lambda _: SimpleNamespace(uuid=uuid))
    found._torch = cast("Any", SimpleNamespace(cuda=cuda))
    found._memory, found._closed = [], False
    found._record = WaitRecord(torch.device("cpu"))
    return Parts(domain=found, comm=comm, others=others)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    play(monkeypatch)
    return domain_of(PlayedComm())


def test_sizes_that_differ_are_refused_before_anything_is_allocated(parts: Parts) -> None:
    parts.others.answers["symmetric memory"] = [b"8192"]
    with pytest.raises(EpctlError, match="one size on all ranks") as caught:
        parts.domain.symmetric(4096)
    assert caught.value.why == "asked for are rank 0: 4096, rank 1: 8192 bytes"
    assert parts.comm.said == []


def test_memory_is_used_once_it_is_clear_on_all_ranks(parts: Parts) -> None:
    memory = parts.domain.symmetric(4096)
    assert parts.others.stages == ["symmetric memory", "symmetric memory is clear"]
    peers = parts.domain.peers(memory)
    assert (peers.bases, peers.rank) == ((memory.address, memory.address + PEER_STRIDE), 0)


def test_a_plan_gets_memory_of_its_size(parts: Parts) -> None:
    torch = torch_or_skip()
    plan = Plan()
    rows = plan.allocate((5, 1000), torch.float32)
    memory = parts.domain.materialise(plan)
    assert memory.num_bytes == 20480
    assert (rows.data_ptr(), rows.shape, float(rows.abs().sum())) == (memory.address, (5, 1000), 0.0)


def test_memory_that_was_released_is_not_given_back_again(parts: Parts) -> None:
    first, second = parts.domain.symmetric(1), parts.domain.symmetric(1)
    parts.domain.release(first)
    assert parts.comm.said[-2:] == ["remove window", "free"]
    parts.comm.said.clear()
    parts.domain.close()
    parts.domain.close()
    assert parts.comm.said == ["remove window", "free", "destroy"]
    assert parts.others.stages.count("close") == 1
    assert second.window == 7001


def test_after_an_error_nothing_waits_for_the_others(parts: Parts) -> None:
    parts.domain.symmetric(1)
    parts.domain.close(failed=True)
    parts.domain.close()
    assert parts.comm.said[2:] == ["abort"]
    assert "close" not in parts.others.stages


@pytest.mark.parametrize("uuid", ["a", "GPU-a"])
def test_every_rank_tells_its_host_and_its_gpu_by_nvmls_name(parts: Parts, uuid: str) -> None:
    other = Seat("node-8", "MIG-b")
    parts.others.answers["which GPU"] = [msgspec.json.encode(other)]
    found = domain_of(PlayedComm(), uuid)
    found.domain.control = parts.others
    assert found.domain._seats() == (Seat(os.uname().nodename, "GPU-a"), other)


@pytest.mark.parametrize(
    ("change", "what", "code"),
    [
        ({"rank": 1}, "NCCL's communicator is rank 1 of 2, not 0 of 2", 1),
        ({"num_ranks": 4}, "NCCL's communicator is rank 0 of 4, not 0 of 2", 1),
        ({"device_api": False, "gin_type": 2}, "NCCL offers no device API between these ranks", 4),
    ],
)
def test_a_communicator_of_another_kind_is_refused(change: dict[str, Any], what: str, code: int) -> None:
    found = domain_of(PlayedComm(structs.replace(PROPERTIES, **change)))
    with pytest.raises(EpctlError) as caught:
        found.domain._check_ranks()
    assert (caught.value.what, caught.value.exit_code) == (what, code)
    if code == 4:
        assert caught.value.why == "1 load/store teams of 2, GIN type proxy"


def test_the_place_in_the_domain_is_nccls() -> None:
    found = domain_of(PlayedComm(structs.replace(PROPERTIES, lsa_rank=3, lsa_size=8))).domain
    found.comm.properties = structs.replace(PROPERTIES, lsa_rank=3, lsa_size=8)
    assert (found.lsa_rank, found.lsa_size) == (3, 8)


def test_a_wait_that_gave_up_is_told_until_it_is_cleared(parts: Parts) -> None:
    domain = parts.domain
    domain.check()
    limits = domain.limits()
    assert (limits.timeout_s, limits.rank, domain.limits(0.5).timeout_s) == (5.0, 0, 0.5)
    ctypes.memmove(limits.record, struct.pack("<IIIIQQQQIIQ", 1, 0, 1, 3, 8, 7, 7, 10**9, 0, 0, 0), 64)
    with pytest.raises(EpctlError, match="rank 0 waited 1 s for rank 1's arrival signal in the barrier") as caught:
        domain.check()
    assert caught.value.todo.startswith("look at rank 1")
    domain._rounds = 7
    parts.others.answers["how often ranks have met"] = [b"9"]
    domain.clear()
    domain.check()
    assert domain.timeout() is None
    assert domain._rounds == 9, "flags only grow: the next meeting is behind that of the rank that came furthest"


def test_a_group_without_an_nccl_communicator_has_none() -> None:
    backend = SimpleNamespace(_comm_ptr=lambda: 4711)
    assert torch_communicator(SimpleNamespace(_get_backend=lambda _: backend), "cuda") == 4711
    assert torch_communicator(SimpleNamespace(_get_backend=lambda _: object()), "cuda") == 0
