"""Checks of the NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import fabric
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Service
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(fabric).values() if isinstance(one, Check)}
IB = ib_node()
FM = "gpu.driver.services.0.state"
FM_NAME = "nvidia-fabricmanager"
FM_DOWN = edit(IB, FM, "inactive")
NOT_READY = edit(FM_DOWN, "active.cu_init", 802)
WAITING = edit(IB, "gpu.gpus.*.fabric_state", "in_progress")
GUEST = edit(FM_DOWN, "host.virtualization", "kvm")
GUEST_WITHOUT_REGISTRATION = edit(GUEST, "gpu.gpus.*.fabric_state", "not_supported")
POD = edit(edit(IB, FM, Absent("tool_missing")), "host.container", "kubernetes")
B200 = edit(edit(IB, "gpu.gpus.*.name", "NVIDIA B200"), "gpu.gpus.*.architecture", 10)
B200_WAITING = edit(B200, "gpu.gpus.*.fabric_state", "in_progress")

CASES = [
    Case("FM-NOT-RUNNING", FM_DOWN, IB, "nvidia-fabricmanager is inactive", "warn", fix_says="driver container"),
    Case("FM-NOT-RUNNING", edit(FM_DOWN, "active.cu_init", NOT_PROBED), IB, "set up all the same", "warn"),
    Case(
        "FM-NOT-RUNNING",
        edit(WAITING, "gpu.driver.services.0", Service(FM_NAME, "inactive", "loaded", running=False)),
        edit(WAITING, "gpu.driver.services.0", Service(FM_NAME, "inactive", "not-found", running=True)),  # GPU Operator
        "no process of it runs",
    ),
    Case(
        "FM-NOT-RUNNING",
        edit(FM_DOWN, "gpu.driver.services.0.running", False),  # died after it had set the fabric up
        edit(FM_DOWN, "gpu.driver.services.0.running", True),
        "no process of it runs",
        "warn",
    ),
    Case("FM-NOT-RUNNING", NOT_READY, GUEST, "802"),
    Case("FM-NOT-RUNNING", edit(NOT_READY, FM, "failed"), GUEST_WITHOUT_REGISTRATION, "failed"),
    Case("FM-NOT-RUNNING", edit(WAITING, FM, "inactive"), POD, "inactive"),
    Case("FM-NOT-RUNNING", edit(GUEST, "gpu.gpus.0.fabric_state", "in_progress"), gb200_node(), "inactive"),
    Case("FM-NOT-RUNNING", edit(POD, "active.cu_init", 802), IB, "host", fix_says="where it runs"),
    Case("FM-NOT-RUNNING", edit(edit(IB, FM, Absent("tool_missing")), "active.cu_init", 802), IB, "tool missing"),
    Case("FM-VERSION-SKEW", edit(IB, "gpu.driver.fabric_manager_version", "580.126.09"), IB, "580.126.09"),
    Case(
        "FM-NVLSM-MISSING",
        B200_WAITING,
        edit(B200_WAITING, "gpu.driver.services.3.running", True),
        "no nvlsm",
        fix_says="drain",
    ),
    Case(
        "FM-NVLSM-MISSING",
        B200_WAITING,
        edit(B200_WAITING, "gpu.driver.nvlsm", "/opt/nvidia/nvlsm/sbin/nvlsm"),
        "no nvlsm",
    ),
    Case("FM-NVLSM-MISSING", edit(B200, FM, "failed"), B200, "nvidia-fabricmanager: failed"),
    Case(
        "FM-NVLSM-MISSING", B200_WAITING, edit(B200_WAITING, "gpu.driver.services.3.state", "active"), "not registered"
    ),
    Case(
        "FABRIC-STATE-INCOMPLETE",
        edit(IB, "gpu.gpus.4.fabric_state", "in_progress"),
        IB,
        "GPU 4: fabric state in_progress",
    ),
    Case("FABRIC-STATE-INCOMPLETE", edit(IB, "gpu.gpus.4.fabric_state", "not_started"), GUEST, "not_started"),
    Case("FABRIC-STATE-INCOMPLETE", edit(WAITING, "host.uptime_s", 90), IB, "90 s after boot", "warn"),
    Case("FABRIC-STATE-INCOMPLETE", edit(WAITING, "host.uptime_s", 900), IB, "in_progress"),
    Case("FABRIC-STATE-INCOMPLETE", edit(IB, "gpu.gpus.1.fabric_status", 23), IB, "status 23 (insufficient resources)"),
    Case("FABRIC-STATE-INCOMPLETE", edit(IB, "active.cu_init", 802), IB, "802"),
    Case(
        "FABRIC-UNHEALTHY",
        edit(IB, "gpu.gpus.2.fabric_health_summary", "unhealthy"),
        IB,
        "GPU 2: fabric health unhealthy",
    ),
    Case("FABRIC-UNHEALTHY", edit(IB, "gpu.gpus.2.fabric_health_summary", "limited_capacity"), IB, "limited_capacity"),
    Case(
        "FABRIC-UNHEALTHY",
        edit(gb200_node(), "gpu.gpus.2.fabric_health_mask", 0b10011010),
        edit(gb200_node(), "gpu.gpus.*.fabric_health_mask", 0xAA),
        "route unhealthy",
    ),
    Case(
        "FABRIC-UNHEALTHY",
        edit(IB, "gpu.gpus.2.fabric_health_mask", 0x5AA),
        edit(IB, "gpu.gpus.2.fabric_health_mask", 0x1AA),
        "too few NVLinks",
    ),
]


@pytest.mark.parametrize(
    ("one", "node", "status"),
    [
        ("FM-NOT-RUNNING", edit(IB, FM, Absent("tool_missing")), "unknown"),
        ("FM-NOT-RUNNING", edit(POD, "gpu.gpus.*.fabric_state", "in_progress"), "unknown"),
        ("FM-VERSION-SKEW", edit(IB, "gpu.driver.fabric_manager_version", NOT_READ), "unknown"),
        ("FM-VERSION-SKEW", edit(IB, "gpu.driver.kernel_version", NOT_READ), "unknown"),
        ("FM-VERSION-SKEW", edit(IB, "gpu.driver.fabric_manager_version", Absent("not_found")), "skipped"),
        ("FM-VERSION-SKEW", edit(GUEST, "gpu.driver.fabric_manager_version", "570.1.2"), "skipped"),
        ("FM-NVLSM-MISSING", edit(B200_WAITING, "gpu.driver.nvlsm", NOT_READ), "unknown"),
        ("FM-NVLSM-MISSING", edit(IB, "gpu.gpus.0.architecture", NOT_READ), "unknown"),
        ("FM-NVLSM-MISSING", gb200_node(), "skipped"),
        ("FABRIC-STATE-INCOMPLETE", edit(IB, "gpu.gpus.0.fabric_state", NOT_READ), "unknown"),
        ("FABRIC-STATE-INCOMPLETE", edit(IB, "gpu.gpus.0.fabric_status", NOT_READ), "unknown"),
        ("FABRIC-STATE-INCOMPLETE", edit(IB, "gpu.gpus.*.fabric_state", Absent("unsupported")), "skipped"),
        ("FABRIC-UNHEALTHY", WAITING, "skipped"),
        ("FABRIC-UNHEALTHY", edit(IB, "gpu.gpus.*.fabric_health_summary", "not_supported"), "skipped"),
        (
            "FABRIC-UNHEALTHY",
            edit(edit(IB, "gpu.gpus.0.fabric_health_summary", NOT_READ), "gpu.gpus.0.fabric_health_mask", NOT_READ),
            "unknown",
        ),
    ],
)
def test_facts_that_are_absent(one: str, node: Snapshot, status: str) -> None:
    assert run(one, node).status == status


def test_no_command_restarts_the_fabric_manager_under_jobs() -> None:
    """A restart ends every CUDA job of the machine (ABORT_CUDA_JOBS_ON_FM_EXIT)."""
    lines = [line for one in OWN for line in registered()[one].commands]
    assert not any("restart" in line for line in (*lines, *run("FM-NVLSM-MISSING", B200_WAITING).commands))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("healthy", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("one", sorted(OWN))
def test_healthy_nodes_are_clean(one: str, healthy: Callable[[], Snapshot], num_nodes: int) -> None:
    assert run(one, healthy(), num_nodes=num_nodes).status in ("passed", "skipped")


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_a_gpu_it_is_skipped(one: str) -> None:
    assert run(one, laptop()).status == "skipped"
