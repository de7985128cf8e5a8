"""The record of a wait that gave up, in plain memory: kernels write it through the addresses that their limits name."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import pytest

from epctl.comm.wait_record import GIVEN_UP_BYTES, WaitRecord
from epctl.native.waits import RECORD_BYTES, Timeout
from tests.support.worlds import torch_or_skip


@pytest.fixture
def record() -> WaitRecord:
    return WaitRecord(torch_or_skip().device("cpu"))


def gives_up(found: WaitRecord, state: int = 1) -> None:
    """What a kernel leaves behind: rank 3 waited 2.5 s for rank 1 in the barrier."""
    limits = found.limits(1.0, 3)
    raw = struct.pack("<IIIIQQQQIIQ", state, 3, 1, 3, 8, 7, 6, 2_500_000_000, 5, 4, 0)
    assert len(raw) == RECORD_BYTES
    ctypes.memmove(limits.record, raw, RECORD_BYTES)
    ctypes.memmove(limits.given_up, (1).to_bytes(GIVEN_UP_BYTES, "little"), GIVEN_UP_BYTES)


def word(found: WaitRecord) -> int:
    return int.from_bytes(ctypes.string_at(found.limits(1.0, 0).given_up, GIVEN_UP_BYTES), "little")


def test_limits_name_the_record_the_word_and_the_rank(record: WaitRecord) -> None:
    limits = record.limits(2.5, 7)
    assert (limits.timeout_s, limits.rank) == (2.5, 7)
    assert limits.record
    assert not limits.record <= limits.given_up < limits.record + RECORD_BYTES
    assert struct.unpack("<QQII", limits.pack()) == (limits.record, limits.given_up, 7, 2500)
    assert record.limits(0.1, 1).record == limits.record


def test_nothing_has_given_up_at_first(record: WaitRecord) -> None:
    assert record.timeout() is None
    assert word(record) == 0


def test_a_timeout_is_read_back_from_the_bytes_of_a_kernel(record: WaitRecord) -> None:
    gives_up(record)
    found = record.timeout()
    assert found == Timeout(3, 1, 3, expected=8, seen=7, progress=6, waited_s=2.5, block_idx=5, thread_idx=4)
    assert str(found).startswith("rank 3 waited 2.5 s for rank 1's arrival signal in the barrier, after 6 rounds")


@pytest.mark.parametrize("state", [0, 2])
def test_a_record_that_is_still_being_written_tells_nothing(record: WaitRecord, state: int) -> None:
    gives_up(record, state)
    assert record.timeout() is None


def test_clear_forgets_the_wait_at_the_same_addresses(record: WaitRecord) -> None:
    before = record.limits(1.0, 3)
    gives_up(record)
    assert word(record) == 1
    record.clear()
    assert (record.timeout(), word(record)) == (None, 0)
    assert ctypes.string_at(before.record, RECORD_BYTES) == bytes(RECORD_BYTES)
    assert record.limits(1.0, 3) == before


@pytest.mark.parametrize("look", [WaitRecord.timeout, word])
def test_records_of_two_domains_are_apart(record: WaitRecord, look: Callable[[WaitRecord], object]) -> None:
    other = WaitRecord(torch_or_skip().device("cpu"))
    clean = look(other)
    gives_up(record)
    assert look(other) == clean != look(record)
