"""The RDMA area: sysfs first, then the tools; nothing is made up where both are silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import NetDev, RdmaArea, RdmaDevice
from epctl.probes.rdma import rdma
from epctl.probes.source import Output, RecordedSource, Recording
from tests.support.damage import damaged_source, json_values
from tests.support.fake_source import FakeSource

READERS = Path(__file__).parent.parent / "data" / "readers"
IB = "/sys/class/infiniband"
ROOT_USER = {"/proc/self/status": "Name:\tpython\nUid:\t0\t0\t0\t0\n"}


def text(name: str) -> str:
    return (READERS / name).read_text()


def tree(fixture: str) -> tuple[dict[str, str], dict[str, str]]:
    """Files and links of a recorded sysfs tree."""
    files: dict[str, str] = {}
    targets: dict[str, str] = {}
    for line in text(f"sysfs_ib/{fixture}").splitlines():
        if " -> " in line:
            path, target = line.split(" -> ")
            targets[path] = f"/sys/devices/pci0000:15/0000:15:01.0/{target.rsplit('/', 1)[1]}"
        elif ":" in line:
            path, value = line.split(":", 1)
            files[path] = value + "\n"
    for path in list(targets):
        targets[f"{path}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
    return files, targets


def device(area: RdmaArea, name: str) -> RdmaDevice:
    assert isinstance(area.devices, tuple)
    return next(entry for entry in area.devices if entry.name == name)


def netdev(area: RdmaArea, name: str) -> NetDev:
    assert isinstance(area.netdevs, tuple)
    return next(entry for entry in area.netdevs if entry.name == name)


def absent(fact: Any) -> Absent:  # noqa: ANN401
    assert isinstance(fact, Absent), fact
    return fact


def test_sysfs_gives_devices_ports_and_counters() -> None:
    files, targets = tree("h100_8ndr_and_bluefield_bond.txt")
    area = rdma(FakeSource(files, targets=targets))
    card = device(area, "mlx5_0")
    assert (card.driver, card.pci, card.numa_node, card.ca_type, card.firmware) == (
        "mlx5_core",
        "0000:1a:00.0",
        0,
        "MT4129",
        "28.41.1000",
    )
    assert card.node_guid == "9c63:c003:0012:c074"
    assert absent(card.physfn).absent == "not_found"
    assert isinstance(card.ports, tuple)
    port = card.ports[0]
    assert (port.state, port.phys_state, port.rate_gbps, port.width_lanes, port.link_layer, port.lid, port.sm_lid) == (
        "ACTIVE",
        "LinkUp",
        400.0,
        4,
        "InfiniBand",
        80,
        1,
    )
    assert isinstance(port.counters, tuple)
    assert dict(port.counters)["port_xmit_wait"] == 18731
    assert absent(port.active_mtu).absent == "tool_missing", "sysfs does not tell it, ibv_devinfo is not there"
    assert card.global_tclass == 0, "an inbox driver has no such file: none is set"


def test_gid_table_keeps_only_entries_that_are_set() -> None:
    files, targets = tree("roce_gid_table.txt")
    area = rdma(FakeSource(files, targets=targets))
    ports = device(area, "mlx5_2").ports
    assert isinstance(ports, tuple)
    gids = ports[0].gids
    assert isinstance(gids, tuple)
    assert [(gid.index, gid.type, gid.netdev) for gid in gids] == [
        (0, "IB/RoCE v1", "ens3f0np0"),
        (1, "RoCE v2", "ens3f0np0"),
        (3, "RoCE v2", "ens3f0np0"),
    ]


def test_a_gid_of_infiniband_belongs_to_no_interface() -> None:
    row = f"{IB}/mlx5_0/ports/1/gid_attrs/ndevs/0"
    files: dict[str, str | bytes | Absent] = {
        f"{IB}/mlx5_0/ports/1/gids/0": "fe80:" + "0000:" * 6 + "0001",
        row: Absent("failed", f"{row}: Invalid argument"),
    }
    ports = device(rdma(FakeSource(files)), "mlx5_0").ports
    assert isinstance(ports, tuple)
    assert isinstance(ports[0].gids, tuple)
    assert absent(ports[0].gids[0].netdev).absent == "not_found"


def test_a_full_gid_table_is_not_read_to_its_end() -> None:
    files = {f"{IB}/mlx5_0/ports/1/gids/{i}": "0000:" * 7 + "0000" for i in range(256)}
    files[f"{IB}/mlx5_0/ports/1/gids/20"] = "fe80:" + "0000:" * 6 + "0001"

    class Counting(FakeSource):
        reads = 0

        def read(self, path: str) -> bytes | Absent:
            self.reads += "/gids/" in path
            return super().read(path)

    source = Counting(files)
    ports = device(rdma(source), "mlx5_0").ports
    assert isinstance(ports, tuple)
    assert isinstance(ports[0].gids, tuple)
    assert [gid.index for gid in ports[0].gids] == [20]
    assert source.reads == 20 + 1 + 32


def test_a_port_with_an_empty_gid_table_has_none_and_one_without_the_folder_is_unknown() -> None:
    files = {f"{IB}/mlx5_0/ports/1/gids/0": "0000:" * 7 + "0000", f"{IB}/mlx5_1/ports/1/state": "4: ACTIVE"}
    area = rdma(FakeSource(files))
    first, second = device(area, "mlx5_0").ports, device(area, "mlx5_1").ports
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert first[0].gids == ()
    assert absent(second[0].gids).absent == "not_found"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [({"/sys/class/net/lo/mtu": "65536"}, ()), ({}, "not_found")],
    ids=["no RDMA class", "no /sys"],
)
def test_no_device_is_a_fact_only_where_sysfs_can_be_read(files: dict[str, str], wanted: Any) -> None:  # noqa: ANN401
    found = rdma(FakeSource(files)).devices
    assert found == wanted if isinstance(wanted, tuple) else absent(found).absent == wanted


def test_what_a_recording_lacks_is_not_read() -> None:
    area = rdma(RecordedSource(Recording()))
    for fact in (area.devices, area.netdevs, area.uverbs, area.providers, area.ibstat, area.fi_efa_devices):
        assert absent(fact).absent == "not_read"


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


def test_verbs_text_adds_atomics_and_mtu_to_the_devices_of_sysfs() -> None:
    files, targets = tree("h100_8ndr_and_bluefield_bond.txt")
    source = FakeSource(
        files, targets=targets, commands={("ibv_devinfo", "-v"): text("ibv_devinfo/cx7_ndr_ib_verbose.txt")}
    )
    area = rdma(source)
    card = device(area, "mlx5_0")
    assert (card.atomic_cap, card.max_qp, card.max_qp_rd_atom) == ("ATOMIC_HCA", 131072, 16)
    assert isinstance(card.ports, tuple)
    assert (card.ports[0].active_mtu, card.ports[0].max_mtu) == (4096, 4096)
    assert card.firmware == "28.41.1000", "sysfs goes first"


def test_sources_that_disagree_are_noted_and_sysfs_wins() -> None:
    files, targets = tree("h100_8ndr_and_bluefield_bond.txt")
    said = text("ibstat/h100_8ndr_4eth.txt").replace("State: Active", "State: Down")
    area = rdma(FakeSource(files, targets=targets, commands={("ibstat",): said}))
    ports = device(area, "mlx5_0").ports
    assert isinstance(ports, tuple)
    assert ports[0].state == "ACTIVE"
    assert "mlx5_0/1: state is ACTIVE in sysfs, DOWN in a tool's text; sysfs is taken" in area.notes


def test_devices_come_from_texts_alone() -> None:
    """A support case with nothing but saved tool outputs."""
    recording = Recording(
        commands={
            ("ibv_devinfo", "-v"): Output(text("ibv_devinfo/cx6dx_roce_verbose_2x50.txt").encode()),
            ("ibstat",): Output(text("ibstat/h100_8ndr_4eth.txt").encode()),
            ("rdma", "link"): Output(b"link rocep1s0/1 state ACTIVE physical_state LINK_UP netdev ens1np0 \n"),
            ("show_gids",): Output(text("show_gids/roce_two_devices.txt").encode()),
        }
    )
    area = rdma(RecordedSource(recording))
    assert isinstance(area.devices, tuple)
    verbs = next(entry for entry in area.devices if entry.max_qp == 131072)
    assert verbs.atomic_cap == "ATOMIC_HCA"
    assert verbs.driver == "mlx5_core"
    card = device(area, "mlx5_0")
    assert card.ca_type == "MT4125", "the two texts differ: the verbs library goes before ibstat"
    link = device(area, "rocep1s0")
    assert link.netdevs == ("ens1np0",)
    assert isinstance(link.ports, tuple)
    assert (link.ports[0].state, link.ports[0].phys_state) == ("ACTIVE", "LinkUp")
    assert area.ibstat == "ok"
    assert absent(card.pci).absent == "not_read"


def test_gids_of_show_gids_get_the_words_of_sysfs() -> None:
    recording = Recording(commands={("show_gids",): Output(text("show_gids/roce_two_devices.txt").encode())})
    ports = device(rdma(RecordedSource(recording)), "mlx5_0").ports
    assert isinstance(ports, tuple)
    gids = ports[0].gids
    assert isinstance(gids, tuple)
    assert [(gid.index, gid.type) for gid in gids] == [
        (0, "IB/RoCE v1"),
        (1, "RoCE v2"),
        (2, "IB/RoCE v1"),
        (3, "RoCE v2"),
    ]
    assert gids[3].gid == "0000:0000:0000:0000:0000:ffff:0a4d:040b"


@pytest.mark.parametrize("fixture", sorted(path.name for path in (READERS / "ibstat").glob("*.txt")))
def test_every_ibstat_text_gives_known_states_and_its_status(fixture: str) -> None:
    expected = json.loads((READERS / "ibstat" / fixture).with_suffix(".json").read_text())
    recording = Recording(commands={("ibstat",): Output((READERS / "ibstat" / fixture).read_bytes())})
    area = rdma(RecordedSource(recording))
    assert area.ibstat == expected["status"]
    names = [entry["name"] for entry in expected.get("facts", {}).get("devices", ())]
    assert names == ([entry.name for entry in area.devices] if isinstance(area.devices, tuple) else [])
    for entry in area.devices if isinstance(area.devices, tuple) else ():
        for port in entry.ports if isinstance(entry.ports, tuple) else ():
            assert isinstance(port.state, Absent) or port.state in ("ACTIVE", "DOWN", "INIT", "ARMED")


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


ADDR = json.dumps(
    [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "operstate": "UNKNOWN", "link_type": "loopback",
         "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "eth0", "flags": ["UP"], "mtu": 9000, "operstate": "UP",
         "addr_info": [{"local": "10.0.0.4", "prefixlen": 24}, {"local": "fd00::2", "prefixlen": 64}, {"local": "x", "prefixlen": 3}, 7]},
    ]
)  # fmt: skip
ROUTE = json.dumps(
    [{"dst": "default", "nexthops": [{"dev": "eth0"}, {"dev": "eth1"}]}, {"dst": "10.0.0.0/24", "dev": "eth2"}]
)
NET = {
    "/sys/class/net/eth0/operstate": "up",
    "/sys/class/net/eth0/mtu": "9000",
    "/sys/class/net/eth0/speed": "400000",
    "/sys/class/net/lo/operstate": "unknown",
    "/sys/class/net/lo/flags": "0x9",
    "/sys/class/net/lo/mtu": "65536",
}


def test_interfaces_from_sysfs_and_ip() -> None:
    targets = {"/sys/class/net/eth0/device": "/sys/devices/pci0000:00/0000:00:03.0/virtio2"}
    area = rdma(FakeSource(NET, targets=targets, commands={("ip", "-j", "addr"): ADDR, ("ip", "-j", "route"): ROUTE}))
    front = netdev(area, "eth0")
    wanted = NetDev("eth0", True, 9000, 400000, "physical", "0000:00:03.0", ("10.0.0.4/24", "fd00::2/64"), True, ())
    assert msgspec.structs.replace(front, pfc_priorities=wanted.pfc_priorities) == wanted
    lo = netdev(area, "lo")
    assert (lo.up, lo.kind, lo.default_route, lo.addresses) == (True, "virtual", False, ("127.0.0.1/8",))
    assert absent(lo.speed_mbps).absent == "not_found"


def test_interfaces_without_sysfs_come_from_ip() -> None:
    area = rdma(FakeSource(commands={("ip", "-j", "addr"): ADDR, ("ip", "-j", "route"): ROUTE}))
    front = netdev(area, "eth0")
    assert (front.up, front.mtu, front.addresses, front.default_route) == (
        True,
        9000,
        ("10.0.0.4/24", "fd00::2/64"),
        True,
    )
    assert absent(front.speed_mbps).absent == "not_found"


PROC = {
    "/proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
    "/proc/net/fib_trie": "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
    "           |-- 127.0.0.1\n              /32 host LOCAL\n           |-- 192.0.2.0\n              /24 link UNICAST\n"
    "           |-- 192.0.2.2\n              /32 host LOCAL\n        |-- 192.0.2.255\n           /32 link BROADCAST\n"
    "Local:\n           |-- 192.0.2.2\n              /32 host LOCAL\n",
    "/proc/net/if_inet6": "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000002 04 40 00 82     eth0\n",
    "/proc/net/dev": "Inter-|   Receive\n face |bytes\n    lo: 0 0\n  eth0: 12 0\n",
}


@pytest.mark.parametrize(
    "ip", ["", 'Option "-j" is unknown, try "ip -help".\n', None], ids=["nothing", "no -j", "missing"]
)
def test_without_ip_the_tables_of_the_kernel_count(ip: str | None) -> None:
    commands: dict[tuple[str, ...], str | bytes | Output | Absent] = (
        {} if ip is None else {("ip", "-j", what): Output(b"", ip.encode(), 255) for what in ("addr", "route")}
    )
    for files in (PROC, {**PROC, **NET}):
        area = rdma(FakeSource(files, commands=commands))
        front, lo = netdev(area, "eth0"), netdev(area, "lo")
        assert (front.addresses, front.default_route) == (("192.0.2.2/24", "fd00::2/64"), True)
        assert (lo.addresses, lo.default_route) == (("127.0.0.1/8", "::1/128"), False)


def test_another_namespace_in_sys_is_noted() -> None:
    area = rdma(FakeSource(NET | {"/sys/class/net/eth0/mtu": "1500"}, commands={("ip", "-j", "addr"): ADDR}))
    assert any("another network namespace" in note for note in area.notes)


DCB = ("dcb", "-j", "pfc", "show", "dev", "ens3f0np0")
QOS = """DCBX mode: OS controlled
Priority trust state: dscp
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   1   0
\tbuffer      0   0   0   1   0   0   0   0
"""
NO_DCB = Output(b"", b"Attribute not found: Operation not supported\n", 1)


@pytest.mark.parametrize(
    ("commands", "wanted"),
    [
        ({DCB: json.dumps({"pfc_cap": 8, "prio_pfc": [False, False, False, True, False, False, False, False]})}, (3,)),
        ({DCB: json.dumps({"pfc_cap": 8, "prio_pfc": [False] * 8})}, ()),
        ({DCB: json.dumps({"prio_pfc": [1] * 8})}, "unparsable"),
        ({DCB: NO_DCB}, "unsupported"),
        ({DCB: NO_DCB, ("mlnx_qos", "-i", "ens3f0np0"): QOS}, (3, 6)),
        ({("mlnx_qos", "-i", "ens3f0np0"): "Netlink error"}, "unparsable"),
        ({}, "tool_missing"),
    ],
)
def test_lossless_priorities_of_roce_interfaces(
    commands: dict[tuple[str, ...], Any], wanted: tuple[int, ...] | str
) -> None:
    files, targets = tree("roce_gid_table.txt")
    files |= {f"{IB}/mlx5_2/device/net/ens3f0np0/mtu": "9000", "/sys/class/net/ens3f0np0/mtu": "9000", **NET}
    targets["/sys/class/net/ens3f0np0/device"] = "/sys/devices/pci0000:15/0000:15:01.0/0000:4b:00.0"
    source = FakeSource(files, targets=targets, commands=commands)
    area = rdma(source)
    found = netdev(area, "ens3f0np0").pfc_priorities
    assert found == wanted if isinstance(wanted, tuple) else absent(found).absent == wanted
    assert absent(netdev(area, "eth0").pfc_priorities).absent == "unsupported"
    assert not any("eth0" in argv for argv in source.asked), "front-end interfaces are not asked"


def test_data_direct_functions_are_counted() -> None:
    pci = "/sys/bus/pci/devices"
    ids = {
        "0000:01:00.0": ("0x15b3", "0x1023"),
        "0000:01:00.1": ("0x15b3", "0x2100"),
        "0000:02:00.0": ("0x8086", "0x2100"),
    }
    files = {
        f"{pci}/{name}/{file}": value
        for name, both in ids.items()
        for file, value in zip(("vendor", "device"), both, strict=True)
    }
    assert rdma(FakeSource(files)).data_direct_functions == 1
    assert rdma(FakeSource({"/sys/bus/cpu/x": ""})).data_direct_functions == 0
    assert absent(rdma(FakeSource()).data_direct_functions).absent == "not_found"


FILES, TARGETS = tree("roce_gid_table.txt")
WHOLE = FakeSource(
    {
        **FILES,
        **NET,
        **PROC,
        **ROOT_USER,
        f"{IB}/mlx5_2/device/net/ens3f0np0/mtu": "9000",
        "/sys/class/net/ens3f0np0/mtu": "9000",
        "/sys/module/efa/version": "3.3.0",
        "/etc/libibverbs.d/mlx5.driver": "driver mlx5",
    },
    targets={**TARGETS, "/sys/class/net/ens3f0np0/device": "/sys/devices/pci0000:15/0000:4b:00.0"},
    commands={
        ("ip", "-j", "addr"): ADDR,
        ("ip", "-j", "route"): ROUTE,
        DCB: json.dumps({"prio_pfc": [False] * 8}),
        ("ibv_devinfo", "-v"): text("ibv_devinfo/cx6dx_roce_verbose_2x50.txt"),
        ("ibstat",): text("ibstat/h100_8ndr_4eth.txt"),
        ("fi_info", "-p", "efa"): text("fi_info/p5en_direct_and_dgram.txt"),
        ("ofed_info", "-s"): "MLNX_OFED_LINUX-24.10-2.1.8.0:\n",
        ("mlxconfig", "-d", "0000:4b:00.0", "-e", "q", "PCI_ATOMIC_MODE", "ADVANCED_PCI_SETTINGS"): text(
            "mlxconfig/cx7_atomics_enabled.txt"
        ),
    },
    documents={
        "libraries": {
            "libraries": {"libibverbs": {"path": "/x", "versions": ["A"], "symbols": []}},
            "providers": {"mlx5": "/y"},
        },
        "nodes": {"/dev/infiniband/uverbs0": {"rw": True}},
    },
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_of_any_kind_leaves_an_area_that_encodes(data: st.DataObject) -> None:
    area = rdma(damaged_source(WHOLE, data))
    assert msgspec.json.decode(msgspec.json.encode(area), type=RdmaArea) == area


@settings(max_examples=60, deadline=None)
@given(json_values, json_values)
def test_documents_may_hold_anything(libraries: Any, nodes: Any) -> None:  # noqa: ANN401
    area = rdma(FakeSource(documents={"libraries": libraries, "nodes": nodes}))
    assert msgspec.json.decode(msgspec.json.encode(area), type=RdmaArea) == area


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_the_json_of_ip_may_hold_anything(value: Any) -> None:  # noqa: ANN401
    said = json.dumps(value)
    area = rdma(FakeSource(NET, commands={("ip", "-j", "addr"): said, ("ip", "-j", "route"): said}))
    assert msgspec.json.decode(msgspec.json.encode(area), type=RdmaArea) == area
