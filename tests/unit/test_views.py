"""Views: which ports carry EP traffic, how fast they are, how far a NIC is from a GPU, what a version is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.capability import capabilities
from epctl.core.context import Context
from epctl.core.fact import Absent
from epctl.core.snapshot.host import PciFunction
from epctl.core.snapshot.rdma import NetDev
from epctl.core.views import nics, pcie, versions
from tests.support.nodes import edit, efa_node, env, ib_node, nic, roce_node


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


def test_two_ports_of_one_card_add_up_and_share_its_slot() -> None:
    port = nic(0).ports
    assert isinstance(port, tuple)
    node = edit(ib_node(), "rdma.devices.0.ports", (port[0], msgspec.structs.replace(port[0], port=2)))
    links = capabilities(Context(node)).gpus[0]
    assert links.nics == ("mlx5_0", "mlx5_0/2")
    assert links.rdma_nominal_gbps == 800.0
    assert links.rdma_usable_gbps == round(32 * 16 * 128 / 130, 3)


def test_gpus_that_share_a_nic_get_their_share_of_it() -> None:
    devices = ib_node().rdma.devices
    assert isinstance(devices, tuple)
    node = edit(ib_node(), "rdma.devices", (devices[0], devices[4]))
    found = capabilities(Context(node)).gpus
    assert [gpu.nics for gpu in found] == [("mlx5_0",)] * 4 + [("mlx5_4",)] * 4
    assert [gpu.nic_path for gpu in found] == ["PIX", "NODE", "NODE", "NODE"] * 2
    assert {gpu.rdma_nominal_gbps for gpu in found} == {100.0}


def test_a_port_that_is_down_is_nominal_but_not_usable() -> None:
    found = capabilities(Context(edit(ib_node(), "rdma.devices.3.ports.0.state", "DOWN"))).gpus[3]
    assert (found.rdma_nominal_gbps, found.rdma_usable_gbps) == (400.0, 0.0)


def test_nvlink_bandwidth_is_that_of_the_active_links() -> None:
    found = capabilities(Context(edit(ib_node(), "gpu.gpus.1.links.17.active", False))).gpus
    assert found[0].nvlink_gbs == pytest.approx(18 * 26.562)
    assert (found[1].nvlinks_active, found[1].nvlink_gbs) == (17, pytest.approx(17 * 26.562))
    assert found[1].nvlink_states == "|" * 17 + "."


@pytest.mark.parametrize(
    ("ca_type", "cap", "expected"),
    [
        ("MT4129", "ATOMIC_HCA", "plain"),
        ("MT4131", "ATOMIC_HCA", "fast"),
        ("MT4133", "ATOMIC_GLOB", "fast"),
        ("MT41692", "ATOMIC_HCA", "plain"),
        ("MT4131", "ATOMIC_NONE", "none"),
    ],
)
def test_atomics_are_fast_on_connectx_8_or_newer(ca_type: str, cap: str, expected: str) -> None:
    node = edit(edit(ib_node(), "rdma.devices.*.ca_type", ca_type), "rdma.devices.*.atomic_cap", cap)
    assert capabilities(Context(node)).atomics == expected


def test_the_weakest_adapter_in_use_decides_about_atomics() -> None:
    node = edit(edit(ib_node(), "rdma.devices.*.ca_type", "MT4131"), "rdma.devices.3.ca_type", "MT4129")
    assert capabilities(Context(node)).atomics == "plain"
    assert capabilities(Context(efa_node())).atomics == "none"


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
