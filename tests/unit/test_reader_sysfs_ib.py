"""Cases of the attributes of /sys/class/infiniband beyond the recorded ones."""

from __future__ import annotations

import pytest

from epctl.probes.readers.sysfs_ib import devices_of, read

ROOT = "/sys/class/infiniband/"
FILES = {
    "mlx5_0/node_guid": "9c63:c003:0012:c074\n",
    "mlx5_0/node_type": "1: CA\n",
    "mlx5_0/device/numa_node": "-1\n",
    "mlx5_0/device/net/ib0/mtu": "4092\n",
    "mlx5_0/device/uevent": "DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:1a:00.0\n",
    "mlx5_0/ports/1/state": "4: ACTIVE\n",
    "mlx5_0/ports/1/phys_state": "5: LinkUp\n",
    "mlx5_0/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
    "mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "mlx5_0/ports/1/lid": "0x50\n",
    "mlx5_0/ports/1/cap_mask": "0xa751e848\n",
    "mlx5_0/ports/1/counters/port_rcv_data": "18446744073709551615\n",
    "mlx5_0/ports/1/counters/excessive_buffer_overrun_errors": "N/A (no PMA)\n",
    "mlx5_0/ports/1/hw_counters/out_of_sequence": "7\n",
    "mlx5_0/ports/1/gids/0": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    "mlx5_0/ports/1/gids/12": "fe80:0000:0000:0000:9c63:c003:0012:c074\n",
    "mlx5_0/ports/1/gid_attrs/types/12": "RoCE v2\n",
    "mlx5_0/ports/1/gid_attrs/ndevs/12": "ib0\n",
}


def as_text(files: dict[str, str]) -> str:
    return "".join(f"{ROOT}{path}:{line}\n" for path, value in files.items() for line in value.splitlines())


def test_a_tree_that_was_read_gives_what_its_text_gives() -> None:
    (device,) = devices_of(FILES, {})
    reading = read(as_text(FILES).encode())
    assert (reading.status, reading.facts.devices) == ("ok", [device])
    port = device.ports[0]
    assert (device.pci, device.numa_node, device.driver, device.node_type) == ("0000:1a:00.0", None, "mlx5_core", "CA")
    assert (device.netdevs, device.phys_port_cnt) == (["ib0"], 1)
    assert (port.rate_gbps, port.width, port.speed_label, port.lid, port.sm_lid) == (2.5, 1, "SDR", 80, None)
    assert port.counters == {"port_rcv_data": 2**64 - 1}
    assert port.hw_counters == {"out_of_sequence": 7}
    assert [(g.index, g.type, g.netdev) for g in port.gids] == [(12, "RoCE v2", "ib0")]


def test_links_name_the_function_the_driver_and_the_physical_function() -> None:
    links = {
        "mlx5_2/device": "../../../0000:1A:00.2",
        "mlx5_2/device/driver": "../../../../bus/pci/drivers/mlx5_core",
        "mlx5_2/device/physfn": "../0000:1a:00.0",
        "rdmap_sf": "../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/mlx5_core.sf.2/infiniband/rdmap_sf",
        "rxe0": "../../devices/virtual/infiniband/rxe0",
    }
    devices = {device.name: device for device in devices_of({}, links)}
    assert (devices["mlx5_2"].pci, devices["mlx5_2"].driver) == ("0000:1a:00.2", "mlx5_core")
    assert devices["mlx5_2"].physfn == "0000:1a:00.0"
    assert (devices["rdmap_sf"].pci, devices["rxe0"].pci) == ("0000:16:00.0", None)


def test_line_ends_colours_and_other_roots_change_nothing() -> None:
    text = as_text(FILES)
    plain = read(text.encode())
    assert read(text.replace("\n", "\r\n").encode()) == plain
    assert read(text.replace(ROOT, f"\x1b[35m\x1b[K{ROOT}").encode()) == plain
    assert read(text.replace(ROOT, "./").encode()) == plain
    assert read(text.replace(ROOT, "").encode()) == plain
    assert read(text.replace(ROOT, "/sys/devices/pci0000:15/0000:1a:00.0/infiniband/").encode()) == plain
    assert read((text + text).encode()).facts.devices[0].ports == plain.facts.devices[0].ports


def test_a_speed_without_a_label_is_that_of_an_old_kernel() -> None:
    port = devices_of({"a/ports/1/rate": "10 Gb/sec (4X)"}, {})[0].ports[0]
    assert (port.rate_gbps, port.width, port.speed_label) == (10.0, 4, None)


def test_what_may_not_be_read_is_a_problem_but_unused_rows_are_not() -> None:
    text = as_text({path: value for path, value in FILES.items() if not path.endswith("/rate")})
    text += f"grep: {ROOT}mlx5_0/ports/1/rate: Permission denied\n"
    text += f"grep: {ROOT}mlx5_0/ports/1/gid_attrs/types/4: Invalid argument\n"
    text += f"grep: {ROOT}mlx5_0/device/rom: Permission denied\n"
    reading = read(text.encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("permission", f"{ROOT}mlx5_0/ports/1/rate")]
    assert reading.facts.devices[0].ports[0].rate_gbps is None


def test_a_counter_that_was_cut_in_the_middle_is_left_out() -> None:
    reading = read((as_text(FILES) + f"{ROOT}mlx5_0/ports/1/counters/link_downed:1").encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "mlx5_0/ports/1/counters/link_downed")]
    assert "link_downed" not in reading.facts.devices[0].ports[0].counters


def test_a_device_without_ports_behind_whole_ones_was_cut() -> None:
    reading = read((as_text(FILES) + f"{ROOT}mlx5_1/board_id:MT_1\n").encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "mlx5_1/ports")]
    assert [device.name for device in reading.facts.devices] == ["mlx5_0", "mlx5_1"]


def test_one_attribute_of_every_port_is_a_whole_text() -> None:
    reading = read(f"{ROOT}mlx5_0/ports/1/state:4: ACTIVE\n{ROOT}mlx5_1/ports/1/state:1: DOWN\n".encode())
    assert (reading.status, [device.ports[0].state for device in reading.facts.devices]) == ("ok", ["ACTIVE", "DOWN"])


def test_a_value_that_is_no_rate_is_damage() -> None:
    reading = read(as_text(FILES | {"mlx5_0/ports/1/rate": "fast"}).encode())
    assert [(p.kind, p.where, p.line) for p in reading.problems] == [("unparsable", "mlx5_0/ports/1/rate", "fast")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("grep: /sys/class/infiniband: No such file or directory\n", "no_devices"),
        ("grep: /sys/class/infiniband: Permission denied\n", "permission"),
        ("<html></html>\n", "unparsable"),
    ],
)
def test_an_error_text_gives_its_kind_and_no_devices(text: str, kind: str) -> None:
    reading = read(text.encode())
    assert (reading.status, reading.error and reading.error["kind"], reading.facts.devices) == ("error", kind, [])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mlx5_0/ports/1/counters/port_rcv_data", "-1"),
        ("mlx5_0/ports/1/counters/port_rcv_data", "18446744073709551616"),
        ("mlx5_0/ports/1/hw_counters/out_of_sequence", "9" * 6000),
        ("mlx5_0/ports/1/lid", "-1"),
        ("mlx5_0/ports/1/gids/-3", "fe80:0000:0000:0000:9c63:c003:0012:c074"),
        ("mlx5_0/ports/-1/state", "4: ACTIVE"),
    ],
)
def test_numbers_that_no_kernel_prints_are_reported_and_left_out(path: str, value: str) -> None:
    files = {name: text for name, text in FILES.items() if "\n" not in text.strip()} | {path: value}
    reading = read("".join(f"{ROOT}{name}:{text.strip()}\n" for name, text in files.items()).encode())
    assert ("unparsable", path) in [(p.kind, p.where) for p in reading.problems]
    (port,) = reading.facts.devices[0].ports
    name = path.rpartition("/")[2]
    assert name not in (port.counters | port.hw_counters)
    assert (port.port, [gid.index for gid in port.gids]) == (1, [12])


def test_a_counter_that_is_full_or_not_there_is_no_damage() -> None:
    files = {name: text for name, text in FILES.items() if "\n" not in text.strip()}
    reading = read("".join(f"{ROOT}{name}:{text.strip()}\n" for name, text in files.items()).encode())
    assert not [p for p in reading.problems if p.kind == "unparsable"]
    assert reading.facts.devices[0].ports[0].counters == {"port_rcv_data": 2**64 - 1}
