"""Checks of shared memory and of descriptor passing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import limits_shared
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.host import ShmFile
from tests.support.cases import Case, run, verify
from tests.support.nodes import GIB, dist, edit, efa_node, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(limits_shared).values() if isinstance(one, Check)}
IB = ib_node()
STATIC = edit(IB, "active.pidfd_getfd", NOT_PROBED)
USER = edit(STATIC, "host.cap_effective", 0)
UNKNOWN_OWNER = Absent("permission", "processes of other users cannot be looked at")


def _shm(total: int, free: int) -> Snapshot:
    return edit(edit(IB, "host.shm_total_bytes", total), "host.shm_free_bytes", free)


def _files(*files: ShmFile) -> Snapshot:
    return edit(_shm(8 * GIB, 4 * GIB), "host.shm_files", files)


LEFT = ShmFile("nccl-Ab12Cd", 2 * GIB, False)

CASES = [
    Case("LIM-SHM-SMALL", _shm(64 << 20, 64 << 20), _shm(16 * GIB, 16 * GIB), "64 MiB"),
    Case("LIM-SHM-SMALL", _shm(512 << 20, 512 << 20), _shm(GIB, GIB), "512 MiB", "warn"),
    Case("LIM-SHM-SMALL", _shm(64 * GIB, 6 * GIB), _shm(64 * GIB, 7 * GIB), "6 GiB of", "warn"),
    Case("LIM-SHM-SMALL", edit(IB, "host.shm_total_bytes", Absent("not_found")), IB, "no /dev/shm"),
    Case("LIM-SHM-STALE", _files(LEFT), _files(ShmFile("nccl-Ab12Cd", 2 * GIB, True)), "nccl-Ab12Cd"),
    Case(
        "LIM-SHM-STALE",
        _files(*(ShmFile(f"psm_{i}", GIB // 2, False) for i in range(6))),
        _files(ShmFile("psm_0", GIB, False), ShmFile("psm_1", 4096, UNKNOWN_OWNER)),
        "6 files",
    ),
    # One option of DeepEP 2.5 needs it, and stock Ubuntu refuses it: never a failure.
    Case(
        "LIM-PTRACE",
        edit(IB, "active.pidfd_getfd", 1),
        IB,
        "deepinfer-ep 2.5.0 may share",
        "warn",
        fix_says="SYS_PTRACE",
    ),
    Case("LIM-PTRACE", dist(edit(IB, "active.pidfd_getfd", 38), "deepinfer-ep", None), IB, "errno 38"),
    Case("LIM-PTRACE", edit(IB, "active.pidfd_getfd", 1), IB, "errno 1", profiles=("deepep-2",)),
    Case(
        "LIM-PTRACE",
        edit(USER, "host.ptrace_scope", 1),
        edit(STATIC, "host.ptrace_scope", 1),
        "ptrace_scope is 1",
        "warn",
    ),
    Case("LIM-PTRACE", edit(STATIC, "host.ptrace_scope", 3), STATIC, "everybody", "warn"),
    Case(
        "LIM-PTRACE",
        edit(STATIC, "host.kernel", "4.18.0-553.el8.x86_64"),
        edit(USER, "host.ptrace_scope", Absent("not_found")),
        "4.18.0-553",
        "warn",
    ),
]


@pytest.mark.parametrize(
    ("one", "node", "status"),
    [
        ("LIM-SHM-SMALL", edit(IB, "host.shm_total_bytes", Absent("failed")), "unknown"),
        ("LIM-SHM-SMALL", edit(IB, "host.shm_free_bytes", Absent("failed")), "unknown"),
        ("LIM-SHM-STALE", edit(IB, "host.shm_files", Absent("not_read")), "unknown"),
        ("LIM-SHM-STALE", _files(ShmFile("nccl-Ab12Cd", 2 * GIB, UNKNOWN_OWNER)), "unknown"),
        ("LIM-SHM-STALE", _files(), "passed"),
        ("LIM-PTRACE", edit(USER, "host.ptrace_scope", Absent("permission")), "unknown"),
        ("LIM-PTRACE", edit(STATIC, "host.cap_effective", Absent("not_read")), "unknown"),
        ("LIM-PTRACE", edit(USER, "host.container", "docker"), "unknown"),
        ("LIM-PTRACE", edit(edit(IB, "active.pidfd_getfd", 110), "host.cap_effective", Absent("not_read")), "unknown"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, status: str) -> None:
    assert run(one, node).status == status


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot]) -> None:
    assert {run(one, make()).status for one in OWN} == {"passed"}


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop()).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
