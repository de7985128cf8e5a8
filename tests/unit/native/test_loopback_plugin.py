"""The loopback plugin between processes, over a made-up driver whose memory is the host's: everything but the GPU is real."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from epctl.native import compilers, loopback_plugin
from tests.support import loopback_plugin_api as api
from tests.support.loopback_ranks import ROOT, Outcome, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")]
SLOW_COPIES = {"FAKE_NS_PER_BYTE": "200"}
"""0.1 s for the half of a window, 2 µs for 8 bytes."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(plugin with a kernel that only the made-up driver takes, that driver)."""
    folder = tmp_path_factory.mktemp("loopback")
    image, plugin, driver = folder / "image", folder / loopback_plugin.FILE, folder / "libcuda.so.1"
    image.write_bytes(b"no kernel")
    gxx = compilers.find_gxx()
    subprocess.run(loopback_plugin.host_command(gxx, image, plugin), check=True, capture_output=True)
    source = ROOT / "tests/support/loopback_fake_cuda.cpp"
    flags = (
        "-shared",
        "-fPIC",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-Wl,-soname,libcuda.so.1",
    )
    subprocess.run([gxx.path, *flags, str(source), "-o", str(driver)], check=True, capture_output=True)
    return plugin, driver


def results(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """What all ranks returned; the test fails with what one wrote that did not."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, f"rank {rank}: {outcome.stderr}"
    return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_put_and_signal_around_a_ring(files: tuple[Path, Path], num_ranks: int) -> None:
    for found in results(run("ring", num_ranks, *files)):
        # One launch: the kernel's proof at the start. Signals that are never reset need none.
        assert found == {"signal": 18, "expected": 18, "alive": {}, "launches": 1}


def test_signals_where_the_gpu_cannot_write_64_bits_from_a_stream(files: tuple[Path, Path]) -> None:
    for found in results(run("ring", 2, *files, FAKE_NO_MEM_OPS="1")):
        assert (found["signal"], found["alive"]) == (18, {})
        assert found["launches"] > 1


def test_get_is_there_after_the_flush(files: tuple[Path, Path]) -> None:
    for found in results(run("get", 3, *files, **SLOW_COPIES)):
        assert found == {"right": True, "alive": {}}


def test_values_of_the_host(files: tuple[Path, Path]) -> None:
    wanted = bytearray(96)
    for size, offset in ((1, 17), (2, 34), (4, 52), (8, 64), (8, 77)):
        wanted[offset : offset + size] = bytes.fromhex("1122334455667788")[:size]
    for found in results(run("values", 2, *files)):
        assert found == {"found": [wanted.hex()] * 2, "alive": {}}


def test_a_weak_signal_overtakes_and_a_strong_one_waits(files: tuple[Path, Path]) -> None:
    sender, receiver = results(run("strong_and_weak", 2, *files, **SLOW_COPIES))
    assert receiver == {"strong when weak arrived": 0, "alive": {}}
    assert sender == {"alive": {}}


def test_signals_that_device_code_resets_are_added_to(files: tuple[Path, Path]) -> None:
    for found in results(run("resettable", 2, *files)):
        assert found["first"] == [1 + i for i in range(40)]
        assert (found["second"], found["alive"]) == (5, {})
        assert found["launches"] >= 4  # the proof, 40 signals in two batches or more, and the last one


def test_a_receiver_that_makes_no_call_gets_its_signal(files: tuple[Path, Path]) -> None:
    sender, receiver = results(run("nobody_calls", 2, *files))
    assert receiver == {"value": 7, "alive": {}}
    assert sender == {"value": 0, "alive": {}}


def test_more_signals_than_a_socket_holds(files: tuple[Path, Path]) -> None:
    for found in results(run("many_signals", 2, *files)):
        assert found == {"value": 5000, "alive": {}}


def test_destruction_completes_what_is_in_flight(files: tuple[Path, Path]) -> None:
    for found in results(run("drain", 2, *files, **SLOW_COPIES)):
        assert found == {"right": True, "late": [0, 0], "again": api.INVALID_ARGUMENT, "alive": {}}


def test_destruction_ends_when_the_gpu_stands_still(files: tuple[Path, Path]) -> None:
    for rank, found in enumerate(results(run("destroy_in_flight", 2, *files, EPCTL_LOOPBACK_TIMEOUT_S="1"))):
        assert 0.9 < found["took"] < 2.0
        assert any(
            text.startswith(f"3 requests to rank {1 - rank} of 2 (process ")
            and text.endswith("are cancelled with their context")
            for text in found["warnings"]
        )
        # What the GPU may still write to stays mapped; everything else is given back.
        assert found["alive"] == {"reserved": 1, "mapped": 1}


def test_a_rank_that_is_killed_is_named_by_all_others(files: tuple[Path, Path]) -> None:
    outcomes = run("killed", 3, *files)
    assert outcomes[1].code == -9
    for rank in (0, 2):
        found = outcomes[rank].result
        assert found is not None, outcomes[rank].stderr
        assert found["noticed"] < 1.0
        assert found["codes"] == [api.REMOTE]
        assert found["closed"] < 2.0
        assert found["alive"] == {}
        assert len(found["warnings"]) == 1
        assert "gives up: rank 1 of 3 (process " in found["warnings"][0]
        assert found["warnings"][0].endswith("has ended without closing its communicator")


def test_a_rank_that_dies_before_it_registers_is_named(files: tuple[Path, Path]) -> None:
    outcomes = run("killed_at_registration", 2, *files)
    found = outcomes[0].result
    assert (found["code"], found["alive"]) == (api.REMOTE, {})
    assert found["took"] < 2.0
    assert "rank 1 of 2 (process " in found["warnings"][0]


def test_a_rank_that_does_not_connect_is_named_when_the_time_is_over(files: tuple[Path, Path]) -> None:
    found = results(run("missing", 3, *files, EPCTL_LOOPBACK_TIMEOUT_S="1"))
    for rank in (0, 1):
        assert found[rank]["code"] == api.SYSTEM
        assert 0.9 < found[rank]["took"] < 3.0
        assert "rank 2 did not answer in time" in found[rank]["warnings"][0]


def test_a_rank_that_leaves_early_is_no_error(files: tuple[Path, Path]) -> None:
    stayed, left = results(run("leave_early", 2, *files))
    assert (stayed["error"], stayed["warnings"], stayed["alive"], left["alive"]) == (False, [], {}, {})
    assert any("has left: signals to it are dropped" in text for text in stayed["log"])
    assert any("50 were for ranks that had left" in text for text in stayed["log"])


def test_a_gpu_that_fails_is_told_to_the_others(files: tuple[Path, Path]) -> None:
    broken, told = results(run("lost_gpu", 2, *files))
    assert broken["code"] == api.CUDA_ERROR
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in broken["warnings"][0]
    assert "rank 0 of 2 (process " in told["warnings"][0]
    assert told["warnings"][0].endswith("has given up after an error of its own")
    assert told["alive"] == {}


def test_arguments_that_make_no_sense_are_refused_in_words(files: tuple[Path, Path]) -> None:
    words = {
        "beyond": (api.INVALID_ARGUMENT, "8 bytes at 1048572 are not within the 1048576 of rank"),
        "rank": (api.INVALID_ARGUMENT, "rank 2 of 2"),
        "context": (api.INVALID_ARGUMENT, "context 2 of 2"),
        "signal": (api.INVALID_ARGUMENT, "a signal to byte 4 of 4096"),
        "unreachable": (api.INVALID_USAGE, "cannot be reached: cuMemExportToShareableHandle says"),
        "withdrawn": (api.INVALID_ARGUMENT, "there is no registered memory of this rank"),
        "operation": (api.INVALID_ARGUMENT, "a signal of operation 7"),
    }
    for result in results(run("bad_arguments", 2, *files)):
        found = {kind: (code, text) for kind, code, text in result["found"]}
        assert list(found) == list(words)
        for kind, (code, text) in words.items():
            assert found[kind][0] == code, kind
            assert text in found[kind][1], kind
        assert result["alive"] == {}


def test_memory_that_cannot_be_mapped_fails_the_registration(files: tuple[Path, Path]) -> None:
    refused, fine = results(run("unmappable", 2, *files))
    assert refused["code"] == api.CUDA_ERROR
    assert "cuMemSetAccess" in refused["warnings"][0]
    assert fine["code"] == 0
    assert refused["alive"] == fine["alive"] == {}


def test_twenty_communicators_leave_nothing(files: tuple[Path, Path]) -> None:
    for found in results(run("cycles", 2, *files)):
        assert found["alive"] == {}
        assert len(set(found["fds"])) == 1
        assert found["maps"] == [0] * 20
        assert found["grown_kib"] < 4096
        assert found["threads"] == 2  # with the one of the made-up driver
