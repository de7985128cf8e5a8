"""Checks of the folders with compiled kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import jit_cache
from epctl.checks.jit_cache import is_shared
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_READ, Absent, Fact
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import JitCache
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(jit_cache).values() if isinstance(one, Check)}
IB = ib_node()


def _cache(
    owner: str = "deepep",
    *,
    exists: bool = True,
    filesystem: Fact[str] = "ext4",
    writable: Fact[bool] = True,
    entries: Fact[int] = 3,
    node: Snapshot = IB,
) -> Snapshot:
    caches = (
        JitCache(owner, f"/home/u/.{owner}", exists, filesystem, writable, entries),
        JitCache("epctl", "/home/u/.cache/epctl", False, "nfs4", False, 0),
    )
    return edit(node, "software.jit_caches", caches)


GEMM = dist(IB, "deep-gemm", "2.1.0")
ON_NFS = _cache(filesystem="nfs4", entries=0)

CASES = [
    Case("JIT-NFS-RACE", ON_NFS, _cache(entries=0), "/home/u/.deepep is on nfs4, empty", num_nodes=2),
    Case("JIT-NFS-RACE", _cache(filesystem="nfs4"), _cache(), "3 kernels", "info", num_nodes=2),
    Case(
        "JIT-NFS-RACE",
        _cache(filesystem="fuse.juicefs", entries=Absent("permission")),
        _cache(filesystem="fuse.fuse-overlayfs", entries=0),
        "could not be counted",
        num_nodes=2,
    ),
    Case("JIT-NFS-RACE", _cache("deepgemm", filesystem="lustre", entries=0, node=GEMM), IB, "lustre", num_nodes=2),
    Case("JIT-COLD-TIMEOUT", _cache(entries=0), _cache(), "is empty", num_nodes=2),
    Case("JIT-COLD-TIMEOUT", _cache(exists=False, entries=0), _cache(), "does not exist yet", num_nodes=2),
    Case("JIT-CACHE-READONLY", _cache(writable=False, entries=0), _cache(), "may not be written by this user"),
    Case("JIT-CACHE-READONLY", _cache(writable=False), _cache(), "only its 3 kernels", "warn"),
]


@pytest.mark.parametrize(
    ("one", "node", "num_nodes", "status"),
    [
        ("JIT-NFS-RACE", ON_NFS, 1, "skipped"),
        ("JIT-NFS-RACE", _cache(filesystem=Absent("failed")), 2, "unknown"),
        ("JIT-NFS-RACE", edit(IB, "software.jit_caches", NOT_READ), 2, "unknown"),
        ("JIT-NFS-RACE", _cache("deepgemm", filesystem="lustre", entries=0), 2, "skipped"),
        ("JIT-COLD-TIMEOUT", _cache(entries=Absent("permission")), 2, "unknown"),
        ("JIT-COLD-TIMEOUT", _cache(entries=0), 1, "skipped"),
        ("JIT-COLD-TIMEOUT", dist(_cache(entries=0), "deepinfer-ep", None), 2, "skipped"),
        ("JIT-CACHE-READONLY", _cache(writable=NOT_READ), 1, "unknown"),
        ("JIT-CACHE-READONLY", edit(IB, "software.jit_caches", ()), 1, "skipped"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, num_nodes: int, status: str) -> None:
    assert run(one, node, num_nodes=num_nodes).status == status


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("nfs", True),
        ("ceph", True),
        ("fuse", True),
        ("fuseblk", False),
        ("overlay", False),
        ("tmpfs", False),
        ("xfs", False),
    ],
)
def test_file_systems_of_several_nodes(name: str, shared: bool) -> None:
    assert is_shared(name) is shared


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("num_nodes", [1, 4])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot], num_nodes: int) -> None:
    for one in sorted(OWN):
        assert run(one, make(), num_nodes=num_nodes).status in ("passed", "skipped"), one


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop(), num_nodes=2).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
