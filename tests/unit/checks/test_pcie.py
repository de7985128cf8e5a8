"""Checks of PCIe: access control, IOMMU, links."""

from __future__ import annotations

import pytest

from epctl.checks import pcie
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import LogLine
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, gb200_node, ib_node, roce_node

NODE = ib_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == pcie.__name__}
ROOT_PORT, SWITCH_PORT_OF_GPU, SWITCH_PORT_OF_NIC, GPU0, NIC0 = 0, 2, 3, 4, 5
"""Places in the tree of GPU 0."""


def bridge(node: Snapshot, idx: int, *, validate: object = False, redirect: object = False) -> Snapshot:
    node = edit(node, f"pcie.functions.{idx}.acs_source_validation", validate)
    return edit(node, f"pcie.functions.{idx}.acs_request_redirect", redirect)


def nic0(node: Snapshot, **facts: object) -> Snapshot:
    for name, value in facts.items():
        node = edit(node, f"pcie.functions.{NIC0}.{name}", value)
    return node


TRANSLATED = edit(NODE, "pcie.functions.*.iommu_type", "DMA-FQ")
ON_GRACE = edit(bridge(TRANSLATED, ROOT_PORT, validate=True, redirect=True), "host.architecture", "aarch64")
SLOT_X8 = edit(edit(NODE, "gpu.gpus.0.pcie_width", 8), f"pcie.functions.{SWITCH_PORT_OF_GPU}.width_max", 8)
OOM = LogLine("oom", "Out of memory: Killed process 4711 (pingmesh-agent) total-vm:1kB")
OTHER_OOM = LogLine("oom", "Out of memory: Killed process 4711 (python3) total-vm:1kB")

CASES = [
    Case("PCI-ACS-ON", bridge(NODE, SWITCH_PORT_OF_NIC, redirect=True), NODE, "SrcValid- ReqRedir+"),
    Case("PCI-ACS-ON", bridge(NODE, SWITCH_PORT_OF_GPU, validate=True), NODE, "0000:17:00.0, between GPU 0 and mlx5_0"),
    Case("PCI-ACS-ON", bridge(NODE, ROOT_PORT, validate=True, redirect=True), NODE, "at the root above", "warn"),
    Case(
        "PCI-ACS-ON", bridge(NODE, SWITCH_PORT_OF_GPU, validate=True, redirect=Absent("permission")), NODE, "ReqRedir?"
    ),
    Case("PCI-IOMMU-TRANSLATE", TRANSLATED, NODE, "type DMA-FQ, not identity: 0000:18:00.0, 0000:19:00.0", "warn"),
    Case("PCI-IOMMU-TRANSLATE", bridge(TRANSLATED, SWITCH_PORT_OF_GPU, redirect=True), NODE, "ACS redirects", "fail"),
    Case("PCI-IOMMU-TRANSLATE", TRANSLATED, edit(TRANSLATED, "pcie.iommu_groups", 0), "DMA-FQ", "warn"),
    # Root ports redirect what passes them anyway (a warning of PCI-ACS-ON): no worse here.
    Case("PCI-IOMMU-TRANSLATE", bridge(TRANSLATED, ROOT_PORT, redirect=True), ON_GRACE, "DMA-FQ", "warn"),
    Case(
        "PCI-IOMMU-TRANSLATE",
        edit(NODE, f"pcie.functions.{NIC0}.iommu_type", "DMA"),
        edit(NODE, "pcie.functions.*.iommu_type", Absent("permission")),  # iommu=pt on the command line
        "type DMA, not identity: 0000:19:00.0",
    ),
    Case(
        "PCI-FW-VENDOR249",
        edit(NODE, "gpu.driver.kernel_log", (OTHER_OOM, OOM)),
        edit(NODE, "gpu.driver.kernel_log", (OTHER_OOM,)),
        "pingmesh-agent was killed in this boot (kernel log); server Supermicro, BIOS of 08/14/2025",
    ),
    Case(
        "PCI-FW-VENDOR249",
        edit(NODE, "gpu.driver.kernel_log", (LogLine("oom", "oom-kill:constraint=C,task=ib_monitor,pid=1,uid=0"),)),
        NODE,
        "ib_monitor",
    ),
    Case("PCI-LINK-DOWNGRADED", edit(NODE, "gpu.gpus.3.pcie_width", 8), NODE, "GPU 3: x8 of x16 (NVML)"),
    Case("PCI-LINK-DOWNGRADED", edit(SLOT_X8, "gpu.gpus.0.pcie_width", 4), SLOT_X8, "x4 of x16 (NVML) in a slot of 8"),
    Case(
        "PCI-LINK-DOWNGRADED",
        edit(edit(SLOT_X8, "host.virtualization", "kvm"), "gpu.gpus.0.pcie_width", 8),  # the bridge is emulated
        SLOT_X8,
        "GPU 0: x8 of x16 (NVML)",
    ),
    Case(
        "PCI-LINK-DOWNGRADED",
        edit(edit(NODE, "gpu.gpus.3.pcie_generation", 1), "gpu.gpus.3.utilization_percent", 97),
        edit(NODE, "gpu.gpus.*.pcie_generation", 1),  # idle GPUs save power
        "GPU 3: Gen1 of Gen5 while 97 % busy",
        "warn",
    ),
    Case(
        "PCI-LINK-DOWNGRADED", nic0(NODE, speed_gts=16.0), NODE, "mlx5_0 (0000:19:00.0): 16 GT/s x16, adapter and slot"
    ),
    Case("PCI-LINK-DOWNGRADED", nic0(NODE, width=8), NODE, "32 GT/s x8, adapter and slot can do 32 GT/s x16"),
    Case(
        "PCI-LINK-DOWNGRADED",
        edit(nic0(NODE, speed_gts=16.0), f"pcie.functions.{SWITCH_PORT_OF_NIC}.speed_max_gts", 16.0),
        NODE,
        "carries 252 Gb/s, the port runs at 400 Gb/s",
        "warn",
        fix_says="slot of its own generation",
    ),
    Case(
        "PCI-LINK-DOWNGRADED",
        nic0(NODE, width=8),
        nic0(edit(NODE, "host.virtualization", "kvm"), width=1, speed_gts=2.5),  # an emulated bridge
        "mlx5_0",
    ),
    Case(
        "PCI-LINK-DOWNGRADED",
        nic0(NODE, width=8),
        edit(nic0(NODE, width=Absent("unsupported")), "rdma.devices.0.physfn", "0000:19:00.0"),
        "mlx5_0",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_has_a_case() -> None:
    assert {case.id for case in CASES} == IDS


@pytest.mark.parametrize("node", [ib_node(), roce_node(), efa_node(), gb200_node()], ids=["ib", "roce", "efa", "gb200"])
@pytest.mark.parametrize("name", sorted(IDS))
def test_a_healthy_node_stays_clean(name: str, node: Snapshot) -> None:
    assert run(name, node).status in ("passed", "skipped")


def test_acs_that_only_root_may_read_is_unknown() -> None:
    hidden = edit(
        NODE, "pcie.functions.*.acs_source_validation", Absent("permission", "the kernel shows it to root only")
    )
    found = run("PCI-ACS-ON", edit(hidden, "pcie.functions.*.acs_request_redirect", Absent("permission")))
    assert found.status == "unknown"
    assert "run as root" in found.evidence[0]


def test_acs_of_a_guest_is_not_looked_at() -> None:
    node = bridge(edit(NODE, "host.virtualization", "kvm"), SWITCH_PORT_OF_NIC, redirect=True)
    assert run("PCI-ACS-ON", node).status == "skipped"
    assert run("PCI-IOMMU-TRANSLATE", edit(TRANSLATED, "host.virtualization", "kvm")).status == "skipped"


def test_root_ports_of_arm_hosts_redirect_by_nature() -> None:
    assert (
        run("PCI-ACS-ON", bridge(edit(NODE, "host.architecture", "aarch64"), ROOT_PORT, validate=True)).status
        == "passed"
    )


def test_grace_is_not_told_to_pass_through() -> None:
    """Before Linux 6.11 no CUDA context can be made there with iommu.passthrough=1 (NVIDIA/NV-Kernels#22)."""
    assert "Arm" in run("PCI-IOMMU-TRANSLATE", ON_GRACE).evidence[-1]
    assert "passthrough" not in registered()["PCI-IOMMU-TRANSLATE"].fix


def test_acs_is_left_on_where_it_isolates_guests() -> None:
    node = bridge(NODE, SWITCH_PORT_OF_NIC, redirect=True)
    found = run("PCI-ACS-ON", edit(node, f"pcie.functions.{NIC0}.driver", "vfio-pci"))
    assert (found.status, found.commands) == ("failed", ())
    assert "isolates" in found.fix


def test_a_log_without_killed_agents_says_what_was_not_looked_at() -> None:
    assert "nothing was killed" in run("PCI-FW-VENDOR249", NODE).evidence[0]
    found = run("PCI-FW-VENDOR249", edit(NODE, "gpu.driver.kernel_log", (OTHER_OOM,)))
    assert "killed was python3" in found.evidence[0]
    assert "was not looked at" in found.evidence[0]


def test_fix_of_acs_names_the_bridge_and_nothing_that_is_no_address() -> None:
    assert run("PCI-ACS-ON", bridge(NODE, SWITCH_PORT_OF_NIC, redirect=True)).commands == (
        "sudo setpci -s 0000:17:01.0 ECAP_ACS+0x6.w=0000",
    )


def test_gpus_with_nvlink_and_no_nic_have_no_peer_path_over_pcie() -> None:
    node = bridge(edit(NODE, "rdma.devices", ()), SWITCH_PORT_OF_GPU, redirect=True)
    assert run("PCI-ACS-ON", node).status == "skipped"
    assert run("PCI-ACS-ON", edit(node, "gpu.p2p.*.nvlink", "not_supported")).status == "failed"


def test_a_gpu_that_is_not_in_the_tree_leaves_acs_unknown() -> None:
    assert run("PCI-ACS-ON", edit(NODE, "gpu.gpus.0.pci", Absent("failed"))).status == "unknown"
    assert run("PCI-ACS-ON", edit(NODE, "pcie.functions", Absent("permission"))).status == "unknown"


def test_iommu_types_and_links_that_cannot_be_read_are_unknown() -> None:
    node = edit(edit(NODE, "pcie.functions.*.iommu_type", Absent("permission")), "host.cmdline", "ro quiet")
    assert run("PCI-IOMMU-TRANSLATE", node).status == "unknown"
    assert run("PCI-LINK-DOWNGRADED", edit(NODE, "gpu.gpus.1.pcie_width", Absent("failed"))).status == "unknown"
    assert run("PCI-LINK-DOWNGRADED", nic0(NODE, speed_gts=Absent("failed"))).status == "unknown"
    assert run("PCI-LINK-DOWNGRADED", edit(NODE, "rdma.devices.0.pci", Absent("not_found"))).status == "unknown"
    assert run("PCI-FW-VENDOR249", edit(NODE, "gpu.driver.kernel_log", Absent("permission"))).status == "unknown"
