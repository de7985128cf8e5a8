"""Cases of `ibv_devinfo` beyond the recorded ones."""

from __future__ import annotations

import pytest

from epctl.probes.readers.ibv_devinfo import read

PORT = """\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t40
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tInfiniBand
"""
VERBOSE_PORT = (
    PORT
    + """\t\t\tmax_msg_sz:\t\t0x40000000
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:9c63:c003:0001:0300
\t\t\tGID[255]:\t\tfe80::1, RoCE v2
"""
)


def device(ports: str, count: int = 1, name: str = "mlx5_0", verbose: bool = False) -> str:
    more = "\tmax_mr_size:\t\t\t0xffffffffffffffff\n" if verbose else ""
    return (
        f"hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.43.2566\n"
        f"\tvendor_part_id:\t\t\t4129\n\tphys_port_cnt:\t\t\t{count}\n{more}{ports}\n"
    )


def test_line_ends_and_colours_change_nothing() -> None:
    plain = read(device(PORT).encode())
    assert plain.status == "ok"
    assert read(device(PORT).replace("\n", "\r\n").encode()) == plain
    assert read(device(PORT).replace("hca_id:", "\x1b[1mhca_id:\x1b[0m").encode()) == plain


def test_gids_keep_their_printed_index_and_type() -> None:
    gids = read(device(VERBOSE_PORT, verbose=True).encode()).facts.devices[0].ports[0].gids
    assert [(gid.index, gid.gid, gid.type) for gid in gids] == [
        (0, "fe80:0000:0000:0000:9c63:c003:0001:0300", None),
        (255, "fe80::1", "RoCE v2"),
    ]


@pytest.mark.parametrize(
    ("width", "speed", "expected"),
    [
        ("2X (16)", "50.0 Gbps (64)", (2, 50.0, 100.0)),
        ("12X (8)", "2.5 Gbps (1)", (12, 2.5, 30.0)),
        ("4X (2)", "invalid speed (64)", (4, 50.0, 200.0)),
        ("4X (2)", "invalid speed (0)", (4, None, None)),
        ("invalid widthX (0)", "25.0 Gbps (32)", (None, 25.0, None)),
    ],
)
def test_rate_is_width_times_speed_and_null_where_one_is_invalid(
    width: str, speed: str, expected: tuple[object, ...]
) -> None:
    text = device(VERBOSE_PORT, verbose=True).replace("4X (2)", width).replace("100.0 Gbps (128)", speed)
    reading = read(text.encode())
    port = reading.facts.devices[0].ports[0]
    assert (port.active_width, port.active_speed_gbps_per_lane, port.rate_gbps) == expected
    assert reading.status == "ok"


def test_a_verbose_port_that_ends_where_a_plain_one_would_was_cut() -> None:
    reading = read(device(PORT, verbose=True).rstrip().encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "mlx5_0 port 1")]
    assert reading.facts.devices[0].ports[0].link_layer == "InfiniBand"


def test_a_lid_that_was_cut_in_the_middle_is_not_taken_for_a_lid() -> None:
    reading = read(device(PORT).partition("0\n\t\t\tport_lmc")[0].encode())
    assert [(p.kind, p.where, p.line) for p in reading.problems] == [("truncated", "mlx5_0 port 1", "port_lid:\t\t4")]
    assert reading.facts.devices[0].ports[0].port_lid is None


def test_one_port_out_of_two_was_asked_for_where_a_blank_line_closes_it_and_cut_elsewhere() -> None:
    text = device(VERBOSE_PORT, count=2, verbose=True)
    assert read(text.encode()).status == "ok"
    assert [p.kind for p in read(text.rstrip().encode()).problems] == ["truncated"]


def test_the_second_of_two_listings_counts() -> None:
    reading = read((device(PORT) + device(PORT.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)"))).encode())
    assert reading.status == "ok"
    assert [(d.name, d.ports[0].state) for d in reading.facts.devices] == [("mlx5_0", "PORT_DOWN")]


def test_a_device_that_does_not_open_is_a_problem_beside_the_others() -> None:
    reading = read((device(PORT) + "Failed to open device\n" + device(PORT, name="mlx5_1")).encode())
    assert [p.kind for p in reading.problems] == ["device_open_failed"]
    assert [d.name for d in reading.facts.devices] == ["mlx5_0", "mlx5_1"]


def test_warnings_of_the_library_in_front_are_no_damage() -> None:
    warning = "libibverbs: Warning: couldn't load driver 'librxe-rdmav34.so': No such file or directory\n"
    assert read((warning + device(PORT)).encode()) == read(device(PORT).encode())


def test_a_list_of_names_gives_the_names() -> None:
    reading = read(b"2 HCAs found:\n\tmlx5_0\n\tmlx5_bond_0\n\n")
    assert (reading.status, [d.name for d in reading.facts.devices]) == ("ok", ["mlx5_0", "mlx5_bond_0"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0 HCAs found:\n\n", "no_devices"),
        ("IB device 'mlx5_9' wasn't found\n", "no_such_device"),
        ("Failed to get IB devices list: Function not implemented\n", "module_not_loaded"),
        ("Failed to get IB devices list: Permission denied\n", "permission"),
        ("sh: 1: ibv_devinfo: not found\n", "command_not_found"),
        ("PK\x03\x04 junk\n", "unparsable"),
    ],
)
def test_an_error_text_gives_its_kind_and_no_devices(text: str, kind: str) -> None:
    reading = read(text.encode())
    assert (reading.status, reading.error and reading.error["kind"], reading.facts.devices) == ("error", kind, [])


@pytest.mark.parametrize("value", ["-1", "99999999999999999999"])
def test_numbers_that_no_port_can_have_are_no_numbers(value: str) -> None:
    text = device(
        PORT.replace("port_lid:\t\t40", f"port_lid:\t\t{value}").replace("sm_lid:\t\t\t1", f"sm_lid:\t{value}")
    )
    reading = read(text.encode())
    port = reading.facts.devices[0].ports[0]
    assert (reading.status, port.port_lid, port.sm_lid) == ("partial", None, None)
    assert [p.where for p in reading.problems] == ["mlx5_0 port 1 sm_lid", "mlx5_0 port 1 port_lid"]


def test_the_lines_of_a_port_with_a_negative_number_are_not_given_to_the_port_before() -> None:
    first = PORT.replace("\t\t\tport_lid:\t\t40\n", "")
    reading = read(device(first + PORT.replace("port:\t1", "port:\t-2"), 2).encode())
    (port,) = reading.facts.devices[0].ports
    assert (port.port, port.port_lid) == (1, None)
    assert ("unparsable", "mlx5_0 port", "port:\t-2") in [(p.kind, p.where, p.line) for p in reading.problems]
