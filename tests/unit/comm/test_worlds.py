"""What worlds give to ops, and what is verified before any communicator is made."""

from __future__ import annotations

import ast
import socket
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from epctl.comm import cpu_world, domain, node_facts, world
from epctl.comm.domain import Domain
from epctl.comm.node_facts import NodeFacts
from epctl.core.errors import CommonError, EpctlError
from epctl.core.placement import LOOPBACK, Placement
from epctl.ranks import facts
from epctl.ranks.facts import Facts
from epctl.ranks.rank import Rank
from tests.support.worlds import Meeting, layout, torch_or_skip

OPS = Path(__file__).parents[3] / "epctl" / "ops"


def test_ops_find_the_communicator_where_the_world_of_gpus_has_it() -> None:
    mine = object.__new__(Domain)
    found = world.GpuWorld(0, layout(2, tier="gpu"), cast("Any", None), None, mine)
    assert domain.of_world(found) is mine
    with pytest.raises(EpctlError, match="no NCCL communicator") as refused:
        domain.of_world(cpu_world.CpuWorld(0, layout(1), cast("Any", None), None))
    assert refused.value.exit_code == 4


def test_ops_ask_a_world_only_for_what_some_world_has() -> None:
    """getattr with a default hides a name that no world has any more."""
    has = set(dir(world.GpuWorld)) | {"comm", "gin_gates"}
    asked = {
        (path.name, call.args[1].value)
        for path in OPS.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "getattr"
        and isinstance(call.args[0], ast.Name)
        and call.args[0].id == "world"
        and isinstance(call.args[1], ast.Constant)
    }
    assert asked
    assert [one for one in asked if one[1] not in has] == []


class Played:
    """A meeting of one process that says what all ranks would."""

    def __init__(self, *others: Facts) -> None:
        self.others = others

    def verify(self, mine: Facts, *, several_ranks_a_gpu: bool) -> tuple[Facts, ...]:
        every = (mine, *self.others)
        facts.verify(every, several_ranks_a_gpu=several_ranks_a_gpu)
        return every


def verified(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, str], nccls: tuple[str, str] = ("2.32.3", "2.32.3")
) -> int:
    """Of rank 0, beside a rank 1 of this machine."""
    monkeypatch.setattr(world, "nccl_version", lambda: nccls[0])
    places = [Placement(rank, 2, rank, 2, 0, 1, LOOPBACK, 1, "torchrun", "x") for rank in range(2)]
    rank = object.__new__(Rank)
    rank.placement = places[0]
    other = structs.replace(facts.own(places[1], nccl=nccls[1], gpu=gpus[1]), host=socket.gethostname())
    rank.meeting = cast("Any", Played(other))
    return world._verified(rank, gpus[0])


def test_ranks_that_share_a_gpu_are_refused_before_nccl_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    assert verified(monkeypatch, ("GPU-a", "GPU-b")) == 2
    with pytest.raises(CommonError, match="ranks 0, 1 use the same GPU GPU-a"):
        verified(monkeypatch, ("GPU-a", "GPU-a"))
    with pytest.raises(CommonError, match="different versions of NCCL"):
        verified(monkeypatch, ("GPU-a", "GPU-b"), ("2.32.3", "2.28.9"))
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert verified(monkeypatch, ("GPU-a", "GPU-a")) == 1


class _Told(Meeting):
    """Ranks of several hosts."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        super().__init__(1)
        self.enter(0)
        self._hosts = hosts

    def all_gather(self, stage: str, value: bytes) -> list[bytes]:  # noqa: ARG002
        own = msgspec.json.decode(value, type=NodeFacts)
        return [msgspec.json.encode(structs.replace(own, host=host)) for host in self._hosts]


@pytest.mark.parametrize(
    ("hosts", "emulated", "shape", "played"),
    [
        (("a", "a", "a", "a"), None, (1, 4), False),
        (("a", "a", "b", "b"), None, (2, 2), False),  # no memory is shared between hosts
        (("a", "b", "c", "d"), 1, (4, 1), False),
        (("a", "a", "a", "a"), 2, (2, 2), True),
        (("a", "a", "b", "b"), 4, (4, 1), True),
    ],
)
def test_on_the_cpu_a_host_is_a_domain(
    monkeypatch: pytest.MonkeyPatch,
    hosts: tuple[str, ...],
    emulated: int | None,
    shape: tuple[int, int],
    *,
    played: bool,
) -> None:
    torch_or_skip()
    monkeypatch.setattr(node_facts, "live", lambda: NodeFacts("x"))

    class NoGroup:
        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(cpu_world, "group_of", lambda *_: NoGroup())
    with cpu_world.opened(0, len(hosts), _Told(hosts), emulate_nodes=emulated) as found:
        assert (found.layout.scale_out, found.layout.scale_up) == shape
        assert found.layout.emulated is played
