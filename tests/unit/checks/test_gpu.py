"""Checks of the GPUs' presence, modes and peer access."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import gpu
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import GpuArea, Xid
from epctl.core.snapshot.rdma import DeviceNode
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(gpu).values() if isinstance(one, Check)}
IB = ib_node()
GPUS = IB.gpu.gpus
assert isinstance(GPUS, tuple)
SEVEN = edit(IB, "gpu.gpus", GPUS[:7])
POD = edit(SEVEN, "host.container", "kubernetes")
VFIO = edit(SEVEN, "pcie.functions.*.driver", "nvidia")
VFIO = edit(
    VFIO,
    "pcie.functions",
    tuple(
        edit(entry, "driver", "vfio-pci") if entry.pci == GPUS[7].pci else entry  # type: ignore[arg-type]
        for entry in VFIO.pcie.functions  # type: ignore[union-attr]
    ),
)
TWO = edit(IB, "gpu.gpus", GPUS[:2])
SHUT = edit(TWO, "host.nvidia_nodes", tuple(DeviceNode(f"/dev/nvidia{i}", i < 2) for i in range(8)))
"""Two of eight GPUs in a job whose control group closes the others."""
NVML_ONLY = edit(IB, "active.peers", NOT_PROBED)

CASES = [
    Case("NODE-NO-GPU", laptop(), IB, "its library is not installed (12)"),
    Case("NODE-NO-GPU", laptop(), IB, "0 NVIDIA GPUs among 0 functions"),
    Case("GPU-COUNT-SHORT", SEVEN, IB, "not listed: 0000:88:00.0"),
    Case("GPU-COUNT-SHORT", edit(IB, "gpu.gpus", ()), IB, "NVML lists 0 GPUs"),
    Case("GPU-COUNT-SHORT", SEVEN, VFIO, "0000:88:00.0"),
    Case("GPU-COUNT-SHORT", env(TWO, SLURM_GPUS_ON_NODE="8"), env(TWO, SLURM_GPUS_ON_NODE="2"), "NVML lists 2 GPUs"),
    Case("GPU-COUNT-SHORT", SHUT, env(SHUT, SLURM_GPUS_ON_NODE="2"), "may not open /dev/nvidia2", "info"),
    Case("GPU-COUNT-SHORT", edit(SHUT, "gpu.driver.xids", (Xid(79, "0000:88:00", "off"),)), IB, "Xid 79"),
    Case("GPU-COUNT-SHORT", edit(POD, "gpu.gpus", ()), IB, "part of the machine", "info"),
    Case("GPU-COUNT-SHORT", POD, env(POD, NVIDIA_VISIBLE_DEVICES="0,1,2,3,4,5,6"), "part of the machine", "info"),
    Case("GPU-COUNT-SHORT", edit(POD, "gpu.driver.xids", (Xid(79, "0000:88:00", "off"),)), IB, "Xid 79"),
    Case("GPU-COUNT-SHORT", env(IB, LOCAL_WORLD_SIZE="16"), env(IB, LOCAL_WORLD_SIZE="8"), "LOCAL_WORLD_SIZE=16"),
    Case(
        "GPU-COUNT-SHORT",
        env(IB, LOCAL_WORLD_SIZE="16"),
        env(IB, LOCAL_WORLD_SIZE="16", NCCL_MULTI_RANK_GPU_ENABLE="1"),
        "NVML lists 8 GPUs",
    ),
    Case("GPU-DUP-RANK", env(IB, CUDA_VISIBLE_DEVICES="0,1,1"), env(IB, CUDA_VISIBLE_DEVICES="0,1"), "twice"),
    Case(
        "GPU-DUP-RANK",
        env(IB, CUDA_VISIBLE_DEVICES="0,1", LOCAL_WORLD_SIZE="4"),
        env(IB, CUDA_VISIBLE_DEVICES="3", LOCAL_WORLD_SIZE="8"),
        "2 GPUs for LOCAL_WORLD_SIZE=4",
    ),
    Case(
        "GPU-DUP-RANK",
        env(IB, CUDA_VISIBLE_DEVICES="0,1", LOCAL_WORLD_SIZE="4"),
        env(IB, CUDA_VISIBLE_DEVICES="0,1", LOCAL_WORLD_SIZE="4", NCCL_MULTI_RANK_GPU_ENABLE="1"),
        "LOCAL_WORLD_SIZE=4",
    ),
    Case("GPU-PERSISTENCE-OFF", edit(IB, "gpu.gpus.5.persistence", False), IB, "GPU 5"),
    Case("GPU-CC-MODE", edit(IB, "gpu.driver.confidential_computing", True), IB, "is on"),
    Case(
        "GPU-CC-MODE",
        edit(IB, "gpu.driver.confidential_computing", True),
        edit(IB, "gpu.driver.confidential_computing", Absent("unsupported")),
        "is on",
    ),
    Case("GPU-MIG-ON", edit(IB, "gpu.gpus.2.mig_enabled", True), IB, "GPU 2", fix_says="Drain"),
    Case(
        "GPU-MIG-ON",
        edit(IB, "gpu.gpus.2.mig_enabled", True),
        edit(IB, "gpu.gpus.*.mig_enabled", Absent("unsupported")),
        "GPU 2",
    ),
    Case("GPU-P2P-PARTIAL", edit(IB, "active.peers.0.can_access", False), IB, "1 of 56 ordered pairs (CUDA): 0→1"),
    Case("GPU-P2P-PARTIAL", edit(IB, "active.peers.*.can_access", False), IB, "and 44 more"),
    Case("GPU-P2P-PARTIAL", edit(IB, "active.peers.8.copied", False), IB, "1→2", fix_says="ACS"),
    Case(
        "GPU-P2P-PARTIAL",
        edit(NVML_ONLY, "gpu.p2p.7.read", "chipset_not_supported"),
        NVML_ONLY,
        "read: chipset_not_supported",
    ),
    Case(
        "GPU-P2P-PARTIAL",
        edit(NVML_ONLY, "gpu.p2p.7.write", "gpu_not_supported"),
        edit(IB, "gpu.p2p.7.write", "unknown"),
        "1→0",
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("GPU-COUNT-SHORT", "gpu.gpus", Absent("failed"), "unknown"),
        ("GPU-COUNT-SHORT", "pcie.functions", NOT_READ, "unknown"),
        ("GPU-DUP-RANK", "env.variables", NOT_READ, "unknown"),
        ("GPU-PERSISTENCE-OFF", "gpu.gpus.0.persistence", NOT_READ, "unknown"),
        ("GPU-PERSISTENCE-OFF", "gpu.gpus.*.persistence", Absent("unsupported"), "skipped"),
        ("GPU-CC-MODE", "gpu.driver.confidential_computing", NOT_READ, "unknown"),
        ("GPU-MIG-ON", "gpu.gpus.0.mig_enabled", NOT_READ, "unknown"),
        ("GPU-P2P-PARTIAL", "active.peers.0.can_access", NOT_PROBED, "passed"),
        ("GPU-P2P-PARTIAL", "gpu.gpus", GPUS[:1], "skipped"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


def test_mig_is_switched_off_on_the_flagged_gpus_alone() -> None:
    """Without -i it takes the instances of every tenant of the node."""
    found = run("GPU-MIG-ON", edit(edit(IB, "gpu.gpus.2.mig_enabled", True), "gpu.gpus.5.mig_enabled", True))
    assert found.commands == ("sudo nvidia-smi -i 2 -mig 0", "sudo nvidia-smi -i 5 -mig 0")


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace-gpu-vfio-pci"])
def test_gpus_of_virtual_machines_are_not_missed(driver: str) -> None:
    functions = IB.pcie.functions
    assert isinstance(functions, tuple)
    last = next(i for i, entry in enumerate(functions) if entry.pci == "0000:88:00.0")
    assert run("GPU-COUNT-SHORT", edit(SEVEN, f"pcie.functions.{last}.driver", driver)).status == "passed"


def test_peer_access_that_nobody_told_is_unknown() -> None:
    assert run("GPU-P2P-PARTIAL", edit(NVML_ONLY, "gpu.p2p", NOT_READ)).status == "unknown"
    assert run("GPU-P2P-PARTIAL", edit(NVML_ONLY, "gpu.p2p.0.read", NOT_READ)).status == "unknown"


def test_a_machine_that_could_not_be_looked_at_may_have_a_gpu() -> None:
    blind = edit(edit(laptop(), "gpu", GpuArea()), "pcie.functions", NOT_READ)
    assert run("NODE-NO-GPU", blind).status == "unknown"


def test_an_unreadable_environment_narrows_nothing() -> None:
    assert run("GPU-COUNT-SHORT", edit(IB, "env.variables", NOT_READ)).status == "passed"


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


@pytest.mark.parametrize("one", sorted(OWN - {"NODE-NO-GPU"}))
def test_without_a_gpu_it_is_skipped(one: str) -> None:
    assert run(one, laptop()).status == "skipped"
