"""The RDMA area: sysfs first, then the tools; nothing is made up where both are silent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import RdmaArea
from epctl.probes.rdma import rdma
from epctl.probes.source import Output, RecordedSource, Recording
from tests.support.damage import damaged_source, json_values
from tests.support.fake_source import FakeSource
from tests.support.probed_rdma import (
    ADDR,
    DCB,
    IB,
    NET,
    PROC,
    READERS,
    ROOT_USER,
    ROUTE,
    absent,
    device,
    text,
    tree,
)


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
