"""Checks of RDMA ports: state, rate, subnet manager, losses."""

from __future__ import annotations

import msgspec
import pytest

from epctl.checks import rdma
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import LogLine
from epctl.core.snapshot.rdma import NetDev, RdmaDevice
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, nic, roce_node

NODE = ib_node()
ROCE = roce_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == rdma.__name__}


def port(node: Snapshot, i: int, **facts: object) -> Snapshot:
    for name, value in facts.items():
        node = edit(node, f"rdma.devices.{i}.ports.0.{name}", value)
    return node


def down(node: Snapshot, i: int) -> Snapshot:
    return port(node, i, state="DOWN", phys_state="Polling")


def card(name: str, pci: str, rate: float = 400.0, layer: str = "InfiniBand", **facts: object) -> RdmaDevice:
    """A further adapter of ConnectX-7."""
    made = msgspec.structs.replace(nic(0, layer, rate), name=name, pci=pci, netdevs=())
    return msgspec.structs.replace(made, **facts)


def with_cards(node: Snapshot, *cards: RdmaDevice) -> Snapshot:
    assert isinstance(node.rdma.devices, tuple)
    return edit(node, "rdma.devices", node.rdma.devices + cards)


def inactive(device: RdmaDevice) -> RdmaDevice:
    assert isinstance(device.ports, tuple)
    return msgspec.structs.replace(
        device, ports=(msgspec.structs.replace(device.ports[0], state="DOWN", phys_state="Disabled"),)
    )


STORAGE = card("mlx5_8", "0000:a9:00.0", 100.0, board_id="MT_0000000834")
MANAGEMENT = card("mlx5_8", "0000:02:00.0", 25.0, "Ethernet", ca_type="MT4127", board_id="MT_0000000575")
SECOND_PORTS = tuple(inactive(card(f"mlx5_{8 + i}", f"0000:{0x19 + 0x10 * i:02x}:00.1")) for i in range(8))
"""Port 2 of every card of the fabric, free."""
ONE_SECOND_PORT_IN_USE = (card("mlx5_8", "0000:19:00.1"), *SECOND_PORTS[1:])


def bond(speed_mbps: object = 400000, rate: float = 200.0) -> Snapshot:
    node = edit(ROCE, "rdma.devices.0.name", "mlx5_bond_0")
    node = edit(node, "rdma.devices.0.netdevs", ("eth0", "bond0"))
    node = edit(port(node, 0, rate_gbps=rate), "rdma.devices.0.num_lag_ports", 2)
    members = edit(edit(node, "rdma.netdevs.1.speed_mbps", 200000), "rdma.netdevs.1.name", "eth0").rdma.netdevs
    assert isinstance(members, tuple)
    return edit(node, "rdma.netdevs", (*members, NetDev("bond0", True, 9000, speed_mbps, "bond")))  # type: ignore[arg-type]


LOST = (("local_ack_timeout_err", 40), ("packet_seq_err", 5000))
TRAFFIC = (("port_xmit_packets", 60_000_000), ("port_rcv_packets", 40_000_000))
MUCH = (("port_xmit_packets", 10**12), ("port_rcv_packets", 10**12))
HOT = LogLine(
    "mlx5_module_hot", "mlx5_core 0000:19:00.0: Port module event[error]: module 0, Cable error, High Temperature"
)

CASES = [
    Case("NIC-PORT-NOT-ACTIVE", down(NODE, 3), NODE, "mlx5_3: DOWN, Polling (sysfs)"),
    Case("NIC-PORT-NOT-ACTIVE", port(NODE, 5, state="INIT"), NODE, "mlx5_5: INIT, LinkUp"),
    Case("NIC-PORT-NOT-ACTIVE", down(ROCE, 0), ROCE, "mlx5_0: DOWN"),
    Case("NIC-PORT-NOT-ACTIVE", down(NODE, 3), env(down(NODE, 3), NCCL_IB_HCA="^=mlx5_3"), "mlx5_3"),
    Case("NIC-PORT-NOT-ACTIVE", env(NODE, NCCL_IB_HCA="ib7"), NODE, "lets no port through; there are mlx5_0, mlx5_1"),
    Case("NIC-PORT-NOT-ACTIVE", down(NODE, 0), with_cards(NODE, inactive(STORAGE)), "mlx5_0"),
    Case("NIC-PORT-NOT-ACTIVE", down(NODE, 0), with_cards(NODE, inactive(MANAGEMENT)), "mlx5_0"),
    Case(
        "NIC-PORT-NOT-ACTIVE",
        with_cards(NODE, *ONE_SECOND_PORT_IN_USE),
        with_cards(NODE, *SECOND_PORTS),
        "mlx5_9: DOWN",
    ),
    Case(
        "NIC-PORT-NOT-ACTIVE",
        env(with_cards(NODE, *SECOND_PORTS), NCCL_IB_HCA="mlx5"),
        with_cards(NODE, inactive(card("mlx5_9", "0000:19:00.2", physfn="0000:19:00.0"))),
        "mlx5_8: DOWN",
    ),
    Case(
        "NIC-ACTIVE-RATE",
        port(NODE, 6, rate_gbps=200.0),
        NODE,
        "mlx5_6: 200 Gb/s (sysfs), fastest sister port 400 Gb/s",
    ),
    Case("NIC-ACTIVE-RATE", port(NODE, 6, rate_gbps=200.0), NODE, "this adapter can do 400 Gb/s"),
    Case(
        "NIC-ACTIVE-RATE",
        port(NODE, 6, rate_gbps=100.0, width_lanes=1),  # so slow that it is no fabric port any more
        with_cards(NODE, STORAGE),
        "mlx5_6: 100 Gb/s on 1 lane (sysfs)",
    ),
    Case("NIC-ACTIVE-RATE", port(ROCE, 0, rate_gbps=200.0), with_cards(ROCE, MANAGEMENT), "mlx5_0: 200 Gb/s"),
    Case(
        "NIC-ACTIVE-RATE",
        port(edit(ROCE, "rdma.devices.*.ca_type", Absent("not_found")), 2, rate_gbps=100.0),
        port(ROCE, 0, width_lanes=2),
        "mlx5_2: 100 Gb/s (sysfs), fastest sister port 400",
    ),
    Case(
        "NIC-ACTIVE-RATE",
        env(with_cards(NODE, card("mlx5_8", "0000:a9:00.0", 200.0, ca_type="MT4123")), NCCL_IB_HCA="mlx5"),
        with_cards(NODE, card("mlx5_8", "0000:a9:00.0", 200.0, ca_type="MT4123")),
        "mlx5_8: 200 Gb/s",
        "warn",
    ),
    Case("NIC-ACTIVE-RATE", edit(NODE, "rdma.devices.*.ports.0.width_lanes", 1), NODE, "on 1 lane", "warn"),
    Case(
        "NIC-ACTIVE-RATE",
        port(NODE, 1, rate_gbps=200.0),
        edit(NODE, "rdma.devices.*.ports.0.rate_gbps", 200.0),
        "mlx5_1",
    ),
    Case("NIC-ACTIVE-RATE", port(efa_node(), 1, rate_gbps=50.0), efa_node(), "rdmap1s0: 50 Gb/s"),
    Case("IB-NO-SM", port(NODE, 2, state="INIT"), NODE, "mlx5_2: the link is up, the port stays in INIT"),
    Case("IB-NO-SM", port(NODE, 2, sm_lid=0), NODE, "mlx5_2: ACTIVE, LID of the subnet manager 0"),
    Case("NIC-LAG-HALF-RATE", bond(), ROCE, "mlx5_bond_0: verbs rate 200 Gb/s (sysfs), its interface runs at 400 Gb/s"),
    Case("NIC-LAG-HALF-RATE", edit(bond(), "rdma.netdevs", ()), bond(400000, 400.0), "its interface tells no speed"),
    Case("NIC-MODULE-HOT", edit(NODE, "gpu.driver.kernel_log", (HOT, HOT)), NODE, "High Temperature"),
    Case(
        "NIC-RETRANS",
        port(ROCE, 4, hw_counters=LOST, counters=TRAFFIC),
        ROCE,
        "mlx5_4: local_ack_timeout_err 40, packet_seq_err",
    ),
    Case(
        "NIC-RETRANS",
        port(NODE, 4, hw_counters=LOST, counters=TRAFFIC),
        port(NODE, 4, hw_counters=LOST, counters=MUCH),
        "5.0e-05",
    ),
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


def test_a_slow_adapter_of_another_kind_is_no_alarm() -> None:
    assert run("NIC-ACTIVE-RATE", with_cards(NODE, STORAGE, MANAGEMENT)).status == "passed"


def test_ports_without_a_link_have_no_subnet_manager_to_miss() -> None:
    assert run("IB-NO-SM", edit(down(NODE, 2), "rdma.devices.2.ports.0.sm_lid", 0)).status == "passed"


def test_the_rate_of_a_bond_does_not_matter_to_libraries_that_do_not_ask_for_it() -> None:
    assert run("NIC-LAG-HALF-RATE", bond(), ("nccl-ep",)).status == "skipped"


def test_few_losses_are_a_flap() -> None:
    lost = (("packet_seq_err", rdma.MIN_LOSSES - 1),)
    assert run("NIC-RETRANS", port(NODE, 0, hw_counters=lost, counters=(("port_xmit_packets", 1),))).status == "passed"


def test_losses_without_a_count_of_packets_are_unknown() -> None:
    assert run("NIC-RETRANS", port(NODE, 0, hw_counters=LOST)).status == "unknown"
    assert run("NIC-RETRANS", port(NODE, 0, hw_counters=())).status == "unknown"


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("NIC-PORT-NOT-ACTIVE", "rdma.devices.1.ports.0.state"),
        ("NIC-ACTIVE-RATE", "rdma.devices.1.ports.0.rate_gbps"),
        ("NIC-LAG-HALF-RATE", "rdma.devices.1.ports.0.rate_gbps"),
        ("IB-NO-SM", "rdma.devices.1.ports.0.sm_lid"),
        ("IB-NO-SM", "rdma.devices.1.ports.0.state"),
        ("NIC-RETRANS", "rdma.devices.1.ports.0.hw_counters"),
        ("NIC-MODULE-HOT", "gpu.driver.kernel_log"),
        ("NIC-PORT-NOT-ACTIVE", "rdma.devices"),
        ("NIC-ACTIVE-RATE", "env.variables"),
    ],
)
def test_a_fact_that_nobody_read_leaves_the_check_unknown(name: str, fact: str) -> None:
    assert run(name, edit(NODE, fact, Absent("permission"))).status == "unknown"


def test_a_port_that_is_down_has_no_rate() -> None:
    assert run("NIC-ACTIVE-RATE", port(down(NODE, 3), 3, rate_gbps=10.0)).status == "passed"
