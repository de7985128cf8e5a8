"""Cases of `nvidia-smi nvlink -c` that no recorded output shows."""

from __future__ import annotations

from epctl.probes.readers.nvlink_caps import read

LINK = """\
         Link 0, P2P is supported: true
         Link 0, Access to system memory supported: true
         Link 0, P2P atomics supported: true
         Link 0, System memory atomics supported: true
         Link 0, SLI is supported: false
         Link 0, Link is supported: false
"""
TEXT = "GPU 0: Tesla V100-SXM2-32GB\n" + LINK + LINK.replace("Link 0", "Link 1")


def test_header_without_uuid_and_capabilities_that_are_missing() -> None:
    reading = read(TEXT.replace("\n", "\r\n").encode())
    gpu = reading.facts.gpus[0]
    assert (reading.status, gpu.uuid, gpu.links_listed) == ("ok", None, 2)
    assert gpu.links[1] == {
        "p2p": True,
        "sysmem_access": True,
        "p2p_atomics": True,
        "sysmem_atomics": True,
        "sli": False,
        "link_supported": False,
    }


def test_a_cut_inside_a_word_gives_no_capability() -> None:
    reading = read(TEXT[: TEXT.rindex("false") + 2].encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "GPU 0 Link 1")]
    assert "link_supported" not in reading.facts.gpus[0].links[1]


def test_a_line_missing_in_the_middle_is_reported_at_its_link() -> None:
    reading = read(TEXT.replace("         Link 0, SLI is supported: false\n", "").encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("missing_lines", "GPU 0 Link 0")]


def test_a_capability_of_a_later_driver_is_kept() -> None:
    reading = read((TEXT + "         Link 2, Low power mode supported: true\n").encode())
    assert reading.facts.gpus[0].links[2] == {"low_power_mode": True}


def test_other_listing_of_the_same_tool_is_unparsable() -> None:
    reading = read(b"GPU 0: NVIDIA H200 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n")
    assert reading.status == "partial"
    assert reading.facts.gpus[0].links == {}
