"""Topology files beyond the recorded ones: hostile, cut, with more than one system."""

from __future__ import annotations

import pytest

from epctl.probes.readers.nccl_topo_xml import read

GPU = (
    '<system version="1"><cpu numaid="0"><pci busid="0000:19:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" '
    'link_width="16">{}</pci></cpu></system>'
)


@pytest.mark.parametrize(
    "raw",
    [
        b'<!DOCTYPE system [<!ENTITY a "b">]><system version="1"/>',
        b'<?xml version="1.0"?><!DOCTYPE s SYSTEM "file:///etc/passwd"><system/>',
        b"<system>" + b"<pci>" * 300 + b"</pci>" * 300 + b"</system>",
        b'<system version="1"><cpu numaid="0">',
        b"<system a='&undefined;'/>",
    ],
)
def test_documents_that_are_cut_or_hostile_give_no_facts(raw: bytes) -> None:
    reading = read(raw)
    assert (reading.status, reading.facts.gpus, reading.facts.cpus) == ("error", [], [])
    assert reading.error is not None
    assert reading.error["kind"] == "malformed_xml"


def test_nvlinks_to_one_peer_in_two_elements_add_up() -> None:
    link = '<nvlink target="0000:1a:00.0" count="2" tclass="0x030200"/>'
    facts = read(GPU.format(f'<gpu dev="0" sm="90" rank="0" gdr="1">{link}{link}</gpu>').encode()).facts
    assert (facts.gpus[0].nvlinks, facts.gpus[0].nvlink_targets, facts.gpus[0].nvswitch) == (
        4,
        {"0000:1a:00.0": 4},
        False,
    )
    assert (facts.gpus[0].pcie_gt_s, facts.gpus[0].pcie_width) == (32.0, 16)


def test_crlf_and_text_in_front_leave_the_facts_and_are_reported() -> None:
    raw = ("warning: something\r\n" + GPU.format('<gpu dev="0"/>')).encode()
    reading = read(raw)
    assert (reading.status, len(reading.facts.gpus), reading.facts.gpus[0].rank) == ("partial", 1, None)


def test_two_dumps_one_behind_the_other_count_once_and_are_reported() -> None:
    raw = GPU.format('<gpu dev="0"/>').encode() * 2
    reading = read(raw)
    assert (reading.status, len(reading.facts.gpus)) == ("partial", 1)


def test_hosts_of_a_file_over_several_nodes_are_counted_by_hash() -> None:
    raw = b'<system version="2"><cpu host_hash="0x1" numaid="0"/><cpu host_hash="0x2" numaid="0"/></system>'
    assert (read(raw).facts.n_hosts, read(raw).facts.system_version) == (2, 2)


def test_a_system_without_a_processor_is_not_ok() -> None:
    assert read(b'<system version="1"/>').status == "partial"


def test_huge_or_odd_numbers_become_none() -> None:
    raw = GPU.format(f'<gpu dev="{"9" * 5000}" sm="nan" rank="\u0663"/>').encode()
    gpu = read(raw).facts.gpus[0]
    assert (gpu.dev, gpu.sm, gpu.rank) == (None, None, None)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"cat: f: Permission denied\n", "permission"),
        (b"\x00\x01\xff", "unparsable"),
        (b"<html><b/></html><system/>", "unparsable"),
    ],
)
def test_text_that_is_no_xml_is_an_error(raw: bytes, kind: str) -> None:
    reading = read(raw)
    assert reading.error is not None
    assert reading.error["kind"] == kind
