"""The RDMA area: what cards are, how they are set, and what drives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.probes.rdma import rdma
from epctl.probes.source import Output
from tests.support.fake_source import FakeSource
from tests.support.probed_rdma import (
    IB,
    ROOT_USER,
    absent,
    device,
    netdev,
    text,
    tree,
)

VPD = b"\x82\x1c\x00ConnectX-7 bridge\x90\x2a\x00SN\x0dMT2423600ABCDV3\x0bSMDL=SW_MNG\x78"


@pytest.mark.parametrize(
    ("vpd", "found"),
    [(VPD, True), (VPD.replace(b"SW_MNG", b"0"), False), (Absent("permission"), "permission"), (None, "not_found")],
)
def test_the_way_to_the_nvswitches_is_told_by_vital_product_data(vpd: bytes | Absent | None, found: object) -> None:
    files, targets = tree("h100_8ndr_and_bluefield_bond.txt")
    more: dict[str, Any] = dict(files)
    if vpd is not None:
        more[f"{IB}/mlx5_0/device/vpd"] = vpd
    fact = device(rdma(FakeSource(more, targets=targets)), "mlx5_0").manages_nvswitch
    assert (fact.absent if isinstance(fact, Absent) else fact) == found


@pytest.mark.parametrize(
    "change",
    [
        {"hca_type": "MT4131"},
        {"hca_type": "MT41692"},
        {"ports/1/link_layer": "Ethernet"},
    ],
)
def test_the_slow_vital_product_data_of_other_cards_are_left_alone(change: dict[str, str]) -> None:
    files, targets = tree("h100_8ndr_and_bluefield_bond.txt")
    more: dict[str, Any] = {**files, f"{IB}/mlx5_0/device/vpd": VPD}
    more |= {f"{IB}/mlx5_0/{name}": f"{value}\n" for name, value in change.items()}
    assert device(rdma(FakeSource(more, targets=targets)), "mlx5_0").manages_nvswitch is False
    targets[f"{IB}/mlx5_0/device/physfn"] = "/sys/devices/pci0000:15/0000:15:01.0/0000:1a:00.0"
    whole: dict[str, Any] = {**files, f"{IB}/mlx5_0/device/vpd": VPD}
    assert device(rdma(FakeSource(whole, targets=targets)), "mlx5_0").manages_nvswitch is False


def test_efa_devices_and_their_libraries() -> None:
    files = {
        f"{IB}/rdmap79s0/node_guid": "0000:0000:0000:0000",
        f"{IB}/rdmap79s0/ports/1/state": "4: ACTIVE",
        f"{IB}/rdmap79s0/ports/1/link_layer": "Unspecified",
        f"{IB}/rdmap79s0/ports/1/rate": "100 Gb/sec (4X EDR)",
        f"{IB}/rdmap79s0/device/vendor": "0x1d0f",
        f"{IB}/rdmap79s0/device/device": "0xefa2",
        "/sys/module/efa/version": "3.3.0g\n",
        "/etc/libibverbs.d/efa.driver": "driver efa\n",
        "/etc/libibverbs.d/mlx5.driver": "driver mlx5\n",
    }
    targets = {
        f"{IB}/rdmap79s0/device": "/sys/devices/pci0000:44/0000:44:00.0/0000:4f:00.0",
        f"{IB}/rdmap79s0/device/driver": "/sys/bus/pci/drivers/efa",
    }
    documents = {
        "libraries": {
            "libraries": {
                "libefa": {
                    "path": "/usr/lib64/libefa.so.1",
                    "versions": ["EFA_1.3"],
                    "symbols": ["efadv_create_comp_cntr"],
                },
                "libmlx5": {"error": "not_found", "detail": "the loader finds no libmlx5.so.1"},
            },
            "providers": {"efa": "/usr/lib64/libibverbs/libefa-rdmav34.so"},
        },
        "nodes": {
            "/dev/infiniband/uverbs10": {"rw": False},
            "/dev/infiniband/uverbs9": {"rw": True},
            "/dev/nvidia0": {"rw": True},
        },
    }
    commands = {("fi_info", "-p", "efa"): text("fi_info/p5en_direct_and_dgram.txt"), ("ibstat",): ""}
    area = rdma(FakeSource(files, targets=targets, documents=documents, commands=commands))
    card = device(area, "rdmap79s0")
    assert card.driver == "efa"
    assert absent(card.ca_type).absent == "not_found"
    assert absent(card.pci_atomic_mode).absent == "unsupported"
    assert area.efa_driver_version == "3.3.0g"
    assert area.providers == ("efa",)
    assert any("provider mlx5, its library is not found" in note for note in area.notes)
    assert isinstance(area.uverbs, tuple)
    assert [(node.path[-2:], node.read_write) for node in area.uverbs] == [("s9", True), ("10", False)]
    assert area.ibstat == "empty"
    expected = json.loads(text("fi_info/p5en_direct_and_dgram.json"))["facts"]["n_devices"]
    assert area.fi_efa_devices == expected
    by_name = {entry.name: entry for entry in area.libraries}
    assert by_name["libefa"].symbols == ("efadv_create_comp_cntr",)
    assert absent(by_name["libmlx5"].path).absent == "not_found"
    assert absent(by_name["libibverbs"].path).absent == "not_read"


def test_no_efa_endpoint_is_zero_devices() -> None:
    area = rdma(
        FakeSource(commands={("fi_info", "-p", "efa"): Output(b"", text("fi_info/error_no_data.txt").encode(), 61)})
    )
    assert area.fi_efa_devices == 0


def test_a_loaded_efa_module_without_a_version_says_so() -> None:
    area = rdma(FakeSource({"/sys/module/efa/refcnt": "3"}))
    assert absent(area.efa_driver_version).absent == "unsupported"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("MLNX_OFED_LINUX-24.10-2.1.8.0:\n", "MLNX_OFED_LINUX-24.10-2.1.8.0"),
        ("OFED-internal-25.04-0.6.1:\n", "OFED-internal-25.04-0.6.1"),
        ("\x00\xff", None),
    ],
)
def test_ofed_version(said: str, version: str | None) -> None:
    found = rdma(FakeSource(commands={("ofed_info", "-s"): said})).ofed_version
    assert found == version if version else absent(found).absent == "unparsable"


def test_virtual_function_and_subfunction_drivers() -> None:
    files = {f"{IB}/mlx5_3/node_guid": "0000:0000:0000:0000", f"{IB}/bnxt_re0/node_guid": "1111:1111:1111:1111"}
    targets = {
        f"{IB}/mlx5_3/device": "/sys/devices/pci0000:15/0000:15:01.0/0000:1a:01.2/mlx5_core.sf.2",
        f"{IB}/mlx5_3/device/driver": "/sys/bus/auxiliary/drivers/mlx5_core.sf",
        f"{IB}/mlx5_3/device/physfn": "/sys/devices/pci0000:15/0000:15:01.0/0000:1a:00.0",
        f"{IB}/bnxt_re0/device/driver": "/sys/bus/pci/drivers/bnxt_en",
    }
    area = rdma(FakeSource({**files, **ROOT_USER}, targets=targets))
    card = device(area, "mlx5_3")
    assert (card.driver, card.pci, card.physfn) == ("mlx5_core", "0000:1a:01.2", "0000:1a:00.0")
    assert card.node_guid == "0000:0000:0000:0000"
    assert absent(card.pci_atomic_mode).absent == "unsupported"
    assert device(area, "bnxt_re0").driver == "bnxt_re"


@pytest.mark.parametrize(
    ("content", "tclass"),
    [("Global tclass=106\n", 106), ("", 0), ("tclass=32 src_ip=10.0.0.1\n", 0), ("what?", "unparsable")],
)
def test_global_traffic_class(content: str, tclass: int | str) -> None:
    files = {f"{IB}/mlx5_0/tc/1/traffic_class": content, f"{IB}/mlx5_0/node_guid": "1"}
    found = device(rdma(FakeSource(files)), "mlx5_0").global_tclass
    assert found == tclass if isinstance(tclass, int) else absent(found).absent == tclass


QUERY = ("mlxconfig", "-d", "0000:1a:00.0", "-e", "q")
BOTH = (*QUERY, "PCI_ATOMIC_MODE", "ADVANCED_PCI_SETTINGS")


def _mlx5(
    commands: dict[tuple[str, ...], Any], status: str = ROOT_USER["/proc/self/status"]
) -> tuple[RdmaDevice, FakeSource]:
    source = FakeSource(
        {f"{IB}/mlx5_0/node_guid": "1", "/proc/self/status": status},
        targets={
            f"{IB}/mlx5_0/device": "/sys/devices/pci0000:15/0000:15:01.0/0000:1a:00.0",
            f"{IB}/mlx5_0/device/driver": "/sys/bus/pci/drivers/mlx5_core",
        },
        commands=commands,
    )
    return device(rdma(source), "mlx5_0"), source


def test_atomic_mode_is_the_current_value() -> None:
    said = (
        "\nDevice #1:\n----------\n\nDevice type:        ConnectX7\nName:               MCX75310AAS-NEA_Ax\n"
        "Device:             0000:1a:00.0\n\n"
        "Configurations:                                     Default              Current              Next Boot\n"
        "*       PCI_ATOMIC_MODE                             X_DISABLED(0)        X_DISABLED(0)        X_ENABLED(4)\n"
        "        ADVANCED_PCI_SETTINGS                       False(0)             True(1)              True(1)\n"
    )
    card, _ = _mlx5({BOTH: said})
    assert (card.pci_atomic_mode, card.advanced_pci_settings) == (0, 1)


def test_a_setting_that_the_firmware_hides_does_not_hide_the_other() -> None:
    error = Output(b"-E- The Device doesn't support PCI_ATOMIC_MODE parameter\n", b"", 3)
    said = (
        "\nDevice #1:\n----------\n\nDevice type:        ConnectX7\nDevice:             0000:1a:00.0\n\n"
        "Configurations:                                     Next Boot\n        ADVANCED_PCI_SETTINGS                       False(0)\n"
    )
    card, _ = _mlx5({BOTH: error, (*QUERY, "ADVANCED_PCI_SETTINGS"): said})
    assert absent(card.pci_atomic_mode).absent == "unsupported"
    assert card.advanced_pci_settings == 0


def test_mlxconfig_is_not_run_without_root_and_its_errors_are_reasons() -> None:
    card, source = _mlx5({BOTH: "never"}, status="Uid:\t1000\t1000\t1000\t1000\n")
    assert absent(card.pci_atomic_mode).absent == "permission"
    assert not any(argv[0] == "mlxconfig" for argv in source.asked)
    card, source = _mlx5({BOTH: text("mlxconfig/error_failed_to_open.txt")})
    assert absent(card.pci_atomic_mode).absent == "failed"
    card, source = _mlx5({})
    assert absent(card.pci_atomic_mode).absent == "tool_missing"
    assert {argv[0] for argv in source.asked if "config" in argv[0]} == {"mlxconfig", "mstconfig"}


def test_lag_ports_and_speed_of_a_bonded_card() -> None:
    net = "/sys/class/net"
    pci = "/sys/devices/pci0000:15/0000:15:01.0"
    files = {
        f"{IB}/mlx5_bond_0/ports/1/state": "4: ACTIVE",
        f"{IB}/mlx5_bond_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        f"{IB}/mlx5_bond_0/ports/1/link_layer": "Ethernet",
        f"{IB}/mlx5_bond_0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a4d:0903",
        f"{IB}/mlx5_bond_0/ports/1/gid_attrs/types/3": "RoCE v2",
        f"{IB}/mlx5_bond_0/ports/1/gid_attrs/ndevs/3": "bond0",
        f"{IB}/mlx5_bond_0/device/net/p0/mtu": "9000",
        f"{net}/bond0/bonding/slaves": "p0 p1\n",
        f"{net}/bond0/mtu": "9000",
        f"{net}/bond0/speed": "400000",
        f"{net}/bond0/operstate": "up",
        f"{net}/bonding_masters": "bond0\n",
        f"{net}/p0/mtu": "9000",
        f"{net}/p1/mtu": "9000",
    }
    targets = {
        f"{IB}/mlx5_bond_0/device": f"{pci}/0000:1a:00.0",
        f"{IB}/mlx5_bond_0/device/driver": "/sys/bus/pci/drivers/mlx5_core",
        f"{net}/p0/device": f"{pci}/0000:1a:00.0",
        f"{net}/p1/device": f"{pci}/0000:1a:00.1",
    }
    area = rdma(FakeSource(files, targets=targets))
    card = device(area, "mlx5_bond_0")
    assert card.num_lag_ports == 2
    assert card.netdevs == ("p0", "bond0")
    bond = netdev(area, "bond0")
    assert (bond.kind, bond.speed_mbps, bond.bond_members, bond.up) == ("bond", 400000, ("p0", "p1"), True)
    assert isinstance(area.netdevs, tuple)
    assert absent(
        device(
            rdma(FakeSource({**files, f"{net}/bond0/bonding/slaves": ""}, targets=targets)), "mlx5_bond_0"
        ).num_lag_ports
    )
    assert "bonding_masters" not in {entry.name for entry in area.netdevs}
