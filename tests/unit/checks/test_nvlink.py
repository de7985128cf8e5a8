"""Checks of NVLink and NVLS."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import nvlink
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import LogLine, Service, Xid
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(nvlink).values() if isinstance(one, Check)}
IB = ib_node()
GPUS = IB.gpu.gpus
assert isinstance(GPUS, tuple)
LINKS = GPUS[0].links
assert isinstance(LINKS, tuple)
FM = "gpu.driver.services.0.state"
FM_DOWN = edit(edit(IB, FM, "inactive"), "gpu.driver.services.0.running", False)
POD = edit(edit(IB, FM, Absent("tool_missing")), "host.container", "kubernetes")
POD_WITHOUT_LINKS = edit(POD, "gpu.gpus.*.links", Absent("unsupported"))
GUEST = edit(FM_DOWN, "host.virtualization", "kvm")
NO_MULTICAST = edit(IB, "active.devices.*.multicast", False)
LINK_DOWN = edit(IB, "gpu.gpus.3.links.7.active", False)
ONE_GPU_GUEST = edit(
    edit(edit(IB, "host.virtualization", "kvm"), "gpu.gpus", GPUS[:1]), "gpu.gpus.*.links.*.active", False
)
PCIE = edit(IB, "gpu.gpus.*.name", "NVIDIA H100 PCIe")
PCIE_BARE = edit(PCIE, "gpu.gpus.*.links.*.active", False)
PCIE_BRIDGED = edit(PCIE_BARE, "gpu.gpus.0.links.0.active", True)
TWO_PCIE = edit(edit(PCIE, "gpu.gpus", PCIE.gpu.gpus[:2]), "gpu.p2p", IB.gpu.p2p[:1])  # type: ignore[index]
EFA = ("efa",)
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 32"

CASES = [
    Case("NVLINK-INACTIVE", LINK_DOWN, IB, "GPU 3: 17 of 18 NVLinks are active (NVML); down: 7"),
    Case("NVLINK-INACTIVE", edit(IB, "gpu.gpus.*.links.*.active", False), ONE_GPU_GUEST, "0 of 18"),
    Case("NVLINK-INACTIVE", edit(IB, "gpu.gpus.0.links", LINKS[:4]), gb200_node(), "4 of 18"),
    Case(
        "NVLINK-INACTIVE",
        edit(edit(IB, "gpu.gpus.*.name", "NVIDIA A100-SXM4-80GB"), "gpu.gpus.0.links", LINKS[:11]),
        IB,
        "11 of 12",
    ),
    Case("NVLINK-INACTIVE", PCIE_BRIDGED, PCIE_BARE, "GPU 1-7: 0 of 1 NVLink is active"),
    Case("NVLINK-PAIRWISE-ONLY", PCIE, TWO_PCIE, "8 of 8 GPUs are PCIe cards"),
    Case(
        "NVLINK-PAIRWISE-ONLY", edit(IB, "gpu.p2p.1.nvlink", "not_supported"), IB, "1 of 56 ordered pairs (NVML): 0→2"
    ),
    Case("NVLINK-PAIRWISE-ONLY", edit(IB, "gpu.p2p.1.nvlink", "not_supported"), IB, "0→2", "warn", profiles=EFA),
    Case("NVLINK-SPEED-UNREADABLE", edit(IB, "gpu.driver.nvidia_smi", Absent("not_found")), IB, "not on PATH", "fail"),
    Case(
        "NVLINK-SPEED-UNREADABLE", edit(IB, "gpu.driver.nvidia_smi", Absent("tool_missing")), IB, "PATH", profiles=EFA
    ),
    Case("NVLINK-SPEED-UNREADABLE", edit(IB, "gpu.nvlink_status_lines", False), IB, "no GB/s line", "fail"),
    Case(
        "NVLINK-RXDET-KMSG",
        edit(IB, "gpu.driver.kernel_log", (LogLine("nvlink_rxdet", "NVRM: post Rx-Det failed"),)),
        edit(IB, "gpu.driver.kernel_log", (LogLine("peermem", "other"),)),
        "post Rx-Det failed",
    ),
    Case("NVLS-BIND-401", FM_DOWN, IB, "nvidia-fabricmanager is inactive"),
    Case(
        "NVLS-BIND-401",
        edit(IB, FM, "inactive"),  # whether it runs in a container of this host could not be seen
        edit(edit(IB, FM, "inactive"), "gpu.driver.services.0.running", True),
        "inactive",
        "warn",
    ),
    Case("NVLS-BIND-401", edit(edit(IB, FM, "inactive"), "active.cu_init", 802), IB, "inactive"),
    Case("NVLS-BIND-401", FM_DOWN, GUEST, "offer NVLink multicast"),
    Case("NVLS-BIND-401", FM_DOWN, edit(NO_MULTICAST, FM, "inactive"), "inactive"),
    Case("NVLS-BIND-401", env(FM_DOWN, NCCL_NVLS_ENABLE="0"), IB, "NCCL_NVLS_ENABLE=0", "warn"),
    Case("NVLS-BIND-401", edit(IB, "gpu.gpus.5.fabric_status", 23), IB, "GPU 5 is not registered"),
    Case("NVLS-BIND-401", edit(gb200_node(), "host.imex_in_proc_devices", False), gb200_node(), "/proc/devices"),
    Case("NVLS-BIND-401", edit(IB, "host.imex_in_proc_devices", False), IB, "/proc/devices", "warn"),
    Case(
        "NVLS-BIND-401",
        FM_DOWN,
        edit(edit(IB, "host.imex_in_proc_devices", False), "gpu.driver.kernel_version", "535.183.01"),
        "inactive",
    ),
    Case("NVLS-BIND-HANG", LINK_DOWN, IB, "GPU 3 has 17 of 18 NVLinks up"),
    Case("NVLS-BIND-HANG", LINK_DOWN, edit(LINK_DOWN, "active.devices", NO_MULTICAST.active.devices), "17 of 18"),
    Case("NVLS-BIND-HANG", env(LINK_DOWN, NCCL_NVLS_ENABLE="0"), IB, "17 of 18", "warn"),
    Case("NVLS-BIND-HANG", edit(IB, "gpu.gpus.0.fabric_health_summary", "unhealthy"), IB, "unhealthy"),
    Case("NVLS-BIND-HANG", edit(IB, "gpu.driver.xids", (Xid(74, "0000:18:00", "x"),)), IB, "Xid 74"),
    Case(
        "NVLS-BIND-HANG",
        edit(IB, "gpu.driver.kernel_log", (LogLine("nvidia", SXID),)),
        edit(IB, "gpu.driver.kernel_log", (LogLine("nvidia", SXID.replace("Fatal", "Non-fatal")),)),
        "SXid",
    ),
]


@pytest.mark.parametrize(
    ("one", "node", "status"),
    [
        ("NVLINK-INACTIVE", edit(IB, "gpu.gpus.0.links", NOT_READ), "unknown"),
        ("NVLINK-INACTIVE", edit(IB, "gpu.gpus.0.links.0.active", NOT_READ), "unknown"),
        ("NVLINK-INACTIVE", edit(IB, "gpu.gpus.*.links", Absent("unsupported")), "skipped"),
        ("NVLINK-INACTIVE", edit(IB, "gpu.gpus.*.links", ()), "skipped"),
        ("NVLINK-PAIRWISE-ONLY", edit(IB, "gpu.p2p", NOT_READ), "unknown"),
        ("NVLINK-PAIRWISE-ONLY", edit(IB, "gpu.p2p.0.nvlink", NOT_READ), "unknown"),
        ("NVLINK-SPEED-UNREADABLE", edit(IB, "gpu.nvlink_status_lines", Absent("timed_out")), "unknown"),
        ("NVLINK-SPEED-UNREADABLE", edit(ONE_GPU_GUEST, "gpu.nvlink_status_lines", False), "skipped"),
        ("NVLINK-SPEED-UNREADABLE", edit(PCIE_BARE, "gpu.nvlink_status_lines", Absent("unsupported")), "skipped"),
        (
            "NVLINK-SPEED-UNREADABLE",
            edit(edit(IB, "gpu.gpus.*.links", Absent("unsupported")), "gpu.nvlink_status_lines", Absent("unsupported")),
            "skipped",
        ),
        (
            "NVLINK-SPEED-UNREADABLE",
            edit(edit(IB, "gpu.gpus.*.links.*.active", NOT_READ), "gpu.nvlink_status_lines", False),
            "failed",
        ),
        ("NVLINK-RXDET-KMSG", edit(IB, "gpu.driver.kernel_log", Absent("permission")), "unknown"),
        ("NVLS-BIND-401", edit(FM_DOWN, "active.devices", NOT_PROBED), "unknown"),
        ("NVLS-BIND-401", edit(IB, "active.devices", NOT_PROBED), "passed"),
        ("NVLS-BIND-401", edit(IB, "active.devices.*.multicast", NOT_PROBED), "passed"),
        ("NVLS-BIND-401", edit(IB, FM, Absent("tool_missing")), "unknown"),
        ("NVLS-BIND-401", edit(IB, "gpu.driver.services", (Service("nvidia-imex", "active"),)), "unknown"),
        ("NVLS-BIND-HANG", edit(LINK_DOWN, "active.devices", NOT_PROBED), "unknown"),
        ("NVLS-BIND-HANG", edit(LINK_DOWN, "gpu.gpus", GPUS[:2]), "skipped"),
        ("NVLS-BIND-HANG", edit(IB, "gpu.gpus.2.links", NOT_READ), "unknown"),
        ("NVLS-BIND-HANG", edit(IB, "gpu.gpus.*.links", Absent("unsupported")), "skipped"),
        ("NVLS-BIND-401", edit(POD, "gpu.gpus.*.fabric_state", NOT_READ), "unknown"),
        ("NVLS-BIND-401", edit(POD_WITHOUT_LINKS, "gpu.gpus.*.fabric_state", Absent("unsupported")), "skipped"),
        ("NVLS-BIND-401", POD, "passed"),
    ],
)
def test_facts_that_are_absent(one: str, node: Snapshot, status: str) -> None:
    assert run(one, node).status == status


def test_passing_multicast_says_that_the_bind_was_not_tried() -> None:
    for one in ("NVLS-BIND-401", "NVLS-BIND-HANG"):
        assert "not tried" in run(one, IB).evidence[0]
    assert "all GPUs are registered" in run("NVLS-BIND-401", IB).evidence[0]
    assert "144 NVLinks of 8 GPUs are up" in run("NVLS-BIND-HANG", IB).evidence[0]
    no_log = edit(IB, "gpu.driver.xids", Absent("permission"))
    assert "kernel log not readable" in run("NVLS-BIND-HANG", no_log).evidence[0]


def test_an_unreadable_environment_lowers_nothing() -> None:
    assert run("NVLS-BIND-401", edit(FM_DOWN, "env.variables", NOT_READ)).severity == "fail"


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
