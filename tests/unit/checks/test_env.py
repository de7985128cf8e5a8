"""Checks of environment variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Setting
from epctl.core.snapshot.software import Root, SharedLibrary
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("env")
IB = ib_node()
EFA = efa_node()
VLLM = dist(IB, "vllm", "0.22.0")
RACK = env(gb200_node(), EP_DISABLE_GIN="1")


def rooted(variable: str = "NCCL_DIR", version: str = "2.32.3", *, include: bool = True, lib: bool = True) -> Snapshot:
    area = "nvshmem" if "NVSHMEM" in variable else "nccl"
    before = getattr(IB.software, area)
    library = SharedLibrary("root", "/opt/x/lib/lib.so", "/opt/x/lib/lib.so", version)
    node = edit(IB, f"software.{area}", (*before, library))
    return edit(node, "software.roots", (Root(variable, "/opt/x", include, lib, True),))


CASES = [
    Case(
        "ENV-GIN-DISABLED",
        env(IB, NCCL_GIN_ENABLE="0"),
        IB,
        "NCCL_GIN_ENABLE=0 (environment); the planned job has 2",
        num_nodes=2,
    ),
    Case("ENV-GIN-DISABLED", env(IB, EP_DISABLE_GIN="1"), env(IB, EP_DISABLE_GIN="0"), "EP_DISABLE_GIN=1", num_nodes=2),
    Case(
        "ENV-GIN-DISABLED",
        edit(RACK, "gpu.gpus.*.fabric_cluster_uuid", "0" * 32),
        RACK,
        "EP_DISABLE_GIN=1",
        num_nodes=18,
    ),
    Case("ENV-IB-DISABLED", env(IB, NCCL_IB_DISABLE="1"), env(IB, NCCL_IB_DISABLE="0"), "8 active ports"),
    Case(
        "ENV-IB-DISABLED",
        edit(edit(IB, "env.nccl_conf", (Setting("NCCL_IB_DISABLE", "1"),)), "env.nccl_conf_files", ("/etc/nccl.conf",)),
        env(edit(IB, "env.nccl_conf", (Setting("NCCL_IB_DISABLE", "1"),)), NCCL_IB_DISABLE="0"),
        "NCCL_IB_DISABLE=1 (/etc/nccl.conf)",
        num_nodes=2,
    ),
    Case(
        "ENV-IB-DISABLED", env(IB, NCCL_IB_DISABLE="1", EP_DISABLE_GIN="1"), env(EFA, NCCL_IB_DISABLE="1"), "=1", "info"
    ),
    Case("ENV-IB-DISABLED", env(IB, NCCL_IB_DISABLE="1"), IB, "=1", "info", profiles=("deepep-1",)),
    Case(
        "ENV-GIN-TYPE-MISMATCH",
        env(EFA, NCCL_GIN_TYPE="3"),
        env(IB, NCCL_GIN_TYPE="3"),
        "needs mlx5_core; drivers here: efa",
    ),
    Case("ENV-GIN-TYPE-MISMATCH", env(IB, NCCL_GIN_TYPE="5"), EFA, "needs efa; drivers here: mlx5_core"),
    Case("ENV-GIN-TYPE-MISMATCH", env(IB, NCCL_GIN_TYPE="7"), env(IB, NCCL_GIN_TYPE="-1"), "names no backend"),
    Case("ENV-GIN-TYPE-MISMATCH", env(IB, NCCL_GIN_TYPE="gdaki"), env(IB, NCCL_GIN_TYPE="2"), "names no backend"),
    Case(
        "ENV-GIN-TYPE-MISMATCH",
        env(edit(IB, "rdma.devices", ()), NCCL_GIN_TYPE="2"),
        IB,
        "needs an RDMA device; drivers here: none",
    ),
    Case(
        "ENV-GIN-TYPE-MISMATCH",
        edit(EFA, "software.nccl_effective", "2.30.4"),
        EFA,
        "NCCL 2.30.4 does not know",
        fix_says="Upgrade",
    ),
    Case("ENV-EFA-IBVARS", env(EFA, NCCL_IB_GID_INDEX="3"), EFA, "NCCL_IB_GID_INDEX=3"),
    Case("ENV-EFA-IBVARS", env(EFA, NVSHMEM_HCA_LIST="mlx5_0:1"), env(EFA, NCCL_IB_DISABLE="1"), "NVSHMEM_HCA_LIST"),
    Case("ENV-EFA-IBVARS", env(EFA, NVSHMEM_IB_GID_INDEX="3"), EFA, "NVSHMEM_IB_GID_INDEX"),
    Case(
        "ENV-SL-MISMATCH",
        env(IB, NCCL_IB_SL="1", EP_OVERRIDE_RDMA_SL="3"),
        env(IB, NCCL_IB_SL="3", EP_OVERRIDE_RDMA_SL="3"),
        "NCCL_IB_SL=1",
    ),
    Case(
        "ENV-SL-MISMATCH",
        env(IB, EP_DEFAULT_RDMA_SL="1", EP_OVERRIDE_RDMA_SL="3"),
        env(IB, NCCL_IB_SL="1"),
        "EP_DEFAULT_RDMA_SL=1",
    ),
    Case(
        "ENV-SL-MISMATCH", env(IB, NCCL_IB_SL="1"), env(IB, NCCL_IB_SL="3"), "DeepEP 2 takes 3", profiles=("deepep-2",)
    ),
    Case(
        "ENV-ROOT-OVERRIDE",
        rooted(lib=False),
        rooted(),
        "NCCL_DIR=/opt/x has no lib",
        "fail",
        fix_says="Unset NCCL_DIR",
    ),
    Case("ENV-ROOT-OVERRIDE", rooted(include=False, lib=False), IB, "no include and no lib", "fail"),
    Case("ENV-ROOT-OVERRIDE", rooted(version="2.30.4"), rooted(), "holds 2.30.4, PyTorch has 2.32.3"),
    Case(
        "ENV-ROOT-OVERRIDE",
        rooted("NVSHMEM_DIR", "3.3.9"),
        rooted("NVSHMEM_DIR", "3.4.5"),
        "holds 3.3.9, the package has 3.4.5",
    ),
    Case(
        "ENV-NVLS-OFF-SYMM",
        env(IB, VLLM_USE_NCCL_SYMM_MEM="1", NCCL_NVLS_ENABLE="0"),
        env(IB, VLLM_USE_NCCL_SYMM_MEM="1"),
        "NCCL_NVLS_ENABLE=0",
    ),
    Case(
        "ENV-NVLS-OFF-SYMM",
        env(IB, VLLM_USE_NCCL_SYMM_MEM="1", NCCL_CUMEM_ENABLE="0"),
        env(IB, VLLM_USE_NCCL_SYMM_MEM="1", NCCL_NVLS_ENABLE="1"),
        "NCCL_CUMEM_ENABLE=0",
    ),
    Case("ENV-VLLM-HYBRID-OFF", env(VLLM, NCCL_CROSS_NIC="0"), VLLM, "vLLM 0.22.0", num_nodes=2),
    Case(
        "ENV-VLLM-HYBRID-OFF",
        env(VLLM, NCCL_CROSS_NIC="0", VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE="0"),
        env(VLLM, NCCL_CROSS_NIC="0", VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE="1"),
        "VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE is 0",
        num_nodes=2,
    ),
]


@pytest.mark.parametrize("one", sorted(OWN - {"ENV-NVLS-OFF-SYMM", "ENV-VLLM-HYBRID-OFF", "ENV-EFA-IBVARS"}))
def test_environment_that_was_not_read(one: str) -> None:
    assert run(one, edit(IB, "env.variables", NOT_READ)).status == "unknown"


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("ENV-IB-DISABLED", "env.nccl_conf", Absent("permission"), "unknown"),
        ("ENV-IB-DISABLED", "env.nccl_conf", Absent("not_found"), "passed"),
        ("ENV-IB-DISABLED", "rdma.devices", NOT_READ, "unknown"),
        ("ENV-EFA-IBVARS", "rdma.devices", NOT_READ, "unknown"),
        ("ENV-GIN-DISABLED", "active", NOT_PROBED, "passed"),
        ("ENV-SL-MISMATCH", "rdma.devices", (), "skipped"),
        ("ENV-ROOT-OVERRIDE", "software.nccl", NOT_READ, "passed"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


@pytest.mark.parametrize(
    ("path", "value"),
    [("software.roots.0.has_lib", NOT_READ), ("software.nccl", ()), ("software.nccl.1.version", NOT_READ)],
)
def test_root_that_could_not_be_judged(path: str, value: object) -> None:
    assert run("ENV-ROOT-OVERRIDE", edit(rooted(), path, value)).status == "unknown"


def test_gpi_plugins_are_not_judged() -> None:
    assert run("ENV-GIN-TYPE-MISMATCH", env(IB, NCCL_GIN_TYPE="4")).status == "unknown"


def test_mixed_adapters_may_use_infiniband_settings() -> None:
    devices = (*EFA.rdma.devices, *IB.rdma.devices)  # type: ignore[misc]
    assert run("ENV-EFA-IBVARS", env(edit(EFA, "rdma.devices", devices), NCCL_IB_GID_INDEX="3")).status == "skipped"


def test_type_against_a_driver_that_was_not_read() -> None:
    assert run("ENV-GIN-TYPE-MISMATCH", edit(EFA, "rdma.devices.*.driver", NOT_READ)).status == "unknown"


def test_one_node_needs_no_gin() -> None:
    assert run("ENV-GIN-DISABLED", env(IB, EP_DISABLE_GIN="1")).status == "passed"


def test_rack_larger_than_one_domain() -> None:
    assert run("ENV-GIN-DISABLED", RACK, num_nodes=19).status == "failed"


def test_vllm_without_deepep_is_no_matter() -> None:
    assert run("ENV-VLLM-HYBRID-OFF", env(VLLM, NCCL_CROSS_NIC="0"), ("deepep-1",), 2).status == "skipped"
    assert run("ENV-VLLM-HYBRID-OFF", env(IB, NCCL_CROSS_NIC="0"), num_nodes=2).status == "skipped"


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
