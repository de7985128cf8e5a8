"""Checks of IBGDA."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import ibgda
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Setting
from epctl.core.snapshot.rdma import DeviceNode
from epctl.core.snapshot.software import SharedLibrary, VerbsProbe
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(ibgda).values() if isinstance(one, Check)}
V1 = ("deepep-1",)
IB = dist(ib_node(), "deep-ep", "1.2.1")
POD = edit(IB, "host.container", "kubernetes")
DOCKER_CAPS = 0xA80425FB
NO_PEERMEM = edit(edit(IB, "gdr.peermem_loaded", False), "host.kernel", "6.8.0-45-generic")
BLIND = edit(edit(NO_PEERMEM, "active.devices", NOT_PROBED), "active.verbs", NOT_PROBED)


def _params(stream: str, dwords: str) -> Snapshot:
    return edit(IB, "gpu.driver.params", (Setting("EnableStreamMemOPs", stream), Setting("RegistryDwords", dwords)))


def _version(version: str, node: Snapshot = IB) -> Snapshot:
    return edit(node, "software.nvshmem", (SharedLibrary("package", "/w/libnvshmem_host.so.3", "/w/x", version),))


def _uar(number: int) -> Snapshot:
    return edit(POD, "active.verbs", (VerbsProbe("mlx5_0", True, 9, devx_uar_errno=number),))


PLAIN = _params("0", '""')

CASES = [
    Case("IBGDA-REGKEY", edit(PLAIN, "gdr.gdrdrv_loaded", False), IB, "EnableStreamMemOPs is 0", profiles=V1),
    Case("IBGDA-REGKEY", _version("3.3.9", PLAIN), IB, "lacks PeerMappingOverride=1", profiles=V1),
    Case("IBGDA-REGKEY", PLAIN, _params("1", '"RMFoo=0x2; PeerMappingOverride = 0x1"'), "CPU ring", "warn", V1),
    Case(
        "IBGDA-REGKEY",
        _version("3.3.9", _params("1", "PeerMappingOverride=0;")),
        IB,
        "PeerMappingOverride=0",
        profiles=V1,
    ),
    Case(
        "IBGDA-REGKEY", edit(edit(IB, "gpu.driver.params", ()), "software.nvshmem", ()), IB, "not listed", profiles=V1
    ),
    Case(
        "IBGDA-MEMTYPE-SKIP",
        edit(NO_PEERMEM, "active.devices.0.dma_buf", False),
        NO_PEERMEM,
        "CUDA device 0 has no DMA-BUF",
        profiles=V1,
    ),
    Case(
        "IBGDA-MEMTYPE-SKIP",
        edit(NO_PEERMEM, "host.kernel", "4.18.0-513.el8.x86_64"),
        edit(IB, "host.kernel", "4.18.0-513.el8.x86_64"),
        "4.18.0-513",
        profiles=V1,
    ),
    Case(
        "IBGDA-MEMTYPE-SKIP",
        edit(BLIND, "gpu.driver.kernel_flavour", "proprietary"),
        env(BLIND, NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE="hostmem"),
        "proprietary",
        profiles=V1,
    ),
    Case("IBGDA-UNPRIV", edit(POD, "rdma.uverbs", ()), POD, "0 uverbs files", profiles=V1),
    Case("IBGDA-UNPRIV", edit(POD, "rdma.uverbs.*.read_write", False), POD, "8 uverbs files", profiles=V1),
    Case("IBGDA-UNPRIV", edit(POD, "host.cap_effective", DOCKER_CAPS), POD, "without SYS_RAWIO", "warn", V1),
    Case(
        "IBGDA-UNPRIV",
        edit(_uar(0), "active.verbs.0.devx_uar_errno", Absent("permission", "mlx5dv_open_device for DevX: errno 1")),
        _uar(0),
        "mlx5_0: DevX is refused",
        profiles=V1,
    ),
    Case("IBGDA-UNPRIV", _uar(1), edit(_uar(0), "host.cap_effective", DOCKER_CAPS), "errno 1", profiles=V1),
    Case(
        "NVSHMEM-QP-COUNT",
        env(IB, NVSHMEM_IBGDA_NUM_RC_PER_PE="4"),
        env(IB, NVSHMEM_IBGDA_NUM_RC_PER_PE="12"),
        "PE=4",
        "info",
        V1,
    ),
    Case(
        "NVSHMEM-QP-COUNT",
        env(IB, NVSHMEM_IBGDA_NUM_RC_PER_PE="4"),
        env(IB, NVSHMEM_IB_ENABLE_IBGDA="1"),
        "10 channels",
        profiles=("deepep-2",),
    ),
    Case("NVSHMEM-QP-COUNT", env(IB, NVSHMEM_IBGDA_NUM_DCT="2"), IB, "NUM_DCT=2", "warn", V1),
    Case(
        "NVSHMEM-QP-COUNT",
        _version("3.6.5"),
        IB,
        "3.6.5, all ranks in one NVLink domain",
        "",
        V1,
        fix_says="Pin NVSHMEM",
    ),
    Case("NVSHMEM-QP-DEPTH", env(IB, NVSHMEM_QP_DEPTH="256"), IB, "takes 258", profiles=V1),
    Case(
        "NVSHMEM-QP-DEPTH",
        env(IB, SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK="512"),
        env(IB, SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK="511"),
        "queue depth 1024 (default)",
        profiles=V1,
    ),
    Case(
        "NVSHMEM-QP-DEPTH",
        env(IB, VLLM_MOE_DP_CHUNK_SIZE="1024", NVSHMEM_QP_DEPTH="2048"),
        env(IB, VLLM_MOE_DP_CHUNK_SIZE="1024", NVSHMEM_QP_DEPTH="2050"),
        "takes 2050",
        profiles=V1,
    ),
    Case("NVSHMEM-IBGDA-DISABLED-ENV", env(IB, NVSHMEM_DISABLE_IBGDA="1"), IB, "NVSHMEM_DISABLE_IBGDA=1", profiles=V1),
    Case("NVSHMEM-IBGDA-DISABLED-ENV", env(IB, NVSHMEM_IB_ENABLE_IBGDA="0"), IB, "ENABLE_IBGDA=0", profiles=V1),
    Case(
        "NVSHMEM-IBGDA-DISABLED-ENV",
        env(IB, NVSHMEM_REMOTE_TRANSPORT="libfabric"),
        env(IB, NVSHMEM_REMOTE_TRANSPORT="ibrc"),
        "=libfabric",
        "warn",
        V1,
    ),
]


@pytest.mark.parametrize(
    ("one", "node", "num_nodes", "status"),
    [
        ("IBGDA-REGKEY", edit(IB, "gpu.driver.params", Absent("permission")), 1, "unknown"),
        ("IBGDA-REGKEY", edit(PLAIN, "software.nvshmem", NOT_READ), 1, "unknown"),
        ("IBGDA-REGKEY", edit(PLAIN, "gdr.gdrdrv_loaded", NOT_READ), 1, "unknown"),
        ("IBGDA-REGKEY", edit(PLAIN, "rdma.devices.*.driver", "bnxt_re"), 1, "skipped"),
        ("IBGDA-MEMTYPE-SKIP", BLIND, 1, "unknown"),
        ("IBGDA-MEMTYPE-SKIP", edit(BLIND, "gdr.peermem_loaded", Absent("permission")), 1, "unknown"),
        ("IBGDA-UNPRIV", IB, 1, "skipped"),
        ("IBGDA-UNPRIV", edit(POD, "rdma.uverbs", Absent("permission")), 1, "unknown"),
        ("IBGDA-UNPRIV", edit(POD, "rdma.uverbs", (DeviceNode("/dev/infiniband/uverbs0"),)), 1, "unknown"),
        ("IBGDA-UNPRIV", edit(POD, "host.cap_effective", NOT_READ), 1, "unknown"),
        ("NVSHMEM-QP-COUNT", _version("3.6.5"), 2, "passed"),
        ("NVSHMEM-QP-COUNT", edit(IB, "software.nvshmem", NOT_READ), 1, "unknown"),
        ("NVSHMEM-QP-DEPTH", edit(IB, "env.variables", NOT_READ), 1, "unknown"),
        ("NVSHMEM-IBGDA-DISABLED-ENV", edit(IB, "env.variables", NOT_READ), 1, "unknown"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, num_nodes: int, status: str) -> None:
    assert run(one, node, V1, num_nodes).status == status


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("num_nodes", [1, 4])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot], num_nodes: int) -> None:
    for one in sorted(OWN):
        assert run(one, make(), num_nodes=num_nodes).status in ("passed", "skipped"), one


def test_a_healthy_node_of_the_legacy_kernels_is_clean() -> None:
    assert {run(one, POD, V1, num_nodes=2).status for one in OWN} == {"passed"}


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop(), V1).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
