"""Cases of `fi_info -p efa` that no recorded output shows."""

from __future__ import annotations

import pytest

from epctl.probes.readers.fi_info import MAX_ENTRIES, read

ENTRY = """\
provider: efa
    fabric: efa
    domain: rdmap79s0-rdm
    version: 201.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
"""
TWO = ENTRY + ENTRY.replace("79s0-rdm", "80s0-dgrm").replace("RDM", "DGRAM")
LONG = """\
---
fi_info:
    caps: [ FI_MSG, FI_RMA ]
    mode: [  ]
    fi_ep_attr:
        type: FI_EP_RDM
        protocol: FI_PROTO_EFA
    fi_domain_attr:
        domain: 0x0
        name: rdmap0s31-rdm
        threading: FI_THREAD_DOMAIN
    fi_fabric_attr:
        name: efa
        prov_name: efa
        prov_version: 119.0
    nic:
        fi_device_attr:
            name: rdmap0s31
"""


def test_line_ends_of_windows_and_lost_indentation_change_nothing() -> None:
    assert read(TWO.replace("\n    ", "\r\n").encode()) == read(TWO.encode())
    assert read(TWO.encode()).facts.devices == ["rdmap79s0", "rdmap80s0"]


def test_the_long_form_has_the_same_facts() -> None:
    reading = read((LONG + LONG.replace("0s31", "1s31")).encode())
    assert reading.status == "ok"
    assert (reading.facts.devices, reading.facts.n_rdm_efa) == (["rdmap0s31", "rdmap1s31"], 2)
    assert reading.facts.entries[0].version == "119.0"


@pytest.mark.parametrize("end", ["    ty", "    type: FI_EP", ""])
def test_an_entry_cut_at_the_end_lacks_what_was_cut(end: str) -> None:
    text = TWO[: TWO.rindex("    type")] + end
    reading = read(text.encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "rdmap80s0-dgrm")]
    assert reading.facts.entries[1].version == "201.0"
    assert reading.facts.entries[1].protocol is None


def test_layered_provider_is_no_further_nic_and_no_efa_datagram() -> None:
    layered = ENTRY.replace("efa\n", "efa;ofi_rxd\n", 1).replace("-rdm", "-dgrm")
    facts = read((ENTRY + layered).encode()).facts
    assert (facts.n_entries, facts.n_devices, facts.n_rdm_efa) == (2, 1, 1)


def test_the_number_of_an_error_counts_in_any_language() -> None:
    reading = read("fi_getinfo: -61 (Keine Daten verfügbar)\n".encode())
    assert reading.error is not None
    assert (reading.error["kind"], reading.error["code"]) == ("no_devices", -61)


def test_an_error_behind_a_good_listing_is_a_problem() -> None:
    reading = read((ENTRY + "fi_getinfo: -61 (No data available)\n").encode())
    assert (reading.status, [p.kind for p in reading.problems]) == ("partial", ["no_devices"])
    assert reading.facts.n_devices == 1


def test_missing_library_is_named() -> None:
    reading = read(b"fi_info: error while loading shared libraries: libfabric.so.1: cannot open shared object file\n")
    assert reading.error is not None
    assert reading.error["kind"] == "library_missing"


def test_ten_thousands_of_damaged_entries_leave_a_bounded_reading_that_says_so() -> None:
    reading = read(b"provider: x\n" * (MAX_ENTRIES + 5))
    assert len(reading.problems) <= 202
    assert len(reading.facts.entries) == reading.facts.n_entries == MAX_ENTRIES
    assert ("too_many", f"entries past the first {MAX_ENTRIES}") in [(p.kind, p.where) for p in reading.problems]
