"""Checks of EFA's limits and of old settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("efa_limits")
EFA = efa_node()
UCCL = dist(EFA, "uccl", "0.1.0")
OLD_PLUGIN = edit(EFA, "software.net_plugins.0.version", "1.5.0")

CASES = [
    Case("EFA-QP-LIMIT", UCCL, edit(UCCL, "rdma.devices.*.max_qp", 4096), "= 1088; rdmap0s0 max_qp 1024", num_nodes=8),
    Case("EFA-QP-LIMIT", edit(UCCL, "rdma.devices.4.max_qp", 256), UCCL, "rdmap4s0 max_qp 256", num_nodes=2),
    Case("EFA-MR-PAGES", edit(EFA, "host.hugepages_2m_total", 0), EFA, "HugePages_Total is 0"),
    Case(
        "EFA-MR-PAGES", edit(EFA, "host.hugepages_2m_total", 0), EFA, "HugePages_Total is 0", "info", profiles=("efa",)
    ),
    Case(
        "EFA-MR-PAGES",
        edit(EFA, "host.hugepages_2m_total", 0),
        edit(edit(EFA, "host.hugepages_2m_total", 0), "host.memory_total_bytes", 64 * 1024**3),
        "the host has 2199 GB",
    ),
    Case("EFA-STALE-ENV", env(EFA, RDMAV_FORK_SAFE="1"), EFA, "RDMAV_FORK_SAFE=1"),
    Case("EFA-STALE-ENV", env(EFA, FI_EFA_USE_DEVICE_RDMA="1"), EFA, "FI_EFA_USE_DEVICE_RDMA=1", "info"),
    Case("EFA-STALE-ENV", env(EFA, FI_PROVIDER="efa"), env(OLD_PLUGIN, FI_PROVIDER="efa"), "FI_PROVIDER=efa", "info"),
    Case("EFA-STALE-ENV", env(EFA, NCCL_PROTO="simple"), env(EFA, NCCL_PROTO="LL128"), "NCCL_PROTO=simple", "info"),
    Case("EFA-STALE-ENV", env(OLD_PLUGIN, FI_EFA_FORK_SAFE="1"), OLD_PLUGIN, "FI_EFA_FORK_SAFE=1", "info"),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("EFA-QP-LIMIT", "rdma.devices.3.max_qp", NOT_READ, "unknown"),
        ("EFA-QP-LIMIT", "software.distributions", NOT_READ, "unknown"),
        ("EFA-MR-PAGES", "host.hugepages_2m_total", NOT_READ, "unknown"),
        ("EFA-STALE-ENV", "env.variables", NOT_READ, "unknown"),
        ("EFA-STALE-ENV", "env.nccl_conf", Absent("permission"), "unknown"),
        ("EFA-STALE-ENV", "software.net_plugins", NOT_PROBED, "passed"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(UCCL, path, value), num_nodes=2).status == status


@pytest.mark.parametrize(("version", "status"), [("1.5.0", "passed"), ("1.6.0", "passed"), ("1.7.0", "failed")])
def test_device_rdma_was_needed_up_to_plugin_1_6(version: str, status: str) -> None:
    node = env(edit(EFA, "software.net_plugins.0.version", version), FI_EFA_USE_DEVICE_RDMA="1")
    assert run("EFA-STALE-ENV", node).status == status


def test_queues_matter_to_libraries_that_make_them_for_each_peer() -> None:
    assert run("EFA-QP-LIMIT", EFA, num_nodes=8).status == "skipped"
    assert run("EFA-QP-LIMIT", UCCL).status == "skipped"


def test_both_checks_of_huge_pages_ask_for_the_same_number() -> None:
    node = edit(EFA, "host.hugepages_2m_total", 0)
    commands = {run(one, node, ("efa",)).commands for one in ("EFA-MR-PAGES", "LIM-EFA-HUGEPAGES")}
    assert {line for lines in commands for line in lines if "nr_hugepages" in line} == {
        f"sudo sysctl -w vm.nr_hugepages={110 * 112}"
    }


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
