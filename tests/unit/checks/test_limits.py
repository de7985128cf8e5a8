"""Checks of system limits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from epctl.checks import limits
from epctl.core.check import Check, registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, nic, roce_node

OWN = {one.id for one in vars(limits).values() if isinstance(one, Check)}
IB, EFA = ib_node(), efa_node()
DOCKER_CAPS = 0xA80425FB
USER = edit(IB, "host.cap_effective", 0)
POD = edit(edit(IB, "host.container", "kubernetes"), "host.memlock_bytes", 65536)
NO_RDMA = edit(IB, "rdma.devices", ())
FAST = edit(
    edit(IB, "rdma.devices", tuple(msgspec.structs.replace(nic(i), ca_type="MT4131") for i in range(8))),
    "host.nofile",
    14 * 16 * 65,
)


CASES = [
    Case("LIM-MEMLOCK", edit(USER, "host.memlock_bytes", 65536), USER, "64 KiB"),
    Case("LIM-MEMLOCK", edit(USER, "host.memlock_bytes", 2 << 30), USER, "2 GiB", "warn"),
    Case("LIM-MEMLOCK", edit(IB, "host.memlock_bytes", 8 << 20), IB, "plain users", "warn"),
    Case("LIM-MEMLOCK", edit(POD, "host.cap_effective", DOCKER_CAPS), POD, "64 KiB"),
    Case(
        "LIM-MEMLOCK",
        edit(edit(NO_RDMA, "host.cap_effective", 0), "host.memlock_bytes", 65536),
        edit(edit(NO_RDMA, "host.cap_effective", 0), "host.memlock_bytes", 1 << 30),
        "no RDMA device",
        "warn",
    ),
    Case(
        "LIM-MEMLOCK",
        edit(edit(USER, "rdma.devices", Absent("permission")), "host.memlock_bytes", 65536),
        IB,
        "64 KiB",
        "warn",
    ),
    Case("LIM-NOFILE", edit(IB, "host.nofile", 1024), IB, "129 GIN contexts", num_nodes=2),
    Case("LIM-NOFILE", edit(FAST, "host.nofile", 14 * 16 * 65 - 1), FAST, "65 GIN contexts", num_nodes=2),
    Case("LIM-NOFILE", edit(IB, "host.nofile", 1024), edit(IB, "host.nofile", 1904), "17 GIN contexts", "info"),
    Case(
        "LIM-NOFILE",
        edit(IB, "host.nofile", 1024),
        edit(IB, "host.nofile", -1),
        "16 GIN contexts",
        "warn",
        ("nccl-ep",),
        2,
    ),
    Case("LIM-NOFILE", edit(IB, "host.nofile", 65536), IB, "below 131072", "warn", ("deepep-1",), 8),
    Case(
        "LIM-NOFILE",
        edit(IB, "host.nofile", 1024),
        env(edit(IB, "host.nofile", 1024), EP_DISABLE_GIN="1"),
        "GIN contexts",
        num_nodes=2,
    ),
    Case("LIM-FILEMAX", edit(IB, "host.file_max", 1000000), IB, "1000000"),
    Case(
        "LIM-PORTS-FIREWALL",
        edit(IB, "host.firewall", "drop"),
        edit(IB, "host.firewall", "accept"),
        "32768-60999",
        num_nodes=2,
    ),
    Case("LIM-EFA-HUGEPAGES", edit(EFA, "host.hugepages_2m_total", 5128), EFA, "5128", profiles=("efa",)),
    Case(
        "LIM-EFA-HUGEPAGES",
        edit(EFA, "host.hugepages_2m_total", Absent("unsupported", "pages of 512 MiB")),
        EFA,
        "512 MiB",
        profiles=("efa",),
    ),
]


@pytest.mark.parametrize(
    ("one", "node", "num_nodes", "status"),
    [
        ("LIM-MEMLOCK", edit(IB, "host.memlock_bytes", Absent("not_read")), 1, "unknown"),
        ("LIM-NOFILE", edit(IB, "host.nofile", Absent("not_read")), 1, "unknown"),
        ("LIM-NOFILE", edit(IB, "gpu.gpus", Absent("failed")), 1, "unknown"),
        ("LIM-FILEMAX", edit(IB, "host.file_max", Absent("permission")), 1, "unknown"),
        ("LIM-PORTS-FIREWALL", edit(IB, "host.firewall", Absent("permission")), 2, "unknown"),
        ("LIM-PORTS-FIREWALL", edit(IB, "host.firewall", "drop"), 1, "skipped"),
        ("LIM-EFA-HUGEPAGES", IB, 1, "skipped"),
        ("LIM-EFA-HUGEPAGES", edit(EFA, "host.hugepages_2m_total", Absent("permission")), 1, "unknown"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, num_nodes: int, status: str) -> None:
    assert run(one, node, num_nodes=num_nodes).status == status


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
