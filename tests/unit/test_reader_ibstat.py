"""Cases of `ibstat` beyond the recorded ones."""

from __future__ import annotations

import time

import pytest

from epctl.probes.readers.ibstat import read

DEVICE = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.43.2566
\tHardware version: 0
\tNode GUID: 0x9c63c0030072ae54
\tSystem image GUID: 0x9c63c0030072ae54
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 200
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa751e848
\t\tPort GUID: 0x9c63c0030072ae54
\t\tLink layer: InfiniBand
"""


def test_line_ends_and_colours_change_nothing() -> None:
    plain = read(DEVICE.encode())
    assert plain.status == "ok"
    assert read(DEVICE.replace("\n", "\r\n").encode()) == plain
    assert read(DEVICE.replace("Active", "\x1b[32mActive\x1b[0m").encode()) == plain


def test_a_missing_last_line_end_is_no_damage() -> None:
    assert read(DEVICE.rstrip().encode()) == read(DEVICE.encode())


def test_a_rate_that_was_cut_in_the_middle_is_not_taken_for_a_rate() -> None:
    reading = read(DEVICE.partition("00\n\t\tBase lid")[0].encode())
    assert reading.status == "partial"
    assert [(p.kind, p.where, p.line) for p in reading.problems] == [("truncated", "mlx5_0 port 1", "Rate: 4")]
    port = reading.facts.devices[0].ports[0]
    assert (port.state, port.phys_state, port.rate_gbps, port.base_lid) == ("Active", "LinkUp", None, None)


def test_a_cut_between_two_lines_shows_by_what_the_port_lacks() -> None:
    reading = read(DEVICE.partition("\t\tLMC")[0].encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "mlx5_0 port 1")]
    assert reading.facts.devices[0].ports[0].base_lid == 200


def test_a_missing_front_is_reported_and_ports_without_a_device_are_not_given_to_another() -> None:
    reading = read((DEVICE.partition("\tPort 1:\n")[2] + DEVICE.replace("mlx5_0", "mlx5_1")).encode())
    assert [(p.kind, p.where, p.line) for p in reading.problems] == [("truncated", "start", "State: Active")]
    assert reading.facts.active_ports == ["mlx5_1/1"]


def test_the_second_of_two_listings_counts() -> None:
    reading = read((DEVICE + DEVICE.replace("Active", "Down")).encode())
    assert reading.status == "ok"
    assert [d.name for d in reading.facts.devices] == ["mlx5_0"]
    assert reading.facts.devices[0].ports[0].state == "Down"
    assert reading.facts.active_ports == []


def test_iwarp_and_unknown_node_types_have_their_own_words() -> None:
    text = DEVICE.replace("CA 'mlx5_0'", "iWARP RNIC 'irdma0'").replace("CA type", "iWARP RNIC type")
    device = read(text.encode()).facts.devices[0]
    assert (device.name, device.node_type, device.ca_type) == ("irdma0", "iWARP RNIC", "MT4129")
    unknown = read(DEVICE.replace("CA ", "??? ").encode()).facts.devices[0]
    assert (unknown.node_type, unknown.ca_type) == ("???", "MT4129")


def test_one_port_only_has_no_lines_about_the_device() -> None:
    port = DEVICE.partition("\tPort 1:\n")[2].replace("\t", "")
    reading = read(f"CA: 'mlx5_0'\nPort 2:\n{port}".encode())
    assert reading.status == "ok"
    assert [p.port for p in reading.facts.devices[0].ports] == [2]


def test_a_short_listing_has_devices_without_ports() -> None:
    reading = read(DEVICE.partition("\tPort 1:")[0].encode())
    assert (reading.status, reading.facts.devices[0].n_ports) == ("ok", 1)


def test_a_panic_behind_good_text_keeps_the_facts() -> None:
    panic = "ibpanic: [77] main: stat of IB device 'mlx5_1' failed: (Cannot allocate memory)\n"
    reading = read((DEVICE + panic).encode())
    assert reading.status == "partial"
    assert [(p.kind, p.where) for p in reading.problems] == [("device_open_failed", "mlx5_1")]
    assert reading.facts.active_ports == ["mlx5_0/1"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ibpanic: [1] main: 'mlx5_9' IB device can't be found: (No such file or directory)\n", "no_such_device"),
        ("ibpanic: [1] main: can't init UMAD library: (Permission denied)\n", "permission"),
        ("ibpanic: [1] main: can't init UMAD library: (No such file or directory)\n", "module_not_loaded"),
        ("bash: ibstat: command not found\n", "command_not_found"),
        ("bash: /usr/sbin/ibstat: No such file or directory\n", "command_not_found"),
        ("bash: ibstat: Kommando nicht gefunden.\n", "command_not_found"),
        ("Command 'ibstat' not found, but can be installed with:\napt install infiniband-diags\n", "command_not_found"),
        (
            "ibstat: error while loading shared libraries: libibumad.so.3: cannot open shared object file\n",
            "library_missing",
        ),
        ("<html><body>404: Not Found</body></html>\n", "unparsable"),
        ("\x7fELF\x02\x01\x01\ufffd", "unparsable"),
    ],
)
def test_an_error_text_gives_its_kind_and_no_devices(text: str, kind: str) -> None:
    reading = read(text.encode())
    assert (reading.status, reading.error and reading.error["kind"], reading.facts.devices) == ("error", kind, [])


def test_numbers_longer_than_any_lid_are_damage_not_an_exception() -> None:
    reading = read(DEVICE.replace("lid: 200", "lid: " + "9" * 5000).encode())
    assert [p.kind for p in reading.problems] == ["unparsable"]
    assert reading.facts.devices[0].ports[0].base_lid is None


def test_blank_text_is_empty() -> None:
    assert [read(raw).status for raw in (b"", b" \r\n\n")] == ["empty", "empty"]


@pytest.mark.parametrize("head", ["", DEVICE], ids=["alone", "behind a device"])
def test_long_lines_of_the_words_that_open_a_failure_cost_linear_time(head: str) -> None:
    begin = time.process_time()
    reading = read((head + ("ibpanic:" * 500 + "\n") * 2000).encode())
    assert time.process_time() - begin < 3
    assert reading.status == ("partial" if head else "error")
    assert [p.kind for p in reading.problems] == (["tool_failed"] if head else [])


def test_a_denied_device_behind_another_one_is_still_told_apart() -> None:
    line = "ibpanic: [4711] main: stat of IB device 'mlx5_1' failed: (Permission denied)\n"
    assert [(p.kind, p.where) for p in read((DEVICE + line).encode()).problems] == [("permission", "mlx5_0 port 1")]


@pytest.mark.parametrize("value", ["-1", "99999999999999999999"])
def test_numbers_that_no_port_can_have_are_no_numbers(value: str) -> None:
    text = DEVICE
    for old in ("Base lid: 200", "SM lid: 1", "LMC: 0", "Number of ports: 1"):
        text = text.replace(old, f"{old.partition(':')[0]}: {value}")
    reading = read(text.encode())
    device = reading.facts.devices[0]
    assert (device.n_ports, device.ports[0].base_lid, device.ports[0].sm_lid, device.ports[0].lmc) == (None,) * 4
    assert reading.status == "partial"
    assert all(p.kind == "unparsable" for p in reading.problems)
