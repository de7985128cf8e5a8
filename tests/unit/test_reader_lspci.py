"""Listings of lspci beyond the recorded ones."""

from __future__ import annotations

import pytest

from epctl.probes.readers.lspci import read

ACS = "SrcValid{0} TransBlk- ReqRedir{0} CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
BRIDGE = (
    "0000:17:01.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0) (prog-if 00 [Normal decode])\n"
    "\tNUMA node: -1\n\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16, ASPM L1\n\t\tLnkSta:\tSpeed 16GT/s, Width x16\n"
    "\t\tACSCtl:\t" + ACS.format("+") + "\n\tKernel driver in use: pcieport\n\n"
)


def test_domain_class_code_and_ids_are_split_from_the_name() -> None:
    (device,) = read(BRIDGE.encode()).facts.devices
    assert (device.bdf, device.class_, device.name) == (
        "0000:17:01.0",
        "PCI bridge",
        "Broadcom / LSI PEX890xx PCIe Gen 5 Switch",
    )
    assert (device.numa_node, device.driver, device.acs_redirects_p2p) == (None, "pcieport", True)


def test_a_lower_speed_without_the_word_downgraded_is_downgraded() -> None:
    link = read(BRIDGE.encode()).facts.devices[0].link
    assert link is not None
    assert (link.speed_downgraded, link.width_downgraded, link.sta_gt_s) == (True, False, 16.0)


def test_crlf_ansi_and_spaces_for_tabs_change_nothing() -> None:
    raw = ("\x1b[1m" + BRIDGE.replace("\n", "\r\n").replace("\t", "        ") + "\x1b[0m").encode()
    assert read(raw).facts == read(BRIDGE.encode()).facts


def test_a_second_listing_of_the_same_function_goes_over_the_first() -> None:
    reading = read((BRIDGE + BRIDGE.replace("+", "-").replace("16GT/s", "32GT/s")).encode())
    (device,) = reading.facts.devices
    assert (reading.status, device.acs_redirects_p2p, device.link and device.link.speed_downgraded) == (
        "ok",
        False,
        False,
    )


def test_chatter_of_the_library_and_a_prompt_are_no_damage() -> None:
    raw = f"root@n1:~# lspci -vv\npcilib: sysfs_read_vpd: read failed: Input/output error\n{BRIDGE}".encode()
    assert (read(raw).status, len(read(raw).facts.devices)) == ("ok", 1)


def test_a_listing_without_a_final_line_end_is_whole_when_its_last_line_is() -> None:
    assert read(BRIDGE.rstrip().encode()).status == "ok"


@pytest.mark.parametrize(("keep", "where"), [("Width x16, ASPM", "LnkSta"), ("\tKernel", "")])
def test_a_cut_is_named_with_function_and_line(keep: str, where: str) -> None:
    end = BRIDGE.index(keep) + len(keep) + (25 if where else 0)
    reading = read(BRIDGE[:end].encode())
    assert reading.status == "partial"
    assert reading.problems[0].kind == "truncated"
    assert "17:01.0" in reading.problems[0].where


def test_a_function_that_fell_off_the_bus_is_marked() -> None:
    raw = (
        b"19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev ff) (prog-if ff)\n\t!!! Unknown header type 7f\n\n"
    )
    (device,) = read(raw).facts.devices
    assert (device.fell_off_bus, device.link, device.name) == (True, None, "NVIDIA Corporation Device 2330")


@pytest.mark.parametrize(
    ("raw", "status", "kind"),
    [
        (b"bash: lspci: command not found\n", "error", "command_not_found"),
        (b"<html>x</html>", "error", "unparsable"),
        (b"\n \n", "empty", None),
    ],
)
def test_text_without_functions_gives_no_devices(raw: bytes, status: str, kind: str | None) -> None:
    reading = read(raw)
    assert (reading.status, reading.facts.devices) == (status, [])
    assert (reading.error or {}).get("kind") == kind
