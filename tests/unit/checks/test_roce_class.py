"""The check of the traffic class of GDAKI's queues."""

from __future__ import annotations

import pytest

from epctl.checks import roce_class
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, roce_node

NODE = roce_node()
ID = "ROCE-GDAKI-TC"
TCLASS = "rdma.devices.*.global_tclass"
PFC = "rdma.netdevs.*.pfc_priorities"


def without_tc(node: Snapshot = NODE) -> Snapshot:
    """No traffic class for NCCL."""
    assert isinstance(node.env.variables, tuple)
    return edit(node, "env.variables", tuple(one for one in node.env.variables if one.name != "NCCL_IB_TC"))


def pfc(*priorities: int) -> Snapshot:
    return edit(without_tc(), PFC, priorities)


def tc(value: str, *priorities: int) -> Snapshot:
    return env(pfc(*priorities), NCCL_IB_TC=value)


CASES = [
    Case(ID, edit(without_tc(), "rdma.devices.3.global_tclass", 106), NODE, "mlx5_3: global traffic class 106"),
    Case(ID, pfc(3), pfc(0, 3), "eth0 has PFC on priority 3, not on 0"),
    Case(ID, pfc(3), pfc(), "NCCL_GIN_IB_TC are not set"),
    Case(ID, pfc(3), env(pfc(3), NCCL_GIN_IB_TC="106"), "priority 3"),
    Case(
        ID,
        edit(NODE, "rdma.devices.0.global_tclass", 160),
        edit(NODE, "rdma.devices.0.global_tclass", 104),  # the same DSCP as NCCL_IB_TC=106
        "NCCL_IB_TC=106 (environment), global traffic class 160 (sysfs): two classes",
        "warn",
    ),
    # A traffic class is right only if it is the lossless one, not because somebody set one.
    Case(ID, tc("0", 3), tc("106", 3), "not on 0 (DSCP 0); NCCL_IB_TC=0"),
    Case(ID, tc("3", 3), tc("96", 3), "not on 0 (DSCP 0); NCCL_IB_TC=3"),
    Case(ID, tc("160", 3), tc("160", 3, 5), "PFC on priority 3, not on 5 (DSCP 40); NCCL_IB_TC=160", "warn"),
    Case(ID, edit(tc("0", 3), TCLASS, 106), edit(tc("106", 3), TCLASS, 106), "two classes", "warn"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_has_a_case() -> None:
    assert {one.id for one in registered().values() if one.look.__module__ == roce_class.__name__} == {ID}


@pytest.mark.parametrize("node", [ib_node(), roce_node(), efa_node(), gb200_node()], ids=["ib", "roce", "efa", "gb200"])
def test_a_healthy_node_stays_clean(node: Snapshot) -> None:
    assert run(ID, node).status in ("passed", "skipped")


def test_the_traffic_class_matters_to_gdaki_alone() -> None:
    assert run(ID, pfc(3), ("epctl",)).status == "skipped"
    assert run(ID, edit(pfc(3), "rdma.devices.*.driver", "bnxt_re")).status == "skipped"


def test_adapters_without_a_global_class_have_none() -> None:
    assert run(ID, edit(pfc(), TCLASS, Absent("not_found"))).status == "passed"


def test_a_class_that_somebody_chose_stands_where_pfc_cannot_be_read() -> None:
    assert run(ID, edit(tc("106", 3), PFC, Absent("tool_missing"))).status == "passed"


@pytest.mark.parametrize(
    "node",
    [
        edit(without_tc(), TCLASS, Absent("permission")),
        edit(without_tc(), PFC, Absent("tool_missing")),
        edit(without_tc(), "rdma.netdevs", Absent("failed")),
        edit(tc("0", 3), PFC, Absent("tool_missing")),
    ],
)
def test_what_nobody_read_leaves_the_check_unknown(node: Snapshot) -> None:
    assert run(ID, node).status == "unknown"
