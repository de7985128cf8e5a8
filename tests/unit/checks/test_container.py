"""Checks of containers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from epctl.checks import container
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import DeviceNode
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, gpu, ib_node, laptop, roce_node

OWN = {one.id for one in vars(container).values() if isinstance(one, Check)}
IB, RACK = ib_node(), edit(gb200_node(), "host.container", "kubernetes")
DOCKER_CAPS = 0xA80425FB
POD = edit(IB, "host.container", "kubernetes")
LOST = edit(POD, "gpu.driver.nvml_code", 999)
SHUT = edit(LOST, "host.nvidia_nodes", (DeviceNode("/dev/nvidiactl", False), DeviceNode("/dev/nvidia0", False)))
LOCKED = edit(edit(POD, "host.cap_effective", DOCKER_CAPS), "host.memlock_bytes", 65536)
ONE_GPU = edit(edit(POD, "gpu.gpus", (gpu(0),)), "host.private_namespaces", ("ipc", "pid"))
TWO_GPUS = edit(edit(POD, "gpu.gpus", (gpu(0), gpu(1))), "host.private_namespaces", ("pid",))
PCIE = edit(IB, "gpu.gpus.*.name", "NVIDIA H100 PCIe")
TRAY = edit(edit(RACK, "host.cap_effective", DOCKER_CAPS), "active.cumem_fabric", NOT_PROBED)
NO_CHANNEL = edit(TRAY, "host.nvidia_nodes", (DeviceNode("/dev/nvidiactl", True),))
CLOSED_CHANNEL = edit(TRAY, "host.nvidia_nodes", (DeviceNode("/dev/nvidia-caps-imex-channels/channel0", False),))
ALL_VFIO = tuple(
    msgspec.structs.replace(entry, driver="vfio-pci") if entry.pci != "0000:18:00.0" else entry
    for entry in IB.pcie.functions  # type: ignore[union-attr]
)
CVD = "CUDA_VISIBLE_DEVICES"

CASES = [
    Case("CTR-NVML-UNKNOWN", LOST, POD, "returns 999"),
    Case("CTR-NVML-UNKNOWN", SHUT, POD, "/dev/nvidiactl, /dev/nvidia0"),
    Case("CTR-NVML-UNKNOWN", edit(IB, "host.dev_char_nvidia", False), IB, "/dev/char", "info"),
    Case("CTR-NO-INFINIBAND", edit(POD, "rdma.uverbs", ()), POD, "no /dev/infiniband/uverbs"),
    Case(
        "CTR-NO-INFINIBAND",
        edit(POD, "rdma.uverbs", (DeviceNode("/dev/infiniband/rdma_cm", True),)),
        IB,
        "8 RDMA devices",
    ),
    Case(
        "CTR-NO-INFINIBAND",
        edit(IB, "rdma.uverbs.*.read_write", False),
        IB,
        "/dev/infiniband/uverbs0",
        fix_says="access",
    ),
    Case("CTR-NO-INFINIBAND", edit(POD, "rdma.uverbs.3.read_write", False), POD, "7 usable", "info"),
    Case("CTR-NO-IPCLOCK", LOCKED, edit(LOCKED, "host.memlock_bytes", -1), "0xa80425fb without IPC_LOCK"),
    Case(
        "CTR-NO-IPCLOCK",
        edit(LOCKED, "host.memlock_bytes", 1 << 30),
        edit(LOCKED, "host.cap_effective", 1 << 14),
        "1 GiB",
        "warn",
    ),
    Case("CTR-IPC-NS", ONE_GPU, edit(ONE_GPU, "host.private_namespaces", ()), "ipc, pid"),
    Case("CTR-IPC-NS", TWO_GPUS, edit(POD, "host.private_namespaces", ("ipc", "pid")), "2 of 8", "info"),
    Case("CTR-GPU-ISOLATED", ONE_GPU, POD, "NVML lists 1 GPU, the PCI bus has 8"),
    Case("CTR-GPU-ISOLATED", TWO_GPUS, edit(ONE_GPU, "pcie.functions", ALL_VFIO), "NVML lists 2", "info"),
    Case("CTR-CVD-PER-RANK", env(IB, **{CVD: "3", "LOCAL_WORLD_SIZE": "8"}), env(IB, **{CVD: "3"}), "8 ranks"),
    Case("CTR-CVD-PER-RANK", env(IB, **{CVD: "0", "SLURM_NTASKS_PER_NODE": "8(x2)"}), IB, "8 ranks"),
    Case("CTR-CVD-PER-RANK", env(IB, **{CVD: "GPU-1a,GPU-2b"}), env(IB, **{CVD: "0,1,2,3,"}), "'GPU-1a'"),
    Case("CTR-CVD-PER-RANK", env(PCIE, **{CVD: "MIG-1"}), PCIE, "'MIG-1'", "fail"),
    Case("CTR-CVD-PER-RANK", env(IB, **{CVD: "0,1,8"}), env(IB, **{CVD: "0, 1, 7"}), "ends the list at 8"),
    Case("CTR-CVD-PER-RANK", env(IB, **{CVD: ""}), IB, "hides every GPU", "fail"),
    Case("CTR-CVD-PER-RANK", env(IB, **{CVD: "-1"}), IB, "hides every GPU", "fail"),
    Case("CTR-UNPRIV-GB200", NO_CHANNEL, TRAY, "channel"),
    Case(
        "CTR-UNPRIV-GB200",
        edit(NO_CHANNEL, "active.cumem_fabric", 800),
        edit(NO_CHANNEL, "active.cumem_fabric", 0),
        "800",
    ),
    Case("CTR-UNPRIV-GB200", CLOSED_CHANNEL, edit(NO_CHANNEL, "host.cap_effective", 0x1FFFFFFFFFF), "read and written"),
]


@pytest.mark.parametrize(
    ("one", "node", "status"),
    [
        ("CTR-NVML-UNKNOWN", edit(IB, "host.container", Absent("failed")), "unknown"),
        ("CTR-NVML-UNKNOWN", edit(POD, "gpu.driver.nvml_code", Absent("timed_out")), "unknown"),
        ("CTR-NVML-UNKNOWN", edit(IB, "host.dev_char_nvidia", Absent("permission")), "unknown"),
        ("CTR-NVML-UNKNOWN", edit(IB, "host.dev_char_nvidia", Absent("not_found")), "skipped"),
        ("CTR-NO-INFINIBAND", edit(IB, "rdma.uverbs", Absent("permission")), "unknown"),
        ("CTR-NO-INFINIBAND", edit(IB, "rdma.uverbs.*.read_write", Absent("failed")), "unknown"),
        ("CTR-NO-INFINIBAND", edit(IB, "rdma.devices", ()), "skipped"),
        ("CTR-NO-INFINIBAND", edit(efa_node(), "rdma.uverbs", ()), "skipped"),
        ("CTR-NO-IPCLOCK", edit(LOCKED, "host.container", "none"), "skipped"),
        ("CTR-NO-IPCLOCK", edit(LOCKED, "host.cap_effective", Absent("not_read")), "unknown"),
        ("CTR-IPC-NS", edit(ONE_GPU, "host.private_namespaces", NOT_READ), "unknown"),
        ("CTR-IPC-NS", edit(ONE_GPU, "host.container", "none"), "skipped"),
        ("CTR-GPU-ISOLATED", edit(ONE_GPU, "pcie.functions", Absent("permission")), "unknown"),
        ("CTR-CVD-PER-RANK", edit(IB, "env.variables", NOT_READ), "unknown"),
        ("CTR-UNPRIV-GB200", POD, "skipped"),
        ("CTR-UNPRIV-GB200", gb200_node(), "skipped"),
        ("CTR-UNPRIV-GB200", edit(CLOSED_CHANNEL, "host.nvidia_nodes.0.read_write", Absent("failed")), "unknown"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, status: str) -> None:
    assert run(one, node).status == status


def test_other_libraries_do_not_read_the_device_list() -> None:
    assert run("CTR-CVD-PER-RANK", env(IB, **{CVD: "GPU-1a"}), ("nccl-ep",)).status == "skipped"


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("kind", ["none", "kubernetes"])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot], kind: str) -> None:
    node = edit(edit(make(), "host.container", kind), "host.private_namespaces", ("ipc", "pid"))
    for one in sorted(OWN):
        assert run(one, node).status in ("passed", "skipped"), one


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, edit(laptop(), "host.container", "docker")).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
