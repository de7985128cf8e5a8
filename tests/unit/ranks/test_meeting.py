"""A meeting over a real store, with its ranks as threads of one process: what is exchanged, and every way in which one is missing."""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.core.placement import LOOPBACK, Placement
from epctl.ranks.beats import Ended
from epctl.ranks.facts import JobError, own
from epctl.ranks.meeting import Meeting
from epctl.ranks.roll import PeerEndedError
from epctl.ranks.store import listener

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing")


def places(size: int, port: int) -> list[Placement]:
    return [Placement(rank, size, rank, size, 0, 1, LOOPBACK, port, "spawn", "test") for rank in range(size)]


def free() -> socket.socket:
    return listener(LOOPBACK, 0)


def together(size: int, act: Callable[[Meeting], Any], silent_s: float = 20.0) -> list[Any]:
    """What `act` gives, or the error it raises, on each rank of a meeting."""
    found = free()
    port = found.getsockname()[1]
    fd = found.detach()

    def one(place: Placement) -> Any:  # noqa: ANN401 - whatever `act` gives
        meeting = Meeting.join(place, 5.0, listen_fd=fd if place.rank == 0 else None, silent_s=silent_s)
        failed = False
        try:
            return act(meeting)
        except EpctlError as error:
            failed = True
            return error
        finally:
            meeting.close(failed=failed)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, places(size, port)))


def test_values_reach_all_ranks_in_order_and_a_stage_may_come_again() -> None:
    def act(meeting: Meeting) -> list[list[bytes]]:
        rank = meeting.placement.rank
        return [meeting.all_gather("s", bytes([rank, number, 0, 255])) for number in range(5)]

    expected = [[bytes([rank, number, 0, 255]) for rank in range(3)] for number in range(5)]
    assert together(3, act) == [expected] * 3


def test_a_value_is_got_once_it_is_put_and_an_absent_one_is_named() -> None:
    def act(meeting: Meeting) -> bytes:
        if meeting.placement.rank == 0:
            time.sleep(0.1)
            meeting.put("id", b"\x00\x01")
        value = meeting.get("id", 5.0)
        with pytest.raises(EpctlError, match=f"no rank gave other to rank {meeting.placement.rank} within 0.1 s"):
            meeting.get("other", 0.1)
        meeting.arrive("end")
        return value

    assert together(2, act) == [b"\x00\x01"] * 2


def test_who_does_not_come_to_a_stage_is_named_with_where_it_was_last() -> None:
    def act(meeting: Meeting) -> None:
        meeting.note_stage("warm up")
        if meeting.placement.rank != 1:
            meeting.arrive("measure", 0.3)

    first, second, third = together(3, act)
    assert second is None
    for error in (first, third):
        assert error.what == 'rank 1 did not come to stage "measure" within 0.3 s'
        assert 'was last in stage "warm up"' in error.why
        assert error.exit_code == 4


def test_ranks_in_different_stages_say_so_instead_of_mixing_values() -> None:
    errors = together(2, lambda meeting: meeting.all_gather(f"stage {meeting.placement.rank}", b""))
    assert str(errors[0].what) == 'rank 0 is in stage "stage 0", but rank 1 in "stage 1"'


def test_an_end_that_is_told_reaches_all_at_once_whatever_their_limit() -> None:
    def act(meeting: Meeting) -> None:
        if meeting.placement.rank == 2:
            meeting.tell_end(Ended(2, "ended by signal 9 (SIGKILL)", "dispatch"))
        else:
            meeting.arrive("never", 30.0)

    began = time.monotonic()
    first, second, _ = together(3, act)
    assert time.monotonic() - began < 15
    for error in (first, second):
        assert isinstance(error, PeerEndedError)
        assert error.what == 'rank 2 ended by signal 9 (SIGKILL) in stage "dispatch"'
        assert error.rank == 2


def test_a_rank_that_gives_no_sign_of_life_is_named() -> None:
    def act(meeting: Meeting) -> None:
        if meeting.placement.rank == 1:
            meeting.beats.stop()  # as on a machine that is gone
            time.sleep(3.0)
        else:
            meeting.arrive("never", 30.0)

    first, _, third = together(3, act, silent_s=1.5)
    for error in (first, third):
        assert error.what.startswith("rank 1 has given no sign of life for 1.5 s")


def test_ranks_that_do_not_join_are_named() -> None:
    found = free()
    here = places(4, found.getsockname()[1])
    fd = found.detach()

    def join(place: Placement) -> EpctlError:
        with pytest.raises(EpctlError) as caught:
            Meeting.join(place, 0.5, listen_fd=fd if place.rank == 0 else None)
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, (here[0], here[2]))
    for error in (first, second):  # one may hear it from the other
        assert error.what.startswith("ranks 1, 3 of 4 did not join at 127.0.0.1:")
        assert error.exit_code == 4
    assert any("2 ranks are there" in error.why for error in (first, second))


def refusals(joining: list[tuple[Placement, int | None]]) -> list[str]:
    def join(entry: tuple[Placement, int | None]) -> str:
        with pytest.raises(EpctlError) as caught:
            Meeting.join(entry[0], 5.0, listen_fd=entry[1])
        return f"{caught.value.what} {caught.value.why}"

    with ThreadPoolExecutor(len(joining)) as pool:
        return list(pool.map(join, joining))


def test_a_rank_that_is_there_twice_is_an_error_for_all_at_once() -> None:
    found = free()
    here = places(3, found.getsockname()[1])
    told = refusals([(here[0], found.detach()), (here[1], None), (here[1], None)])
    assert all("rank 1 is there twice" in words for words in told)


def test_two_ranks_0_are_an_error() -> None:
    """The job split in two, and both parts come to the same place."""
    found = free()
    here = places(1, found.getsockname()[1])
    told = refusals([(here[0], None)])
    assert "rank 0 cannot keep the meeting point at 127.0.0.1:" in told[0]
    assert "this one has two ranks 0" in told[0]
    found.close()


def test_ranks_of_a_job_of_another_size_are_an_error() -> None:
    found = free()
    port = found.getsockname()[1]
    told = refusals([(places(2, port)[0], found.detach()), (places(3, port)[1], None)])
    assert any("to a job of 3 ranks" in words or "to one of 3" in words for words in told)


def test_a_meeting_point_that_does_not_exist_is_named_within_the_limit() -> None:
    found = free()
    place = places(2, found.getsockname()[1])[1]
    found.close()
    began = time.monotonic()
    with pytest.raises(EpctlError, match=f"rank 1 found no meeting point at 127.0.0.1:{place.port} within 0.4 s"):
        Meeting.join(place, 0.4)
    assert time.monotonic() - began < 2


def test_versions_are_compared_by_all_ranks() -> None:
    def act(meeting: Meeting) -> None:
        meeting.verify(own(meeting.placement, nccl="2.32.3" if meeting.placement.rank else "2.28.9"))

    for error in together(2, act):
        assert isinstance(error, JobError)
        assert "2.28.9 on rank 0" in error.what


def test_rank_0_keeps_the_store_until_the_others_have_left() -> None:
    def act(meeting: Meeting) -> str:
        meeting.arrive("end")
        if meeting.placement.rank == 1:
            time.sleep(0.3)
            meeting.note_stage("late")
        return "fine"

    assert together(2, act) == ["fine", "fine"]
