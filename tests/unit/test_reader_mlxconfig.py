"""Cases of `mlxconfig q` that no recorded output shows."""

from __future__ import annotations

from epctl.probes.readers.mlxconfig import Value, read

TEXT = """\

Device #1:
----------

Device type:    ConnectX6DX
Name:           N/A
Description:    N/A
Device:         0000:ca:00.0

Configurations:                                      Default         Current         Next Boot
*       NUM_OF_VFS                                  8               0               0
*RO     FW_LIMIT                                    N/A             1               True(1)
        ROM_HASH[0]                                 0x0(0)          0x0(0)          0x0(0)
        LINK_TYPE_P1                                ETH             ETH             IB
The '*' shows parameters with next value different from default/current value.

The 'RO' shows parameters which are for read only and cannot be changed
"""


def test_marked_is_not_pending_when_only_the_default_differs() -> None:
    reading = read(TEXT.encode())
    device = reading.facts.devices[0]
    assert reading.status == "ok"
    assert device.params["NUM_OF_VFS"].marked
    assert device.pending == ["FW_LIMIT", "LINK_TYPE_P1"]


def test_read_only_mark_is_no_part_of_the_name() -> None:
    param = read(TEXT.encode()).facts.devices[0].params["FW_LIMIT"]
    assert (param.marked, param.read_only, param.default) == (True, True, None)
    assert param.next_boot == Value("True", 1)


def test_name_that_is_not_available_is_unknown() -> None:
    device = read(TEXT.replace("\n", "\r\n").encode()).facts.devices[0]
    assert (device.name, device.device_type, device.device) == (None, "ConnectX6DX", "0000:ca:00.0")


def test_each_device_has_its_own_parameters() -> None:
    reading = read((TEXT + TEXT.replace("#1", "#2").replace("ca:00.0", "cb:00.0")).encode())
    assert [(d.index, len(d.params)) for d in reading.facts.devices] == [(1, 4), (2, 4)]


def test_a_device_that_cannot_be_queried_does_not_hide_the_other() -> None:
    failed = (
        "\nDevice #2:\n----------\n\nDevice type:    ConnectX7\n\n-E- Failed to query device current configuration\n"
    )
    reading = read((TEXT + failed).encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("failed", "Device #2")]
    assert reading.facts.devices[1].params == {}


def test_a_row_cut_at_the_end_has_no_values() -> None:
    reading = read(TEXT[: TEXT.rindex("ETH")].encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "Device #1 LINK_TYPE_P1")]
    assert "LINK_TYPE_P1" not in reading.facts.devices[0].params


def test_a_label_cut_at_the_end_is_no_value_but_a_missing_line_end_is_no_damage() -> None:
    text = TEXT[: TEXT.index("\nThe '*'")]
    cut = read((text[:-2] + "ET").encode())
    assert [p.kind for p in cut.problems] == ["truncated"]
    assert "LINK_TYPE_P1" not in cut.facts.devices[0].params
    assert read(text[: text.rindex("\n")].encode()).status == "ok"


def test_without_current_values_nothing_is_said_about_pending() -> None:
    text = "Device #1:\nConfigurations:   Next Boot\n   SRIOV_EN    True(1)\n"
    assert read(text.encode()).facts.devices[0].pending is None


def test_message_of_a_stopped_driver_names_no_device() -> None:
    reading = read(
        b"-E- No devices found, mst might be stopped. You may need to run 'mst start' to load MST modules.\n"
    )
    assert reading.error is not None
    assert reading.error["kind"] == "no_devices"


def test_ten_thousands_of_damaged_lines_leave_a_bounded_number_of_problems() -> None:
    head = "Device #1:\nDevice type: X\nConfigurations: Next Boot\n"
    reading = read((head + "".join(f"P{i:05} a b c\n" for i in range(50_000))).encode())
    assert (reading.status, len(reading.problems) <= 201) == ("partial", True)
