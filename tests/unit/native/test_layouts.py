"""Structs that Python packs or reads are those of the C++ headers: a program compiled with g++ tells their bytes."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from epctl.native import waits
from epctl.native.families import FAMILIES, link_variant
from epctl.native.kernels import INCLUDE
from epctl.native.link_args import LinkArgs, PingPongArgs, bulk_shared_bytes
from epctl.native.peers import Limits
from epctl.native.waits import Timeout

PROGRAM = """
#include <cstdio>
#include "epctl/ops/link_args.h"
using namespace epctl;
template <class T> void tell(const T& thing) { std::fwrite(&thing, sizeof(T), 1, stdout); }
template <class T> T* at(unsigned long address) { return reinterpret_cast<T*>(address); }
int main() {
    LinkArgs link{};
    link.num_rows = 1; link.target = at<void>(2); link.source = at<void>(3); link.addend = at<void>(4);
    link.sums = at<uint32_t>(5); link.pattern = 6;
    tell(link);
    PingPongArgs ping{};
    ping.mine = at<uint64_t>(1); ping.theirs = at<uint64_t>(2); ping.begin = 3; ping.num_rounds = 4;
    ping.elapsed_ns = at<uint64_t>(5); ping.limits.rank = 6; ping.peer = 7; ping.serves = 1;
    ping.limits.record = at<WaitRecord>(8); ping.limits.given_up = at<uint32_t>(9); ping.limits.timeout_ms = 9500;
    tell(ping);
    WaitRecord record{};
    record.state = kRecordComplete; record.waiter = 5; record.peer = 2; record.stage = static_cast<uint32_t>(Stage::kLinkPong);
    record.expected = 10; record.seen = 7; record.progress = 9; record.waited_ns = 10000000000; record.block = 3; record.thread = 4;
    tell(record);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_bytes(tmp_path: Path) -> None:
    program = tmp_path / "p"
    argv = ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{INCLUDE}", "-x", "c++", "-", "-o", str(program)]
    subprocess.run(argv, input=PROGRAM.encode(), check=True)
    told = subprocess.run([str(program)], capture_output=True, check=True).stdout
    link = LinkArgs(1, 2, 3, 4, 5, 6).pack()
    ping = PingPongArgs(1, 2, 3, 4, 5, 7, True, Limits(8, 9, 9.5, 6)).pack()
    assert told.startswith(link + ping)
    record = told[len(link + ping) :]
    assert len(record) == waits.RECORD_BYTES
    timeout = waits.read(record)
    assert timeout == Timeout(5, 2, 2, 10, 7, 9, 10.0, 3, 4)
    assert str(timeout).startswith("rank 5 waited 10 s for rank 2's pong signal in link latency, after 9 rounds")


def test_a_record_that_is_free_or_half_written_tells_nothing() -> None:
    assert waits.read(bytes(4) + bytes([7]) * (waits.RECORD_BYTES - 4)) is None


def test_kernels_wait_at_least_as_long_as_they_are_told_and_never_for_ever() -> None:
    assert Limits(1, 2, 0.0001, 3).pack() == struct.pack("<QQII", 1, 2, 3, 1)
    assert Limits(1, 2, 1.0005, 3).pack() == struct.pack("<QQII", 1, 2, 3, 1001)
    for timeout_s in (0, -1, 5e6, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive time"):
            Limits(1, 2, timeout_s, 3).pack()


def test_every_stage_has_words() -> None:
    header = (INCLUDE / "epctl" / "common" / "wait_record.h").read_text()
    stages = header.partition("enum class Stage")[2].partition("}")[0]
    numbers = {int(line.partition("=")[2].strip(" ,")) for line in stages.splitlines() if "=" in line}
    assert numbers == {0, *waits.STAGES}


@pytest.mark.parametrize("row_bytes", [0, -16, 7170, 16 * 1024 * 1024])
def test_rows_that_cannot_be_copied_in_bulk(row_bytes: int) -> None:
    with pytest.raises(ValueError, match="rows of"):
        bulk_shared_bytes(row_bytes, 128)


def test_shared_memory() -> None:
    assert bulk_shared_bytes(14336, 128) == 4 * 2 * 14336
    assert bulk_shared_bytes(14336, 512) == 7 * 2 * 14336
    assert bulk_shared_bytes(7392, 32) == 2 * 7424
    assert link_variant(7392, 32).defines[-1] == ("EPCTL_BULK_SHARED_BYTES", 14848)


def test_names_of_variants_are_their_own() -> None:
    for family in FAMILIES.values():
        assert len({variant.name for variant in family.variants}) == len(family.variants)
