"""Checks of what is near what: GPUs, NICs, CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.checks import affinity
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import VerbsLibrary
from epctl.core.snapshot.software import NetPlugin
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, roce_node

NODE = ib_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == affinity.__name__}
GUEST = edit(NODE, "host.virtualization", "microsoft")


def flat(node: Snapshot, *, numa: bool = True) -> Snapshot:
    """All devices right below host bridges of their own, as Hyper-V shows them."""
    functions = node.pcie.functions
    assert isinstance(functions, tuple)
    node = edit(node, "pcie.functions.*.upstream", ())
    for i in range(len(functions)):
        node = edit(node, f"pcie.functions.{i}.root", f"pci{i:04x}:00")
    return node if numa else edit(node, "pcie.functions.*.numa_node", Absent("unsupported"))


def far(idx: int) -> Snapshot:
    """GPU `idx`'s own NIC is on the other socket."""
    return edit(NODE, "rdma.devices", tuple(card for i, card in enumerate(NODE.rdma.devices) if i != idx))  # type: ignore[arg-type]


ONE_SOCKET = edit(NODE, "host.affinity", "0-55")
OLD_VERBS = (VerbsLibrary("libibverbs", "/usr/lib/libibverbs.so.1", ("IBVERBS_1.0", "IBVERBS_1.1"), ()),)

CASES = [
    Case("PCI-VIRTUAL-TOPO", flat(GUEST), GUEST, "8 GPUs and 8 NICs of a virtual machine, every pair is NODE or SYS"),
    Case("PCI-VIRTUAL-TOPO", flat(GUEST), NODE, "NCCL_TOPO_FILE is not set"),
    Case("PCI-VIRTUAL-TOPO", flat(GUEST, numa=False), GUEST, "no NUMA node and no PCIe bridge"),
    Case("PCI-VIRTUAL-TOPO", flat(GUEST), env(flat(GUEST), NCCL_TOPO_FILE="/opt/ndv5-topo.xml"), "virtual machine"),
    Case("PCI-VIRTUAL-TOPO", flat(GUEST), edit(flat(GUEST), "pcie.default_topology_file", True), "virtual machine"),
    Case(
        "PCI-VIRTUAL-TOPO", edit(NODE, "rdma.devices.2.pci", Absent("not_found")), NODE, "does not resolve for mlx5_2"
    ),
    Case(
        "PCI-VIRTUAL-TOPO",
        flat(GUEST),
        edit(flat(efa_node()), "software.net_plugins", (NetPlugin("libnccl-net-ofi.so", "/opt/amazon/ofi.so"),)),
        "NODE or SYS",
    ),
    Case(
        "PCI-GPU-NIC-FAR",
        far(0),
        NODE,
        "GPU 0: nearest fabric NIC is mlx5_1, mlx5_2, mlx5_3, NODE (sysfs); other GPUs have PIX",
    ),
    Case(
        "PCI-GPU-NIC-FAR",
        edit(NODE, "rdma.devices", NODE.rdma.devices[4:]),  # type: ignore[index]
        flat(NODE),  # no GPU is better off than the others
        "GPU 0-3: nearest fabric NIC is mlx5_4, mlx5_5, mlx5_6, mlx5_7, SYS",
    ),
    Case("CPU-AFFINITY-WRONG", ONE_SOCKET, NODE, "GPU 4-7: local CPUs 56-111 (sysfs), allowed 0-55: none in common"),
    Case("CPU-AFFINITY-WRONG", ONE_SOCKET, env(ONE_SOCKET, NCCL_IGNORE_CPU_AFFINITY="1"), "GPU 4-7"),
    Case("CPU-AFFINITY-WRONG", env(ONE_SOCKET, LOCAL_RANK="6"), env(ONE_SOCKET, LOCAL_RANK="1"), "GPU 6"),
    Case("CPU-AFFINITY-WRONG", ONE_SOCKET, env(ONE_SOCKET, CUDA_VISIBLE_DEVICES="0,GPU-00000002"), "GPU 4-7"),
    Case("CPU-AFFINITY-WRONG", edit(NODE, "host.affinity", "3,60"), NODE, "may use 2 CPUs (3,60) for 8 GPUs"),
    Case("CPU-NUMA-BALANCING", edit(NODE, "host.numa_balancing", 1), NODE, "kernel.numa_balancing = 1"),
    Case(
        "CPU-NUMA-BALANCING",
        edit(NODE, "host.numa_balancing", 2),
        edit(NODE, "host.numa_balancing", Absent("not_found")),
        "= 2",
    ),
    Case("PCI-RELAXED-ORDER-OFF", env(NODE, NCCL_IB_PCI_RELAXED_ORDERING="0"), NODE, "NCCL_IB_PCI_RELAXED_ORDERING=0"),
    Case("PCI-RELAXED-ORDER-OFF", edit(NODE, "rdma.libraries", OLD_VERBS), NODE, "ends at IBVERBS_1.1, IBVERBS_1.8"),
    Case(
        "PCI-RELAXED-ORDER-OFF",
        edit(NODE, "rdma.libraries.0.path", Absent("not_found")),
        env(NODE, NCCL_IB_PCI_RELAXED_ORDERING="2"),
        "libibverbs is not found",
        fix_says="rdma-core",
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


def test_a_guest_with_one_nic_has_nothing_to_choose() -> None:
    node = edit(flat(GUEST), "rdma.devices", GUEST.rdma.devices[:1])  # type: ignore[index]
    assert run("PCI-VIRTUAL-TOPO", node).status == "passed"


def test_facts_that_nobody_read_leave_the_checks_unknown() -> None:
    gone = Absent("not_read")
    assert run("PCI-VIRTUAL-TOPO", edit(flat(GUEST), "pcie.default_topology_file", gone)).status == "unknown"
    assert run("PCI-VIRTUAL-TOPO", edit(NODE, "host.virtualization", gone)).status == "unknown"
    assert run("CPU-AFFINITY-WRONG", edit(NODE, "host.affinity", gone)).status == "unknown"
    assert run("CPU-AFFINITY-WRONG", edit(NODE, "host.affinity", "a few")).status == "unknown"
    assert run("CPU-AFFINITY-WRONG", edit(NODE, "gpu.gpus.1.local_cpus", gone)).status == "unknown"
    assert run("CPU-NUMA-BALANCING", edit(NODE, "host.numa_balancing", Absent("permission"))).status == "unknown"
    assert run("PCI-RELAXED-ORDER-OFF", edit(NODE, "rdma.libraries", ())).status == "unknown"
    hidden = edit(edit(NODE, "pcie.functions", gone), "gpu.topology", gone)
    assert run("PCI-GPU-NIC-FAR", hidden).status == "unknown"


def test_local_cpus_do_not_matter_on_one_numa_node() -> None:
    node = edit(edit(NODE, "host.num_numa_nodes", 1), "gpu.gpus.*.local_cpus", Absent("unsupported"))
    assert run("CPU-AFFINITY-WRONG", node).status == "passed"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,5", {0, 1, 2, 5}), ("", set()), (" 7 ", {7}), ("3-1", None), ("1-", None), ("0-99999", None), ("x", None)],
)
def test_cpu_lists_are_read_as_the_kernel_writes_them(text: str, cpus: set[int] | None) -> None:
    assert affinity.cpu_set(text) == cpus


@given(st.text(max_size=60))
def test_any_text_can_be_taken_for_a_cpu_list(text: str) -> None:
    found = affinity.cpu_set(text)
    assert found is None or all(0 <= cpu < affinity.MAX_CPUS for cpu in found)
