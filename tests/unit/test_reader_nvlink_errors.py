"""Cases of `nvidia-smi nvlink -e` that no recorded output shows."""

from __future__ import annotations

from epctl.probes.readers.nvlink_errors import read

TEXT = """\
GPU 0: NVIDIA B200 (UUID: GPU-aa)
\t Link 0: Tx packets: 36
\t Link 0: Rx Errors: 0
\t Link 0: Link recovery successful events: 1
\t Link 0: Total link recovery events: 1
\t Link 0: Effective BER: 15e-255
\t Link 0: FEC Errors - 0: 130
\t Link 0: FEC Errors - 1: 20

\t Link 1: Tx packets: 36
\t Link 1: Rx Errors: 7
\t Link 1: Link recovery successful events: 0
\t Link 1: Total link recovery events: 0
\t Link 1: Effective BER: 3e-12
\t Link 1: FEC Errors - 0: 130
\t Link 1: FEC Errors - 1: 20
"""


def test_corrected_symbols_and_recovered_links_are_not_hard_but_errors_are() -> None:
    reading = read(TEXT.encode())
    gpu = reading.facts.gpus[0]
    assert (reading.status, reading.facts.counter_style) == ("ok", "nvlink5")
    assert gpu.hard_nonzero == {1: {"Rx Errors": 7}}
    assert gpu.ber_not_floor == {1: {"Effective BER": "3e-12"}}


def test_the_last_number_of_a_cut_text_is_not_believed() -> None:
    reading = read(TEXT[: TEXT.rindex("130") + 2].encode())
    assert [(p.kind, p.where) for p in reading.problems] == [("truncated", "GPU 0 Link 1")]
    assert "FEC Errors - 0" not in reading.facts.gpus[0].links[1]


def test_counter_that_is_not_available_is_unknown_and_not_zero() -> None:
    reading = read(b"GPU 0: A (UUID: GPU-a)\n\t Link 0: Replay Errors: N/A\n\t Link 0: CRC Errors: 2\n")
    gpu = reading.facts.gpus[0]
    assert gpu.links == {0: {"Replay Errors": None, "CRC Errors": 2}}
    assert gpu.nonzero == {0: {"CRC Errors": 2}}
    assert reading.facts.counter_style == "legacy"


def test_a_number_with_thousands_of_digits_is_damage() -> None:
    reading = read(
        b"GPU 0: A (UUID: GPU-a)\n\t Link 0: CRC Errors: " + b"9" * 6000 + b"\n\t Link 0: Replay Errors: 1\n"
    )
    assert [p.kind for p in reading.problems] == ["unparsable"]
    assert reading.facts.gpus[0].links == {0: {"Replay Errors": 1}}


def test_gpu_with_all_links_inactive_has_no_counters_and_no_fault() -> None:
    reading = read(b"GPU 0: A (UUID: GPU-a)\nNVML: Unable to retrieve NVLink information as all links are inActive\n")
    assert (reading.status, reading.facts.counter_style) == ("ok", None)
    assert reading.facts.gpus[0].condition == "all_inactive"


def test_a_counter_of_more_than_64_bits_is_no_counter() -> None:
    text = (
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 99999999999999999999\n\t Link 0: CRC Errors: 1\n"
    )
    reading = read(text.encode())
    assert reading.facts.gpus[0].links == {0: {"CRC Errors": 1}}
    assert [(p.kind, p.where) for p in reading.problems] == [("unparsable", "GPU 0 Link 0")]
