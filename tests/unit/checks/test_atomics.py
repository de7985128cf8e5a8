"""Checks of RDMA atomics."""

from __future__ import annotations

import pytest

from epctl.checks import atomics
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, roce_node

NODE = ib_node()
ROCE = roce_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == atomics.__name__}
PLAIN = ("epctl",)
NONE = edit(NODE, "rdma.devices.6.atomic_cap", "ATOMIC_NONE")
CX8 = edit(NODE, "rdma.devices.*.ca_type", "MT4131")
MIXED = edit(CX8, "rdma.devices.0.ca_type", "MT4129")
DEFAULT_MODE = edit(NODE, "rdma.devices.0.pci_atomic_mode", 0)
OLD = edit(ROCE, "software.nccl_effective", "2.30.7")

V2 = edit(dist(dist(MIXED, "deepinfer-ep", None), "deep-ep", "2.1.0"), "software.deep_ep", ())
"""Up to 2.1 the name of the adapter can be chosen."""
CASES = [
    Case("ATOMIC-CAP-NONE", NONE, NODE, "mlx5_6: ATOMIC_NONE (verbs); asked for by profile deepep-2.5"),
    Case("ATOMIC-CAP-NONE", NONE, NODE, "asked for by profile deepep-1", profiles=("deepep-1",)),
    Case("ATOMIC-CAP-NONE", env(NONE, NCCL_GIN_TYPE="3"), NODE, "NCCL_GIN_TYPE=3"),
    Case("ATOMIC-CAP-NONE", NONE, env(NONE, NCCL_IB_HCA="^mlx5_6"), "mlx5_6"),
    Case("ATOMIC-PCI-MODE", DEFAULT_MODE, NODE, "mlx5_0: PCI_ATOMIC_MODE 0, DeepEP asks for 4 (mlxconfig)"),
    Case("ATOMIC-PCI-MODE", DEFAULT_MODE, NODE, "mlx5_0", profiles=("deepep-2",)),
    Case(
        "ATOMIC-PCI-MODE", DEFAULT_MODE, edit(NODE, "rdma.devices.0.pci_atomic_mode", Absent("unsupported")), "mlx5_0"
    ),
    Case(
        "ATOMIC-SLOW-NIC", MIXED, CX8, "DeepEP asks ibstat for mlx5_0, which is MT4129: 129 queue pairs instead of 65"
    ),
    Case("ATOMIC-SLOW-NIC", MIXED, env(V2, EP_NIC_NAME="mlx5_1"), "mlx5_1 is a ConnectX-8"),
    Case(
        "ATOMIC-SLOW-NIC",
        env(edit(V2, "rdma.devices.*.ca_type", "MT4131"), EP_NIC_NAME="ib0"),
        CX8,
        "asks ibstat for ib0, which this node does not have",
    ),
    Case("ATOMIC-SLOW-NIC", edit(CX8, "rdma.ibstat", Absent("tool_missing")), NODE, "ibstat is not installed"),
    Case(
        "ATOMIC-SLOW-NIC", edit(CX8, "rdma.ibstat", "error"), edit(CX8, "rdma.ibstat", "partial"), "no answer (error)"
    ),
    Case("ATOMIC-LOST-CQE-HANG", OLD, ROCE, "NCCL 2.30.7, GDAKI over RoCE (mlx5_0, mlx5_1"),
    Case(
        "ATOMIC-LOST-CQE-HANG",
        env(OLD, NCCL_GIN_TYPE="3"),
        env(ROCE, NCCL_GIN_TYPE="3"),
        "asked for by NCCL_GIN_TYPE=3",
        profiles=PLAIN,
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


def test_atomics_matter_to_gpu_initiated_rdma_alone() -> None:
    assert run("ATOMIC-CAP-NONE", NONE, PLAIN).status == "skipped"
    assert run("ATOMIC-CAP-NONE", env(NONE, NCCL_GIN_TYPE="2")).status == "skipped"
    assert run("ATOMIC-LOST-CQE-HANG", env(OLD, NCCL_GIN_TYPE="2")).status == "skipped"
    assert run("ATOMIC-LOST-CQE-HANG", edit(OLD, "rdma.devices.*.driver", "bnxt_en")).status == "skipped"
    assert run("ATOMIC-PCI-MODE", DEFAULT_MODE, PLAIN).status == "skipped"


def test_the_fix_of_the_mode_names_the_card_and_nothing_that_is_no_address() -> None:
    found = run("ATOMIC-PCI-MODE", DEFAULT_MODE)
    assert found.commands[1] == "sudo mlxconfig -d 0000:19:00.0 set PCI_ATOMIC_MODE=4"
    assert run("ATOMIC-PCI-MODE", edit(DEFAULT_MODE, "rdma.devices.0.pci", "0000:19:00.0; reboot")).commands == ()


def test_the_fix_of_the_mode_asks_before_it_writes_and_resets_no_card_under_jobs() -> None:
    found = run("ATOMIC-PCI-MODE", DEFAULT_MODE)
    assert "drained" in found.fix
    assert [line for line in found.commands if " -y" in line or "mlxfwreset" in line or "reset" in line] == []


def test_ports_that_are_down_are_not_named() -> None:
    down = edit(OLD, "rdma.devices.1.ports.0.state", "DOWN")
    assert "mlx5_0, mlx5_2" in run("ATOMIC-LOST-CQE-HANG", down).evidence[0]


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("ATOMIC-CAP-NONE", edit(NODE, "rdma.devices.2.atomic_cap", Absent("tool_missing"))),
        ("ATOMIC-PCI-MODE", edit(NODE, "rdma.devices.2.pci_atomic_mode", Absent("permission"))),
        ("ATOMIC-SLOW-NIC", edit(NODE, "rdma.devices.2.ca_type", Absent("tool_missing"))),
        ("ATOMIC-SLOW-NIC", edit(CX8, "rdma.ibstat", Absent("timed_out"))),
        ("ATOMIC-LOST-CQE-HANG", edit(ROCE, "software.nccl_effective", Absent("not_found"))),
        ("ATOMIC-LOST-CQE-HANG", edit(ROCE, "software.nccl_effective", "newest")),
    ],
)
def test_what_nobody_read_leaves_the_check_unknown(name: str, node: Snapshot) -> None:
    assert run(name, node).status == "unknown"
