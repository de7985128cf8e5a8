"""Checks of the interfaces of NCCL and gloo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import NetDev
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("env_sockets")
IB = ib_node()


def interface(name: str, *addresses: str, up: bool = True) -> NetDev:
    return NetDev(name, up, 1500, 25000, "physical", Absent("not_found"), addresses, False, ())


LO = interface("lo", "127.0.0.1/8", "::1/128")
ETH0 = interface("eth0", "10.0.0.11/24", "fe80::1/64")
DOCKER = interface("docker0", "172.17.0.1/16")
STORAGE = interface("eth1", "192.168.7.11/24")


def node(*interfaces: NetDev) -> Snapshot:
    return edit(IB, "rdma.netdevs", interfaces)


CASES = [
    Case(
        "ENV-SOCKET-IFNAME",
        env(IB, NCCL_SOCKET_IFNAME="bond0"),
        env(IB, NCCL_SOCKET_IFNAME="eth0"),
        "fits no interface; there are eth0, lo",
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        env(node(LO, interface("eth0")), NCCL_SOCKET_IFNAME="eth0"),
        IB,
        "eth0 is down or has no address",
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        env(node(LO, interface("eth0", "10.0.0.11/24", up=False)), NCCL_SOCKET_IFNAME="eth"),
        env(node(LO, ETH0), NCCL_SOCKET_IFNAME="eth"),
        "eth0 is down",
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        env(IB, NCCL_SOCKET_IFNAME="lo"),
        env(IB, NCCL_SOCKET_IFNAME="=eth0"),
        "lo is the loopback",
        num_nodes=2,
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        env(node(LO, ETH0, DOCKER), NCCL_SOCKET_IFNAME="docker0"),
        env(node(LO, ETH0, DOCKER), NCCL_SOCKET_IFNAME="^docker0,lo"),
        "docker0 is a bridge or tunnel of this machine",
        num_nodes=2,
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        node(LO, DOCKER),
        node(LO, ETH0, DOCKER),
        "NCCL_SOCKET_IFNAME is not set: docker0",
        num_nodes=2,
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        node(LO, interface("eth0", "169.254.3.4/16")),
        node(LO, ETH0),
        "link-local addresses only (169.254.3.4)",
        num_nodes=2,
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        node(LO, ETH0, interface("ib0", "fe80::2/64")),
        IB,
        "ib0 has link-local addresses only",
        "warn",
        num_nodes=2,
    ),
    Case("ENV-SOCKET-IFNAME", node(LO), IB, "lo is the loopback interface", num_nodes=2),
    Case("ENV-SOCKET-IFNAME", node(), IB, "no interface is up with an address"),
    Case(
        "ENV-SOCKET-IFNAME",
        env(node(LO, ETH0, interface("cni0", "10.244.0.1/24")), NCCL_SOCKET_IFNAME="^docker,lo"),
        env(node(LO, ETH0, interface("cni0", "10.244.0.1/24")), NCCL_SOCKET_IFNAME="^docker,lo,cni"),
        "leaves eth0, cni0; cni0 is a bridge",
        "warn",
        num_nodes=2,
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        env(node(LO, ETH0, STORAGE), NCCL_SOCKET_IFNAME="^docker,lo"),
        env(node(LO, ETH0, STORAGE), NCCL_SOCKET_IFNAME="eth0"),
        "leaves 2 interfaces: eth0, eth1",
        "info",
        num_nodes=2,
    ),
    Case(
        "ENV-SOCKET-IFNAME",
        env(node(LO, ETH0, STORAGE), NCCL_SOCKET_IFNAME="eth1", MASTER_ADDR="10.0.0.7"),
        env(node(LO, ETH0, STORAGE), NCCL_SOCKET_IFNAME="eth0", MASTER_ADDR="10.0.0.7"),
        "MASTER_ADDR 10.0.0.7 is on the network of eth0",
        "warn",
        num_nodes=2,
    ),
    Case(
        "ENV-GLOO-IFNAME-SYNTAX",
        env(IB, GLOO_SOCKET_IFNAME="^docker0,lo"),
        env(IB, GLOO_SOCKET_IFNAME="eth0"),
        "'^docker0' is NCCL's syntax",
    ),
    Case(
        "ENV-GLOO-IFNAME-SYNTAX", env(IB, GLOO_SOCKET_IFNAME="=eth0"), env(IB, GLOO_SOCKET_IFNAME="eth0,ib0"), "'=eth0'"
    ),
    Case(
        "ENV-GLOO-IFNAME-SYNTAX",
        env(IB, GLOO_SOCKET_IFNAME="10.0.0.11"),
        IB,
        "10.0.0.11 is an address, gloo wants a name",
    ),
    Case("ENV-GLOO-IFNAME-SYNTAX", env(IB, GLOO_SOCKET_IFNAME="eth"), IB, "there is no interface 'eth'"),
    Case(
        "ENV-GLOO-IFNAME-SYNTAX",
        env(IB, NCCL_SOCKET_IFNAME="10.0.0.11"),
        env(IB, NCCL_SOCKET_IFNAME="^lo"),
        "NCCL wants a name",
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("ENV-SOCKET-IFNAME", "rdma.netdevs", NOT_READ, "unknown"),
        ("ENV-SOCKET-IFNAME", "rdma.netdevs.0.up", NOT_READ, "unknown"),
        ("ENV-SOCKET-IFNAME", "rdma.netdevs.0.addresses", NOT_PROBED, "unknown"),
        ("ENV-SOCKET-IFNAME", "env.nccl_conf", Absent("permission"), "unknown"),
        ("ENV-GLOO-IFNAME-SYNTAX", "env.variables", NOT_READ, "unknown"),
        ("ENV-GLOO-IFNAME-SYNTAX", "rdma.netdevs", NOT_READ, "passed"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value), num_nodes=2).status == status


def test_gloo_name_without_a_list_of_interfaces_is_unknown() -> None:
    changed = edit(env(IB, GLOO_SOCKET_IFNAME="eth0"), "rdma.netdevs", NOT_READ)
    assert run("ENV-GLOO-IFNAME-SYNTAX", changed).status == "unknown"


@pytest.mark.parametrize("master", ["gpu-node-01", "10.0.0.7", "203.0.113.5", "not an address"])
def test_fabric_interfaces_may_be_on_another_network_than_the_master(master: str) -> None:
    assert run("ENV-SOCKET-IFNAME", env(IB, MASTER_ADDR=master), num_nodes=2).status == "passed"


def test_bridges_do_no_harm_on_one_node() -> None:
    assert run("ENV-SOCKET-IFNAME", node(LO, DOCKER)).status == "passed"
    assert run("ENV-SOCKET-IFNAME", env(IB, NCCL_SOCKET_IFNAME="lo")).status == "passed"


def test_addresses_that_are_none_are_left_out() -> None:
    assert (
        run("ENV-SOCKET-IFNAME", node(interface("eth0", "10.0.0.11/24", "nonsense/99")), num_nodes=2).status == "passed"
    )


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
