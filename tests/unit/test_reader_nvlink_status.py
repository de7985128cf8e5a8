"""Cases of `nvidia-smi nvlink -s` that no recorded output shows."""

from __future__ import annotations

import pytest

from epctl.probes.readers.nvlink_status import read

HEADER = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\n"
TWO = HEADER + "\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
SECOND = TWO.replace("GPU 0", "GPU 1").replace("GPU-aa", "GPU-bb")


def test_line_ends_of_windows_and_colours_change_nothing() -> None:
    plain = read((TWO + SECOND).encode())
    assert plain.status == "ok"
    assert read(("\x1b[1m" + (TWO + SECOND).replace("\n", "\x1b[0m\r\n")).encode()) == plain


def test_a_gpu_with_fewer_links_than_its_like_at_the_end_was_cut() -> None:
    reading = read((TWO + SECOND.rsplit("\t", 1)[0]).encode())
    assert reading.status == "partial"
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "GPU 1")]
    assert [gpu.complete for gpu in reading.facts.gpus] == [True, False]


@pytest.mark.parametrize("end", ["\t Li", "\t Link 1", "\t Link 1: 26.", "\t Link 1: 26.562 GB", "GPU 1: NVIDIA H2"])
def test_a_cut_inside_a_line_gives_no_value_for_it(end: str) -> None:
    reading = read((TWO.rsplit("\t", 1)[0] + end).encode())
    assert [p.kind for p in reading.problems] == ["truncated"]
    assert reading.facts.gpus[0].links == {0: 26.562}
    assert not reading.facts.gpus[-1].complete


def test_an_error_in_front_of_a_good_listing_is_a_problem_and_not_the_result() -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:5E:00.0: GPU is lost.\n"
    reading = read((lost + TWO).encode())
    assert reading.status == "partial"
    assert [p.kind for p in reading.problems] == ["gpu_lost"]
    assert reading.facts.gpus[0].links_active == 2


def test_the_same_listing_twice_counts_once() -> None:
    assert read((TWO + TWO).encode()) == read(TWO.encode())


def test_two_listings_that_differ_are_reported_and_the_later_one_counts() -> None:
    reading = read((TWO + TWO.replace("Link 1: 26.562 GB/s", "Link 1: <inactive>")).encode())
    assert [p.kind for p in reading.problems] == ["repeated_listing"]
    assert reading.facts.gpus[0].condition == "some_inactive"


def test_mig_listing_in_front_gives_counts_and_no_second_gpu() -> None:
    mig = HEADER + "  MIG 1g.18gb     Device  0: (UUID: MIG-1)\n  MIG 1g.18gb     Device  1: (UUID: MIG-2)\n"
    reading = read((mig + TWO).encode())
    assert reading.status == "ok"
    assert reading.facts.mig_devices == {0: 2}
    assert [gpu.links_listed for gpu in reading.facts.gpus] == [2]


def test_header_without_uuid_and_without_links_is_a_gpu_without_nvlink() -> None:
    gpu = read(b"GPU 0: Tesla T4\n").facts.gpus[0]
    assert (gpu.name, gpu.uuid, gpu.condition, gpu.links_listed) == ("Tesla T4", None, "unsupported", 0)


def test_not_supported_and_spelling_of_inactive_are_conditions() -> None:
    text = HEADER + "\t NVML: Unable to retrieve NVLink information: Not Supported\n"
    text += "GPU 1: B (UUID: GPU-b)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
    reading = read(text.encode())
    assert reading.status == "ok"
    assert [gpu.condition for gpu in reading.facts.gpus] == ["unsupported", "all_inactive"]


def test_decimal_comma_is_a_rate() -> None:
    assert read((HEADER + "\t Link 0: 26,562 GB/s\n").encode()).facts.gpus[0].links == {0: 26.562}


def test_links_without_a_header_belong_to_no_gpu() -> None:
    reading = read(b"\t Link 0: 25 GB/s\n")
    assert [p.kind for p in reading.problems] == ["no_gpu_header"]
    assert reading.facts.gpus[0].index is None


def test_a_web_page_is_unparsable() -> None:
    reading = read(b"<html><body>502 Bad Gateway</body></html>\n")
    assert reading.status == "error"
    assert reading.error is not None
    assert reading.error["kind"] == "unparsable"
    assert reading.facts.gpus == []


def test_thousands_of_failed_gpus_leave_a_bounded_number_of_problems() -> None:
    failed = "GPU {0}: NVIDIA H100 (UUID: GPU-{0})\nNVML: Unable to retrieve NVLink information\n"
    reading = read("".join(failed.format(index) for index in range(2000)).encode())
    assert (reading.status, len(reading.problems)) == ("partial", 200)
