"""Views: which ports carry EP traffic, how fast they are, how far a NIC is from a GPU, what a version is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.capability import capabilities
from epctl.core.context import Context
from epctl.core.fact import Absent, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.host import PciFunction
from epctl.core.snapshot.rdma import NetDev, Port, RdmaDevice
from epctl.core.views import gin, nics, pcie, versions
from tests.support.cases import run
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, nic, roce_node

PORT = value_or(nic(0, "Ethernet", 200.0).ports, ())[0]
assert isinstance(PORT, Port)
ROCE_CHECKS = ("ROCE-GID-EMPTY", "ROCE-MTU-SMALL", "ATOMIC-LOST-CQE-HANG", "PERF-ROCE-PATH-SPREAD", "ROCE-GDAKI-TC")


def labels(found: tuple[nics.Nic, ...]) -> list[str]:
    return [entry.label for entry in found]


@pytest.mark.parametrize(
    ("spec", "device", "port", "through"),
    [
        ("mlx5", "mlx5_0", 1, True),
        ("mlx5_1", "mlx5_10", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("=mlx5_1,mlx5_10", "mlx5_10", 1, True),
        ("^mlx5_1", "mlx5_10", 1, False),
        ("^=mlx5_1", "mlx5_10", 1, True),
        ("^mlx5_1", "mlx5_0", 1, True),
        ("mlx5_0:2", "mlx5_0", 1, False),
        ("mlx5_0:2", "mlx5_0", 2, True),
        ("^mlx5_0:1", "mlx5_0", 2, True),
        ("mlx5_0, mlx5_3", "mlx5_3", 1, True),
        ("", "mlx5_0", 1, False),
    ],
)
def test_hca_list_is_read_as_nccl_does(spec: str, device: str, port: int, through: bool) -> None:
    assert nics.hca_filter(spec, device, port) is through


def test_a_slow_management_card_carries_no_ep_traffic_but_a_degraded_fabric_card_does() -> None:
    devices = ib_node().rdma.devices
    assert isinstance(devices, tuple)
    slow = msgspec.structs.replace(nic(9, "Ethernet", 100.0), name="mlx5_mgmt", ca_type="MT41692")
    node = edit(edit(ib_node(), "rdma.devices", (*devices, slow)), "rdma.devices.2.ports.0.rate_gbps", 200.0)
    assert labels(nics.fabric(Context(node))) == [f"mlx5_{i}" for i in range(8)]


def test_a_port_that_is_down_is_missed_only_beside_sisters_that_are_up() -> None:
    devices = ib_node().rdma.devices
    assert isinstance(devices, tuple)
    unused = msgspec.structs.replace(nic(9, "Ethernet", 40.0), name="mlx5_bf", ca_type="MT41692")
    node = edit(ib_node(), "rdma.devices", (*devices, unused))
    node = edit(edit(node, "rdma.devices.8.ports.0.state", "DOWN"), "rdma.devices.4.ports.0.state", "DOWN")
    assert labels(nics.fabric(Context(node))) == [f"mlx5_{i}" for i in range(8)]


def with_cards(node: Snapshot, *cards: RdmaDevice) -> Snapshot:
    assert isinstance(node.rdma.devices, tuple)
    return edit(node, "rdma.devices", (*node.rdma.devices, *cards))


BLUEFIELD = msgspec.structs.replace(
    nic(9, "Ethernet", 200.0), name="mlx5_bf", ca_type="MT41692", board_id="MT_0000001093", netdevs=("eno1",)
)
BRIDGES = tuple(
    msgspec.structs.replace(nic(i), name=f"mlx5_z{i}", pci=f"0000:0{i}:00.0", board_id="MT_0000001244")
    for i in range(4)
)
"""The ways to the NVSwitches of an HGX B200: InfiniBand ports of ConnectX-7, active at 400 Gb/s."""


@pytest.mark.parametrize("num_front", [1, 2])
def test_a_front_end_card_of_another_layer_carries_no_ep_traffic_however_fast(num_front: int) -> None:
    fronts = [msgspec.structs.replace(BLUEFIELD, name=f"mlx5_bf{i}") for i in range(num_front)]
    node = with_cards(ib_node(), *fronts)
    assert labels(nics.fabric(Context(node))) == [f"mlx5_{i}" for i in range(8)]
    faster = edit(edit(node, "rdma.devices.8.ports.0.rate_gbps", 400.0), "rdma.devices.0.ports.0.rate_gbps", 200.0)
    assert labels(nics.fabric(Context(faster))) == [f"mlx5_{i}" for i in range(8)]


def test_a_front_end_card_of_the_same_layer_is_known_by_the_default_route() -> None:
    node = with_cards(roce_node(), BLUEFIELD)
    assert labels(nics.fabric(Context(node))) == [f"mlx5_{i}" for i in range(8)]
    assert "mlx5_bf" in labels(nics.fabric(Context(edit(node, "rdma.netdevs.0.default_route", False))))


def test_one_flat_network_is_the_fabric_although_it_has_the_default_route() -> None:
    node = edit(roce_node(), "rdma.netdevs.*.default_route", True)
    assert len(nics.fabric(Context(node))) == 8


def test_as_many_fast_ports_of_either_layer_leave_it_open() -> None:
    node = edit(ib_node(), "rdma.devices", tuple(nic(i, "InfiniBand" if i < 4 else "Ethernet") for i in range(8)))
    assert len(nics.fabric(Context(node))) == 8


def test_a_mixed_node_has_no_finding_about_its_front_end_card() -> None:
    front = msgspec.structs.replace(BLUEFIELD, ports=(msgspec.structs.replace(PORT, active_mtu=1024, gids=()),))
    node = with_cards(ib_node(), front)
    found = {name: run(name, edit(node, "software.nccl_effective", "2.30.4")).status for name in ROCE_CHECKS}
    assert found == dict.fromkeys(ROCE_CHECKS, "skipped")


def test_the_way_to_the_nvswitches_is_no_network_adapter() -> None:
    marked = tuple(msgspec.structs.replace(device, manages_nvswitch=True) for device in BRIDGES)
    node = edit(with_cards(ib_node(), *marked), "rdma.devices.8.ports.0.state", "DOWN")
    names = [f"mlx5_{i}" for i in range(8)]
    assert [device.name for device in nics.devices(node)] == names
    assert labels(nics.ports(node)) == labels(nics.fabric(Context(node))) == names
    assert len(nics.every_device(node)) == 12


def test_efa_beside_the_way_to_the_nvswitches_is_efa_alone() -> None:
    """AWS P6-B200: NCCL_IB_DISABLE=1 is usual there."""
    marked = tuple(msgspec.structs.replace(device, manages_nvswitch=True) for device in BRIDGES)
    node = env(with_cards(efa_node(), *marked), NCCL_IB_DISABLE="1", NCCL_IB_HCA="mlx5_0")
    assert run("ENV-IB-DISABLED", node, ("efa",)).status == "passed"
    assert run("ENV-EFA-IBVARS", node, ("efa",)).status == "failed", "it is not skipped for a mix of adapters"


def test_without_root_the_way_to_the_nvswitches_is_told_by_its_layer() -> None:
    unread = tuple(msgspec.structs.replace(device, manages_nvswitch=Absent("permission")) for device in BRIDGES)
    assert len(nics.fabric(Context(with_cards(roce_node(), *unread)))) == 8


def test_the_hca_list_decides_when_it_is_set() -> None:
    assert labels(nics.fabric(Context(env(ib_node(), NCCL_IB_HCA="^mlx5_1")))) == [
        "mlx5_0",
        *(f"mlx5_{i}" for i in range(2, 8)),
    ]


def test_a_bond_counts_all_its_members() -> None:
    bond = NetDev("bond0", True, 9000, 400000, "bond", Absent("not_found"), (), False, ("eth0", "eth1"))
    node = edit(edit(roce_node(), "rdma.devices.0.ports.0.rate_gbps", 200.0), "rdma.devices.0.netdevs", ("bond0",))
    node = edit(edit(node, "rdma.devices.0.name", "mlx5_bond_0"), "rdma.netdevs.1", bond)
    assert nics.nominal_gbps(nics.ports(node)[0], node) == 400.0
    assert capabilities(Context(node)).gpus[0].rdma_nominal_gbps == 400.0


def test_a_cluster_uuid_of_an_hgx_board_joins_no_nodes() -> None:
    """HGX H100 reports one, too (meta-pytorch/torchcomms#1315): two of them are joined by the network alone."""
    hgx = edit(ib_node(), "gpu.gpus.*.fabric_cluster_uuid", "12" * 16)
    assert not gin.one_nvlink_domain(Context(hgx, num_nodes=2))
    assert gin.one_nvlink_domain(Context(hgx, num_nodes=1))
    assert gin.one_nvlink_domain(Context(gb200_node(), num_nodes=18))
    assert not gin.one_nvlink_domain(Context(gb200_node(), num_nodes=19))
    assert run("ENV-GIN-DISABLED", env(hgx, EP_DISABLE_GIN="1"), num_nodes=2).status == "failed"
    no_nic = edit(env(hgx, EP_DISABLE_GIN="1"), "rdma.devices", ())
    assert run("PROFILE-NO-RDMA", no_nic, num_nodes=2).status == "failed"
    assert run("GIN-TYPE-NONE", no_nic, num_nodes=2).severity == "fail"


def function(upstream: tuple[str, ...], root: str = "pci0000:00", numa: int = 0) -> PciFunction:
    return PciFunction("0000:01:00.0", "10de", "2330", "030200", upstream, root, numa)


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        (function(("r", "s", "a")), function(("r", "s", "a")), "PIX"),
        (function(("r", "s", "a")), function(("r", "s", "b")), "PIX"),
        (function(("r", "s", "a", "t", "x")), function(("r", "s", "b", "u", "y")), "PXB"),
        (function(("r", "s")), function(("q", "t")), "PHB"),
        (function(("r",)), function(("q",), "pci0000:40"), "NODE"),
        (function(("r",)), function(("q",), "pci0000:40", 1), "SYS"),
        (function(("r",)), function(("q",), "pci0000:40", -1), "SYS"),
    ],
)
def test_distance_has_the_words_of_nvidia_smi(one: PciFunction, other: PciFunction, path: str) -> None:
    assert pcie.distance(one, other) == path
    assert pcie.distance(other, one) == path


@pytest.mark.parametrize(
    ("text", "floor", "old"),
    [
        ("2.28.9", "2.32.3", True),
        ("2.32.3+cuda13.0", "2.32.3", False),
        ("13.0", "13.1", True),
        ("13.1.80", "13.1", False),
        ("2.11.0+cu130", "2.10", False),
        ("580.159.04", "580.95", False),
        ("v1.22.0-aws", "1.22", False),
        ("rubbish", "1.0", None),
    ],
)
def test_versions_compare_as_people_mean_them(text: str, floor: str, old: bool | None) -> None:
    assert versions.below(text, floor) is old


@given(st.integers(2, 9), st.integers(0, 99), st.integers(0, 99))
def test_nccl_version_codes_are_decoded(major: int, minor: int, patch: int) -> None:
    assert versions.nccl_version(major * 10000 + minor * 100 + patch) == f"{major}.{minor}.{patch}"


@given(st.text(max_size=40))
def test_any_text_can_be_asked_for_its_version(text: str) -> None:
    assert versions.below(text, "1.0") in (True, False, None)
