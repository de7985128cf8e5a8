"""Checks of RoCE: MTU, GIDs, namespaces."""

from __future__ import annotations

import pytest

from epctl.checks import roce
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import Gid
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, roce_node

NODE = roce_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == roce.__name__}
PLAIN = ("epctl",)
LOCAL = Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", "eth0")
LOCAL_V2 = Gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0")
GLOBAL = Gid(3, "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0")
V4_V1 = Gid(2, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1", "eth0")


def port(i: int | str, **facts: object) -> Snapshot:
    node = NODE
    for name, value in facts.items():
        node = edit(node, f"rdma.devices.{i}.ports.0.{name}", value)
    return node


def nccl(node: Snapshot, version: object) -> Snapshot:
    return edit(node, "software.nccl_effective", version)


def unread_mtu(mtu: int) -> Snapshot:
    """ibv_devinfo is not installed; the interface tells."""
    return edit(port(0, active_mtu=Absent("tool_missing")), "rdma.netdevs.1.mtu", mtu)


SMALL = port(2, active_mtu=1024)
LINK_LOCAL = edit(port(0, gids=(LOCAL, LOCAL_V2)), "rdma.netdevs.1.addresses", ("fe80::1/64",))
V6 = port(5, gids=(LOCAL, LOCAL_V2, GLOBAL))
ELSEWHERE = edit(port(1, gids=()), "rdma.devices.1.netdevs", ())

CASES = [
    Case("ROCE-MTU-SMALL", nccl(SMALL, "2.30.7"), nccl(NODE, "2.30.7"), "mlx5_2: active MTU 1024 (verbs)"),
    Case("ROCE-MTU-SMALL", nccl(SMALL, "2.30.4"), NODE, "asked for by profile deepep-2.5, NCCL 2.30.4", "fail"),
    Case("ROCE-MTU-SMALL", SMALL, NODE, "NCCL 2.32.3", "warn"),
    Case("ROCE-MTU-SMALL", nccl(SMALL, Absent("not_found")), NODE, "NCCL unknown", "warn"),
    Case("ROCE-MTU-SMALL", nccl(SMALL, "2.30.7"), NODE, "active MTU 1024", "warn", profiles=PLAIN),
    Case(
        "ROCE-MTU-SMALL",
        nccl(env(SMALL, NCCL_GIN_TYPE="3"), "2.30.7"),
        nccl(env(NODE, NCCL_GIN_TYPE="3"), "2.30.7"),
        "asked for by NCCL_GIN_TYPE=3",
        "fail",
        profiles=PLAIN,
    ),
    Case("ROCE-MTU-SMALL", nccl(env(SMALL, NCCL_GIN_TYPE="2"), "2.30.7"), NODE, "active MTU 1024", "warn"),
    Case("ROCE-MTU-SMALL", nccl(edit(SMALL, "rdma.devices.*.driver", "bnxt_en"), "2.30.7"), NODE, "1024", "warn"),
    Case("ROCE-MTU-SMALL", unread_mtu(1500), unread_mtu(4200), "mlx5_0: interface eth0 has MTU 1500 (sysfs)", "warn"),
    Case("ROCE-MTU-SMALL", SMALL, env(SMALL, NCCL_IB_HCA="^mlx5_2"), "mlx5_2", "warn"),
    Case("ROCE-MTU-UNEVEN", SMALL, NODE, "active MTU 1024: mlx5_2; active MTU 4096: mlx5_0"),
    Case("ROCE-MTU-UNEVEN", SMALL, port("*", active_mtu=1024), "active MTU 1024"),
    Case("ROCE-GID-EMPTY", port(4, gids=()), NODE, "mlx5_4: its GID table is empty"),
    Case("ROCE-GID-EMPTY", LINK_LOCAL, port(0, gids=(LOCAL, LOCAL_V2)), "mlx5_0: all GIDs are link-local"),
    Case("ROCE-GID-EMPTY", LINK_LOCAL, V6, "no IPv4 address"),
    Case("ROCE-GID-FORCED-WRONG", env(NODE, NCCL_IB_GID_INDEX="7"), NODE, "mlx5_0 has no GID 7"),
    Case("ROCE-GID-FORCED-WRONG", env(NODE, NCCL_IB_GID_INDEX="1"), NODE, "has a link-local address at GID 1"),
    Case(
        "ROCE-GID-FORCED-WRONG",
        env(NODE, NVSHMEM_IB_GID_INDEX="2"),
        env(NODE, NVSHMEM_IB_GID_INDEX="3"),
        "IB/RoCE v1 entry",
    ),
    Case(
        "ROCE-GID-FORCED-WRONG",
        env(NODE, NCCL_IB_GID_INDEX="3"),
        env(NODE, NCCL_IB_GID_INDEX="-1"),
        "by itself",
        "info",
    ),
    Case(
        "ROCE-GID-FORCED-WRONG",
        env(port(6, gids=(LOCAL,)), NCCL_IB_GID_INDEX="3"),
        nccl(env(NODE, NCCL_IB_GID_INDEX="3"), "2.20.5"),
        "mlx5_6 has no GID 3",
    ),
    Case("ROCE-GID-V6-ONLY", V6, NODE, "mlx5_5: RoCE v2 GIDs are IPv6 alone"),
    Case("ROCE-GID-V6-ONLY", V6, env(V6, NCCL_IB_ADDR_FAMILY="AF_INET6"), "NCCL_IB_ADDR_FAMILY is AF_INET"),
    Case("ROCE-GID-V6-ONLY", V6, env(V6, NCCL_IB_GID_INDEX="3"), "mlx5_5"),
    Case("ROCE-GID-V6-ONLY", port(5, gids=(LOCAL, V4_V1, GLOBAL)), NODE, "mlx5_5"),
    Case("NIC-OTHER-NETNS", ELSEWHERE, NODE, "mlx5_1: no interface of it is in this network namespace"),
    Case("NIC-OTHER-NETNS", ELSEWHERE, env(ELSEWHERE, NCCL_IB_HCA="^=mlx5_1"), "mlx5_1"),
    Case(
        "NIC-OTHER-NETNS", ELSEWHERE, edit(NODE, "rdma.devices.1.netdevs", ()), "mlx5_1"
    ),  # its GIDs name an interface
    Case("ROCE-MTU-UNEVEN", unread_mtu(1500), unread_mtu(9000), "active MTU 1024: mlx5_0; active MTU 4096: mlx5_1"),
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


def test_ports_that_carry_no_ep_traffic_may_have_small_frames() -> None:
    node = edit(port(2, rate_gbps=25.0), "rdma.devices.2.ca_type", "MT4127")
    assert run("ROCE-MTU-SMALL", edit(node, "rdma.devices.2.ports.0.active_mtu", 1024)).status == "passed"


def test_interfaces_that_differ_beyond_what_rdma_uses_are_even() -> None:
    assert (
        run(
            "ROCE-MTU-UNEVEN", edit(unread_mtu(4200), "rdma.devices.*.ports.0.active_mtu", Absent("tool_missing"))
        ).status
        == "passed"
    )


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("ROCE-MTU-SMALL", edit(port(0, active_mtu=Absent("tool_missing")), "rdma.netdevs", Absent("failed"))),
        ("ROCE-MTU-UNEVEN", edit(port(0, active_mtu=Absent("tool_missing")), "rdma.netdevs", Absent("failed"))),
        ("ROCE-GID-EMPTY", port(0, gids=Absent("permission"))),
        ("ROCE-GID-EMPTY", edit(LINK_LOCAL, "rdma.netdevs.1.addresses", Absent("failed"))),
        ("ROCE-GID-EMPTY", edit(LINK_LOCAL, "rdma.netdevs", Absent("failed"))),
        ("ROCE-GID-FORCED-WRONG", env(port(0, gids=Absent("permission")), NCCL_IB_GID_INDEX="3")),
        ("ROCE-GID-FORCED-WRONG", edit(NODE, "env.variables", Absent("not_read"))),
        ("ROCE-GID-V6-ONLY", edit(NODE, "rdma.devices.0.ports.0.gids.3.type", Absent("failed"))),
        ("NIC-OTHER-NETNS", edit(NODE, "rdma.devices.0.netdevs", Absent("permission"))),
        ("ROCE-MTU-SMALL", edit(NODE, "rdma.devices.*.ports.0.link_layer", Absent("failed"))),
    ],
)
def test_what_nobody_read_leaves_the_check_unknown(name: str, node: Snapshot) -> None:
    assert run(name, node).status == "unknown"
