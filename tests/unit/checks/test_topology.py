"""Checks of rails and NVLink domains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import topology
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Service
from epctl.core.snapshot.rdma import DeviceNode
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(topology).values() if isinstance(one, Check)}
IB = ib_node()
RACK = gb200_node()
CARDS = IB.rdma.devices
GPUS = RACK.gpu.gpus
assert isinstance(CARDS, tuple)
assert isinstance(GPUS, tuple)
FOUR_NICS = edit(IB, "rdma.devices", CARDS[:4])
IMEX = "gpu.driver.services.0.state"
NO_CTL = edit(
    edit(RACK, "gpu.driver.imex_domain", Absent("tool_missing")), "gpu.driver.imex_matrix_bad", Absent("tool_missing")
)
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
NO_CHANNEL = edit(RACK, "host.nvidia_nodes", (DeviceNode("/dev/nvidiactl", True),))
IDLE = edit(NO_CTL, IMEX, "inactive")
"""The service is off, a channel may be used: so looks a host whose IMEX the DRA driver or a prolog of Slurm starts."""
IMEX_DOWN = edit(edit(IDLE, "host.nvidia_nodes", NO_CHANNEL.host.nvidia_nodes), "active.cumem_fabric", NOT_PROBED)
IMEX_DOWN = edit(IMEX_DOWN, "gpu.driver.imex_nodes_file", True)
MASKED = edit(IMEX_DOWN, "gpu.driver.services.0.load", "masked")
CLOSED = edit(RACK, "host.nvidia_nodes", (DeviceNode(CHANNEL, False),))
OLD_NCCL = edit(RACK, "software.nccl_effective", "2.27.5")
HALF = env(IB, CUDA_VISIBLE_DEVICES="0,1,2,3")

CASES = [
    Case("NIC-PER-GPU-RATIO", FOUR_NICS, IB, "4 active fabric ports for 8 GPUs, 1600 Gb/s in all, 25.0 GB/s"),
    Case("NIC-PER-GPU-RATIO", edit(IB, "rdma.devices.7.ports.0.state", "DOWN"), RACK, "7 active fabric ports"),
    Case(
        "NCCL-SUBSET-NICS",
        env(HALF, NCCL_IB_HCA="=mlx5_0,mlx5_1,mlx5_2"),
        env(HALF, NCCL_IB_HCA="=mlx5_0,mlx5_1,mlx5_2,mlx5_3"),
        "GPU 3 is visible, its nearest NIC mlx5_3",
    ),
    Case(
        "NCCL-SUBSET-NICS",
        HALF,
        env(HALF, NCCL_IB_HCA="^mlx5_4,mlx5_5,mlx5_6,mlx5_7"),
        "mlx5_4, mlx5_5, mlx5_6, mlx5_7",
    ),
    Case(
        "NCCL-SUBSET-NICS",
        env(IB, CUDA_VISIBLE_DEVICES="GPU-00000002", NCCL_IB_HCA="mlx5_5"),
        env(IB, CUDA_VISIBLE_DEVICES="GPU-00000002", NCCL_IB_HCA="mlx5_2"),
        "GPU 2 is visible",
    ),
    Case("IMEX-DAEMON-DOWN", IMEX_DOWN, NO_CTL, "nvidia-imex is inactive", num_nodes=4),
    Case("IMEX-DAEMON-DOWN", IMEX_DOWN, edit(RACK, IMEX, "inactive"), "inactive", "warn"),
    Case("IMEX-DAEMON-DOWN", env(IMEX_DOWN, NCCL_MNNVL_ENABLE="0"), RACK, "inactive", "warn", num_nodes=4),
    Case("IMEX-DAEMON-DOWN", edit(RACK, "gpu.driver.imex_domain", "DEGRADED"), RACK, "DEGRADED", num_nodes=2),
    Case("IMEX-DAEMON-DOWN", edit(RACK, "gpu.driver.imex_matrix_bad", ("0-3: I",)), RACK, "0-3: I", num_nodes=2),
    Case("IMEX-DAEMON-DOWN", edit(IMEX_DOWN, IMEX, "failed"), NO_CTL, "failed", num_nodes=4),
    Case("IMEX-DAEMON-DOWN", IDLE, NO_CTL, "channel may be used", "warn", num_nodes=4, fix_says="DRA driver"),
    Case(
        "IMEX-DAEMON-DOWN",
        edit(NO_CTL, IMEX, "failed"),
        edit(edit(IMEX_DOWN, IMEX, "failed"), "gpu.driver.services.0.running", True),
        "failed",
        num_nodes=4,
    ),
    Case(
        "IMEX-DAEMON-DOWN",
        edit(IMEX_DOWN, "gpu.driver.imex_nodes_file", False),
        edit(IMEX_DOWN, "gpu.driver.services.0.running", True),  # in a pod of a ComputeDomain
        "nodes_config.cfg is not known to be there",
        "warn",
        num_nodes=4,
        fix_says="DRA driver",
    ),
    Case("IMEX-CHANNEL-MISSING", NO_CHANNEL, RACK, "has no channel", num_nodes=2),
    Case("IMEX-CHANNEL-MISSING", NO_CHANNEL, RACK, "has no channel", "warn"),  # a job on one node needs none
    Case("IMEX-CHANNEL-MISSING", env(NO_CHANNEL, NCCL_MNNVL_ENABLE="0"), RACK, "no channel", "warn", num_nodes=2),
    Case("IMEX-CHANNEL-MISSING", MASKED, RACK, "has no channel", "warn", num_nodes=2, fix_says="claim a channel"),
    Case("IMEX-CHANNEL-MISSING", CLOSED, RACK, "channel0 may not be read and written", num_nodes=2),
    Case(
        "IMEX-CHANNEL-MISSING",
        CLOSED,
        edit(RACK, "host.nvidia_nodes", (DeviceNode(CHANNEL, False), DeviceNode(CHANNEL[:-1] + "7", True))),
        "channel0",
        num_nodes=2,
    ),
    Case("IMEX-CHANNEL-MISSING", edit(RACK, "host.imex_in_proc_devices", False), RACK, "/proc/devices", num_nodes=2),
    Case("IMEX-CHANNEL-MISSING", edit(RACK, "active.cumem_fabric", 800), RACK, "800", num_nodes=2),
    Case("MNNVL-CLIQUE-SPLIT", edit(RACK, "gpu.gpus.3.fabric_clique", 6), RACK, "GPU 3: cluster"),
    Case("MNNVL-CLIQUE-SPLIT", edit(RACK, "gpu.gpus.3.fabric_cluster_uuid", "ab" * 16), RACK, "abab"),
    Case(
        "MNNVL-CLIQUE-SPLIT",
        edit(RACK, "gpu.gpus.*.fabric_clique", 0),
        edit(RACK, "gpu.gpus.*.fabric_clique", 32766),
        "no partition",
        "warn",
    ),
    Case(
        "MNNVL-CLIQUE-SPLIT",
        edit(RACK, "gpu.gpus.*.fabric_health_mask", 0x20AA),
        edit(RACK, "gpu.gpus.*.fabric_health_mask", 0x10AA),
        "no partition",
        "warn",
    ),
    Case("MNNVL-CRASH-LARGE", OLD_NCCL, RACK, "44 ranks", num_nodes=11),
    Case("MNNVL-CRASH-LARGE", edit(RACK, "software.nccl_effective", "2.30.4"), OLD_NCCL, "up to 39", num_nodes=10),
    Case("MNNVL-CRASH-LARGE", OLD_NCCL, env(OLD_NCCL, NCCL_MNNVL_ENABLE="0"), "NCCL 2.27.5", num_nodes=18),
    Case("MNNVL-CRASH-LARGE", OLD_NCCL, edit(RACK, "software.nccl_effective", "2.26.2"), "72 ranks", num_nodes=18),
]


@pytest.mark.parametrize(
    ("one", "node", "status"),
    [
        ("NIC-PER-GPU-RATIO", edit(IB, "rdma.devices", ()), "skipped"),
        ("NIC-PER-GPU-RATIO", edit(IB, "rdma.devices", NOT_READ), "unknown"),
        ("NIC-PER-GPU-RATIO", edit(IB, "rdma.devices.*.ports.0.state", "DOWN"), "skipped"),
        ("NCCL-SUBSET-NICS", edit(edit(HALF, "pcie.functions", NOT_READ), "gpu.topology", NOT_READ), "unknown"),
        ("NCCL-SUBSET-NICS", env(IB, CUDA_VISIBLE_DEVICES="MIG-1234"), "skipped"),
        ("IMEX-DAEMON-DOWN", edit(IMEX_DOWN, "host.container", "kubernetes"), "unknown"),
        ("IMEX-DAEMON-DOWN", edit(NO_CTL, "gpu.driver.services", ()), "unknown"),
        ("IMEX-DAEMON-DOWN", MASKED, "unknown"),
        ("IMEX-DAEMON-DOWN", edit(NO_CTL, "gpu.driver.imex_domain", Absent("timed_out")), "unknown"),
        ("IMEX-DAEMON-DOWN", edit(RACK, "gpu.gpus.*.fabric_cluster_uuid", NOT_READ), "unknown"),
        ("IMEX-DAEMON-DOWN", edit(RACK, "gpu.gpus.*.fabric_cluster_uuid", "0" * 32), "skipped"),
        ("IMEX-CHANNEL-MISSING", edit(RACK, "host.nvidia_nodes", NOT_READ), "unknown"),
        ("IMEX-CHANNEL-MISSING", edit(RACK, "host.nvidia_nodes", (DeviceNode(CHANNEL, NOT_READ),)), "unknown"),
        ("MNNVL-CLIQUE-SPLIT", edit(RACK, "gpu.gpus.1.fabric_clique", NOT_READ), "unknown"),
        ("MNNVL-CRASH-LARGE", edit(RACK, "software.nccl_effective", NOT_READ), "unknown"),
        ("MNNVL-CRASH-LARGE", edit(RACK, "software.nccl_effective", Absent("not_found")), "skipped"),
    ],
)
def test_facts_that_are_absent(one: str, node: Snapshot, status: str) -> None:
    assert run(one, node).status == status


def test_a_cluster_uuid_on_an_hgx_board_makes_no_rack() -> None:
    node = edit(
        edit(IB, "gpu.gpus.*.fabric_cluster_uuid", "12" * 16),
        "gpu.driver.services",
        (Service("nvidia-imex", "inactive"),),
    )
    assert run("IMEX-DAEMON-DOWN", node, num_nodes=4).status == "skipped"


ENABLE = "sudo systemctl enable --now nvidia-imex"


def test_a_service_that_kubernetes_needs_off_is_never_switched_on() -> None:
    """IMEX of the host and of a ComputeDomain exclude each other: the second one ends with NV_ERR_IN_USE."""
    assert ENABLE in run("IMEX-DAEMON-DOWN", IMEX_DOWN, num_nodes=4).commands
    for node in (IDLE, MASKED, edit(IMEX_DOWN, "gpu.driver.imex_nodes_file", False), edit(IMEX_DOWN, IMEX, "failed")):
        assert ENABLE not in run("IMEX-DAEMON-DOWN", node, num_nodes=4).commands


def test_channels_are_made_by_what_the_driver_still_has() -> None:
    """nvidia-modprobe makes no IMEX channels any more; its -s makes device files of NVSwitches."""
    commands = run("IMEX-CHANNEL-MISSING", NO_CHANNEL, num_nodes=2).commands
    assert any("mknod -m 0666 /dev/nvidia-caps-imex-channels/channel0" in line for line in commands)
    for node in (NO_CHANNEL, CLOSED, MASKED, edit(NO_CHANNEL, "host.container", "kubernetes")):
        assert not any("nvidia-modprobe" in line for line in run("IMEX-CHANNEL-MISSING", node).commands)
    for node in (MASKED, edit(NO_CHANNEL, "host.container", "kubernetes"), CLOSED):
        assert not any("mknod" in line for line in run("IMEX-CHANNEL-MISSING", node).commands)


def test_the_default_partition_is_told_as_such() -> None:
    found = run("MNNVL-CLIQUE-SPLIT", edit(RACK, "gpu.gpus.*.fabric_clique", 32766))
    assert "every rack" in found.evidence[0]


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
