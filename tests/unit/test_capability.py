"""Bandwidth and atomics that a node offers to EP: cards and their slots, shares of GPUs, generations of adapters."""

from __future__ import annotations

import msgspec
import pytest

from epctl.core.capability import capabilities
from epctl.core.context import Context
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import RdmaDevice
from tests.support.nodes import edit, efa_node, ib_node, nic


def with_cards(node: Snapshot, *cards: RdmaDevice) -> Snapshot:
    assert isinstance(node.rdma.devices, tuple)
    return edit(node, "rdma.devices", (*node.rdma.devices, *cards))


def test_two_ports_of_one_card_add_up_and_share_its_slot() -> None:
    port = nic(0).ports
    assert isinstance(port, tuple)
    node = edit(ib_node(), "rdma.devices.0.ports", (port[0], msgspec.structs.replace(port[0], port=2)))
    links = capabilities(Context(node)).gpus[0]
    assert links.nics == ("mlx5_0", "mlx5_0/2")
    assert links.rdma_nominal_gbps == 800.0
    assert links.rdma_usable_gbps == round(32 * 16 * 128 / 130, 3)


def dual_port(node: Snapshot) -> Snapshot:
    """Card 0 as two PCI functions with an RDMA device each, as mlx5 makes them."""
    second = msgspec.structs.replace(nic(0), name="mlx5_0b", pci="0000:19:00.1")
    node = with_cards(node, second)
    functions = node.pcie.functions
    assert isinstance(functions, tuple)
    twin = next(entry for entry in functions if entry.pci == "0000:19:00.0")
    return edit(node, "pcie.functions", (*functions, msgspec.structs.replace(twin, pci="0000:19:00.1")))


def test_two_functions_of_one_card_share_its_slot() -> None:
    links = capabilities(Context(dual_port(ib_node()))).gpus[0]
    assert links.nics == ("mlx5_0", "mlx5_0b")
    assert (links.rdma_nominal_gbps, links.rdma_usable_gbps) == (800.0, round(32 * 16 * 128 / 130, 3))


def test_the_slots_of_a_virtual_machine_limit_nothing() -> None:
    links = capabilities(Context(edit(dual_port(ib_node()), "host.virtualization", "kvm"))).gpus[0]
    assert links.rdma_usable_gbps == 800.0


@pytest.mark.parametrize(
    ("gts", "width", "usable"),
    [(2.5, 16, 32.0), (5.0, 8, 32.0), (8.0, 16, 126.031), (16.0, 16, 252.062), (32.0, 8, 252.062), (64.0, 8, 472.0)],
)
def test_each_generation_of_pcie_has_its_encoding(gts: float, width: int, usable: float) -> None:
    node = edit(edit(dual_port(ib_node()), "pcie.functions.*.speed_gts", gts), "pcie.functions.*.width", width)
    assert capabilities(Context(node)).gpus[0].rdma_usable_gbps == usable


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
    assert found[1].nvlinks_active == 17
    assert found[1].nvlink_gbs == pytest.approx(17 * 26.562)
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


def test_an_mlx5_adapter_of_unknown_type_is_not_called_plain() -> None:
    node = edit(ib_node(), "rdma.devices.*.ca_type", Absent("not_found"))
    assert isinstance(capabilities(Context(node)).atomics, Absent)
    assert capabilities(Context(edit(node, "rdma.devices.*.driver", "bnxt_re"))).atomics == "plain"
    assert capabilities(Context(edit(node, "rdma.devices.*.atomic_cap", "ATOMIC_NONE"))).atomics == "none"


def test_the_pci_atomic_mode_is_told_beside_the_kind_of_atomics() -> None:
    node = ib_node()
    assert capabilities(Context(node)).pci_atomic_mode == "PCI_ATOMIC_MODE 4"
    mixed = edit(
        edit(node, "rdma.devices.2.pci_atomic_mode", 0), "rdma.devices.3.pci_atomic_mode", Absent("permission")
    )
    told = capabilities(Context(mixed)).pci_atomic_mode
    assert told.startswith("PCI_ATOMIC_MODE 0 (mlx5_2), 4 (mlx5_0 mlx5_1 mlx5_4")
    assert (
        capabilities(Context(edit(node, "rdma.devices.*.pci_atomic_mode", Absent("permission")))).pci_atomic_mode == ""
    )


def test_the_weakest_adapter_in_use_decides_about_atomics() -> None:
    node = edit(edit(ib_node(), "rdma.devices.*.ca_type", "MT4131"), "rdma.devices.3.ca_type", "MT4129")
    assert capabilities(Context(node)).atomics == "plain"
    assert capabilities(Context(efa_node())).atomics == "none"
