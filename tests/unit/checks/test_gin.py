"""Checks of GPU-initiated networking."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import LogLine, Setting
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("gin")
IB = ib_node()
NO_NIC = edit(IB, "rdma.devices", ())
NO_PEERMEM = edit(edit(IB, "gdr.peermem_loaded", False), "gdr.peermem_version", Absent("not_found"))
NO_GDR = edit(NO_PEERMEM, "active.verbs.*.dmabuf_errno", 95)
CONTAINER = edit(IB, "host.container", "docker")
DUAL = edit(edit(IB, "rdma.devices.1.sys_image_guid", "946d:ae03:00aa:0000"), "software.nccl_effective", "2.29.7")
V2 = dist(dist(IB, "deepinfer-ep", None), "deep-ep", "2.1.0")
OTHER_CARDS = edit(IB, "rdma.devices.*.driver", "bnxt_re")


def _uar(number: int | Absent) -> Snapshot:
    return edit(CONTAINER, "active.verbs.*.devx_uar_errno", number)


CASES = [
    Case("GIN-TYPE-NONE", edit(IB, "active.devices.3.gdr_with_vmm", False), IB, "GPUDirect for cuMem memory: closed"),
    Case("GIN-TYPE-NONE", edit(IB, "active.devices.3.gdr_with_vmm", False), IB, "other gates: NCCL open (NCCL 2.32.3)"),
    Case("GIN-TYPE-NONE", env(IB, NCCL_IB_DISABLE="1"), IB, "IB enabled: closed", fix_says="Unset NCCL_IB_DISABLE"),
    Case("GIN-TYPE-NONE", env(IB, NCCL_GIN_ENABLE="0"), IB, "GIN enabled: closed", fix_says="Unset NCCL_GIN_ENABLE"),
    Case("GIN-TYPE-NONE", env(IB, NCCL_GIN_TYPE="0"), env(IB, NCCL_GIN_TYPE="3"), "GIN enabled: closed"),
    Case("GIN-TYPE-NONE", env(IB, NCCL_CUMEM_ENABLE="0"), IB, "cuMem: closed"),
    Case("GIN-TYPE-NONE", NO_NIC, IB, "there is no active RDMA port", fix_says="EP_DISABLE_GIN=1"),
    Case("GIN-TYPE-NONE", edit(IB, "rdma.devices.*.ports.*.state", "DOWN"), IB, "no active RDMA port"),
    Case("GIN-TYPE-NONE", env(IB, NCCL_IB_HCA="=mlx5_9"), env(IB, NCCL_IB_HCA="mlx5"), "NCCL_IB_HCA==mlx5_9 lets"),
    Case("GIN-TYPE-NONE", env(IB, NCCL_GIN_TYPE="5"), IB, "works with efa, active ports have mlx5_core"),
    Case("GIN-TYPE-NONE", edit(efa_node(), "software.net_plugins", ()), efa_node(), "aws-ofi-nccl", profiles=("efa",)),
    Case("GIN-TYPE-NONE", NO_GDR, NO_PEERMEM, "refused by every adapter (errno 95)"),
    Case(
        "GIN-TYPE-NONE",
        env(NO_PEERMEM, NCCL_DMABUF_ENABLE="0"),
        env(IB, NCCL_DMABUF_ENABLE="0"),
        "GPUDirect path: closed, no nvidia_peermem (sysfs), and DMA-BUF is switched off",
    ),
    Case("GIN-TYPE-NONE", edit(IB, "software.nccl_effective", "2.27.3"), IB, "NCCL 2.27.3 has no GIN, 2.28.7 has"),
    Case("GIN-TYPE-NONE", edit(IB, "gpu.gpus.0.compute_capability", "6.0"), IB, "GPU 0 has 6.0"),
    Case("GIN-TYPE-NONE", env(NO_NIC, EP_DISABLE_GIN="1"), IB, "network adapter: closed", "info"),
    Case("GIN-TYPE-NONE", dist(NO_NIC, "deepinfer-ep", None), IB, "network adapter: closed", "info"),
    Case("GIN-TYPE-NONE", env(NO_NIC, EP_DISABLE_GIN="1"), IB, "network adapter: closed", num_nodes=2),
    Case("GIN-RAIL-ONLY", env(IB, NCCL_CROSS_NIC="0"), IB, "hybrid mode works", "info", num_nodes=2),
    Case(
        "GIN-RAIL-ONLY",
        env(IB, NCCL_CROSS_NIC="0", VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE="0"),
        env(IB, NCCL_CROSS_NIC="2"),
        "direct mode is asked for",
        num_nodes=2,
    ),
    Case(
        "GIN-RAIL-ONLY",
        env(IB, NCCL_CROSS_NIC="0", NCCL_GIN_CROSS_NIC="1"),
        env(IB, NCCL_CROSS_NIC="1", NCCL_GIN_CROSS_NIC="1"),
        "is read by DeepEP alone",
        "warn",
        num_nodes=2,
    ),
    Case(
        "GIN-MIXED-RANKS",
        edit(IB, "active.devices.5.gdr_with_vmm", False),
        IB,
        "CUDA device 5: GPUDirect for cuMem False",
    ),
    Case("GIN-MIXED-RANKS", edit(IB, "active.devices.6.dma_buf", False), IB, "CUDA device 6"),
    Case(
        "GIN-NIC-FUSED-OLD",
        DUAL,
        edit(DUAL, "software.nccl_effective", "2.30.4"),
        "mlx5_0 and mlx5_1 are ports of one card",
    ),
    Case("GIN-NIC-FUSED-OLD", DUAL, env(DUAL, NCCL_IB_MERGE_NICS="0"), "NCCL 2.29.7 merges them"),
    Case("GIN-NIC-FUSED-OLD", DUAL, edit(IB, "software.nccl_effective", "2.29.7"), "one card"),
    Case("GIN-GDAKI-DOCA21", edit(CONTAINER, "rdma.uverbs.2.read_write", False), CONTAINER, "/dev/infiniband/uverbs2"),
    Case("GIN-GDAKI-DOCA21", edit(CONTAINER, "rdma.uverbs", ()), CONTAINER, "holds no uverbs device"),
    Case("GIN-GDAKI-DOCA21", edit(CONTAINER, "host.cap_effective", 0xA80425FB), CONTAINER, "lacks IPC_LOCK", "warn"),
    # What was measured counts more than a capability that may or may not matter.
    Case(
        "GIN-GDAKI-DOCA21",
        _uar(1),
        edit(_uar(0), "host.cap_effective", 0xA80425FB),
        "mlx5_3: mlx5dv_devx_alloc_uar gives errno 1",
    ),
    Case("GIN-GDAKI-DOCA21", _uar(Absent("permission", "errno 13")), _uar(NOT_PROBED), "mlx5_0: DevX is refused"),
    Case(
        "GIN-QP-EXHAUST",
        edit(IB, "rdma.devices.2.max_qp", 1000),
        IB,
        "mlx5_2: direct mode",
        num_nodes=8,
        severity="fail",
    ),
    Case(
        "GIN-QP-EXHAUST",
        edit(IB, "rdma.devices.*.max_qp", 2000),
        IB,
        "direct mode, 17 contexts to 64 ranks take 1105",
        num_nodes=8,
    ),
    Case(
        "GIN-QP-EXHAUST",
        edit(edit(IB, "rdma.devices.*.max_qp", 8000), "software.nccl_effective", "2.30.4"),
        edit(edit(IB, "rdma.devices.*.max_qp", 8000), "software.nccl_effective", "2.30.7"),
        "hybrid mode, 129 contexts to 64 ranks take 8385",
        num_nodes=8,
        severity="fail",
        profiles=("deepep-2",),
    ),
    Case(
        "GIN-QP-EXHAUST",
        edit(IB, "gpu.driver.kernel_log", (LogLine("mlx5_resource", "mlx5_core 0000:19:00.0: CREATE_QP failed"),)),
        IB,
        "kernel log: mlx5_core",
    ),
    Case("GIN-25-GDAKI-ONLY", OTHER_CARDS, IB, "active RDMA ports have driver bnxt_re"),
    Case(
        "GIN-25-GDAKI-ONLY",
        NO_NIC,
        env(NO_NIC, EP_DISABLE_GIN="1"),
        "no RDMA port is active",
        fix_says="EP_DISABLE_GIN=1",
    ),
    Case("GIN-25-GDAKI-ONLY", env(IB, NCCL_GIN_TYPE="2"), env(IB, NCCL_GIN_TYPE="3"), "NCCL_GIN_TYPE=2"),
    Case("GIN-25-GDAKI-ONLY", dist(efa_node(), "deepinfer-ep", "2.5.0"), IB, "driver efa, GDAKI needs mlx5_core"),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("GIN-TYPE-NONE", "active.devices", NOT_PROBED, "unknown"),
        ("GIN-TYPE-NONE", "active.devices.0.gdr_with_vmm", NOT_PROBED, "unknown"),
        ("GIN-TYPE-NONE", "rdma.devices", NOT_READ, "unknown"),
        ("GIN-TYPE-NONE", "rdma.devices.*.ports.*.state", NOT_READ, "unknown"),
        ("GIN-TYPE-NONE", "env.variables", NOT_READ, "unknown"),
        ("GIN-TYPE-NONE", "env.nccl_conf", Absent("permission"), "unknown"),
        ("GIN-TYPE-NONE", "gdr.peermem_loaded", NOT_READ, "passed"),
        ("GIN-MIXED-RANKS", "active.devices", NOT_PROBED, "unknown"),
        ("GIN-NIC-FUSED-OLD", "software.nccl_effective", NOT_READ, "unknown"),
        ("GIN-GDAKI-DOCA21", "rdma.uverbs", NOT_READ, "unknown"),
        ("GIN-GDAKI-DOCA21", "rdma.uverbs.0.read_write", NOT_READ, "unknown"),
        ("GIN-GDAKI-DOCA21", "host.cap_effective", NOT_READ, "unknown"),
        ("GIN-GDAKI-DOCA21", "active.verbs.2.devx_uar_errno", Absent("failed", "errno 121"), "unknown"),
        ("GIN-QP-EXHAUST", "rdma.devices.0.max_qp", NOT_READ, "unknown"),
        ("GIN-25-GDAKI-ONLY", "software.distributions", NOT_READ, "unknown"),
        ("GIN-25-GDAKI-ONLY", "rdma.devices", NOT_READ, "unknown"),
        ("GIN-25-GDAKI-ONLY", "rdma.devices.*.driver", NOT_READ, "unknown"),
        ("GIN-25-GDAKI-ONLY", "rdma.devices.*.driver", Absent("not_found"), "failed"),
        ("GIN-TYPE-NONE", "rdma.devices.*.driver", NOT_READ, "unknown"),
        ("GIN-GDAKI-DOCA21", "rdma.devices.*.driver", NOT_READ, "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(CONTAINER, path, value)).status == status


def test_gpudirect_path_without_any_probe_is_unknown() -> None:
    node = edit(NO_PEERMEM, "active.verbs", NOT_PROBED)
    finding = run("GIN-TYPE-NONE", node)
    assert finding.status == "unknown"
    assert "GPUDirect path: unknown" in finding.evidence[0]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("active.devices.0.dma_buf", False, "CUDA device 0 has no DMA-BUF"),
        ("gpu.driver.kernel_flavour", "proprietary", "proprietary NVIDIA kernel module"),
        ("host.kernel", "5.4.0-200-generic", "kernel 5.4.0-200-generic has no DMA-BUF"),
    ],
)
def test_dma_buf_that_cannot_be(path: str, value: object, says: str) -> None:
    node = edit(
        edit(NO_PEERMEM, "active.verbs", NOT_PROBED),
        "rdma.ofed_version",
        Absent("not_found"),
    )
    if not path.startswith("active"):
        node = edit(node, "active.devices", NOT_PROBED)
    assert says in " ".join(run("GIN-TYPE-NONE", edit(node, path, value)).evidence)


def test_ofed_may_bring_dma_buf_to_an_old_kernel() -> None:
    node = edit(NO_PEERMEM, "host.kernel", "4.18.0-553.el8_10.x86_64")
    assert run("GIN-TYPE-NONE", node).status == "passed"


def test_gin_is_no_matter_where_nobody_asks_for_it() -> None:
    for one in ("GIN-TYPE-NONE", "GIN-NIC-FUSED-OLD", "GIN-QP-EXHAUST", "GIN-MIXED-RANKS"):
        assert run(one, NO_NIC, ("deepep-1",)).status == "skipped"


def test_rails_do_not_matter_on_one_node() -> None:
    assert run("GIN-RAIL-ONLY", env(IB, NCCL_CROSS_NIC="0")).status == "skipped"


def test_rack_of_one_nvlink_domain_goes_without_gin() -> None:
    node = env(edit(gb200_node(), "rdma.devices", ()), EP_DISABLE_GIN="1")
    assert run("GIN-TYPE-NONE", node, num_nodes=18).severity == "info"
    assert run("GIN-TYPE-NONE", node, num_nodes=36).severity == "fail"


def test_queues_are_no_matter_without_gin() -> None:
    node = env(edit(IB, "rdma.devices.*.max_qp", 10), EP_DISABLE_GIN="1")
    assert run("GIN-QP-EXHAUST", node, num_nodes=8).status == "skipped"


def test_gdaki_in_a_container_is_looked_at_only_where_it_is_wanted() -> None:
    assert run("GIN-GDAKI-DOCA21", IB).status == "skipped"
    assert run("GIN-GDAKI-DOCA21", env(CONTAINER, NCCL_GIN_TYPE="2")).status == "skipped"
    assert run("GIN-GDAKI-DOCA21", edit(CONTAINER, "rdma.devices.*.driver", "irdma")).status == "skipped"


def test_second_generation_is_not_bound_to_gdaki() -> None:
    assert run("GIN-25-GDAKI-ONLY", edit(V2, "rdma.devices.*.driver", "bnxt_re")).status == "skipped"


def test_config_file_counts_as_setting() -> None:
    node = edit(IB, "env.nccl_conf", (Setting("NCCL_IB_DISABLE", "1"),))
    assert "NCCL_IB_DISABLE=1 (NCCL configuration file)" in run("GIN-TYPE-NONE", node).evidence[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("healthy", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("one", sorted(OWN))
def test_healthy_nodes_are_clean(one: str, healthy: Callable[[], Snapshot], num_nodes: int) -> None:
    finding = run(one, healthy(), num_nodes=num_nodes)
    assert finding.status in ("passed", "skipped") or finding.severity == "info", finding


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_a_gpu_it_is_skipped(one: str) -> None:
    assert run(one, laptop(), num_nodes=2).status == "skipped"
