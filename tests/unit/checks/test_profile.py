"""Checks of what profiles ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("profile")
IB = ib_node()
EFA = efa_node()
BARE = dist(IB, "deepinfer-ep", None)
NO_NIC = edit(IB, "rdma.devices", ())

CASES = [
    Case(
        "PROFILE-FORBIDS",
        env(IB, NCCL_GIN_TYPE="2"),
        env(IB, NCCL_GIN_TYPE="3"),
        "2.5 compiles only the GDAKI",
        fix_says="Unset NCCL_GIN_TYPE",
    ),
    Case("PROFILE-FORBIDS", env(IB, NCCL_CUMEM_ENABLE="00"), env(IB, NCCL_CUMEM_ENABLE="1"), "NCCL_CUMEM_ENABLE=00"),
    Case("PROFILE-FORBIDS", env(IB, NCCL_CUMEM_ENABLE="0"), IB, "epctl itself rules it out", profiles=("epctl",)),
    Case("PROFILE-FORBIDS", env(BARE, NCCL_GIN_TYPE="2"), BARE, "it is not installed here", "info"),
    Case("PROFILE-FORBIDS", env(EFA, NCCL_SYM_GENK_ENABLE="1"), EFA, "multi-node GENK needs strong", profiles=("efa",)),
    Case(
        "PROFILE-NEEDS-ENV",
        env(EFA, NCCL_SYM_GIN_KERNELS_ENABLE=""),
        EFA,
        "NCCL_SYM_GIN_KERNELS_ENABLE is unset; EP over AWS EFA",
        profiles=("efa",),
        fix_says="Set NCCL_SYM_GIN_KERNELS_ENABLE=0",
    ),
    Case("PROFILE-NEEDS-ENV", IB, env(IB, NCCL_SYM_GENK_ENABLE="1"), "off by default", profiles=("nccl-genk",)),
    Case(
        "PROFILE-CUDA-TOOLKIT",
        edit(IB, "software.toolchain.nvcc_version", "13.0.88"),
        IB,
        "nvcc 13.0.88 (/usr/local/cuda-13.1/bin/nvcc); DeepEP 2.5",
    ),
    Case(
        "PROFILE-CUDA-TOOLKIT",
        edit(IB, "software.toolchain.nvcc_version", Absent("not_found")),
        IB,
        "no nvcc was found",
    ),
    Case(
        "PROFILE-CUDA-TOOLKIT",
        IB,
        edit(IB, "software.toolchain.nvcc_version", "13.3"),
        "needs CUDA toolkit 13.3",
        profiles=("cft",),
    ),
    Case("PROFILE-TOOLS", edit(IB, "gpu.driver.nvidia_smi", Absent("tool_missing")), IB, "nvidia-smi is not on PATH"),
    Case(
        "PROFILE-TOOLS",
        edit(IB, "rdma.ibstat", Absent("tool_missing")),
        edit(IB, "rdma.ibstat", Absent("failed")),
        "ibstat is not on PATH; DeepEP 2.5",
    ),
    Case(
        "PROFILE-TOOLS",
        edit(IB, "rdma.ibstat", Absent("tool_missing")),
        edit(EFA, "rdma.ibstat", Absent("tool_missing")),
        "ibstat",
    ),
    Case("PROFILE-NO-RDMA", NO_NIC, IB, "no RDMA device; DeepEP 2.5 (deepinfer-ep) needs one on 2 nodes", num_nodes=2),
    Case(
        "PROFILE-NO-RDMA",
        edit(IB, "rdma.devices.*.ports.*.state", "DOWN"),
        IB,
        "8 RDMA ports, none active",
        num_nodes=4,
    ),
    Case(
        "PROFILE-NO-RDMA",
        NO_NIC,
        env(edit(gb200_node(), "rdma.devices", ()), EP_DISABLE_GIN="1"),
        "no RDMA device",
        num_nodes=18,
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("PROFILE-FORBIDS", "env.variables", NOT_READ, "unknown"),
        ("PROFILE-FORBIDS", "env.nccl_conf", Absent("permission"), "unknown"),
        ("PROFILE-CUDA-TOOLKIT", "software.toolchain.nvcc_version", NOT_READ, "unknown"),
        ("PROFILE-CUDA-TOOLKIT", "software.toolchain.nvcc_version", "new", "unknown"),
        ("PROFILE-TOOLS", "gpu.driver.nvidia_smi", NOT_PROBED, "unknown"),
        ("PROFILE-TOOLS", "rdma.ibstat", NOT_READ, "unknown"),
        ("PROFILE-TOOLS", "rdma.devices", NOT_READ, "unknown"),
        ("PROFILE-NO-RDMA", "rdma.devices", NOT_READ, "unknown"),
        ("PROFILE-NO-RDMA", "rdma.devices.*.ports.*.state", NOT_READ, "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value), num_nodes=2).status == status


def test_conflict_counts_where_installed_packages_are_not_known() -> None:
    node = env(edit(IB, "software.distributions", NOT_READ), NCCL_GIN_TYPE="2")
    assert run("PROFILE-FORBIDS", node).severity == "fail"


@pytest.mark.parametrize("one", sorted(OWN - {"PROFILE-FORBIDS"}))
def test_profile_that_asks_for_nothing(one: str) -> None:
    assert run(one, IB, ("nccl-ep",) if one != "PROFILE-NO-RDMA" else ("epctl",), 2).status == "skipped"


def test_network_is_no_matter_on_one_node() -> None:
    assert run("PROFILE-NO-RDMA", NO_NIC).status == "passed"


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
