"""Bad arguments of the expert-parallel calls are told by name, shape and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.native.ep_sizes import Ring, ring_for
from epctl.ops.ep import arguments, checks
from epctl.ops.ep.call import checked_rows
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.events import EventOverlap
from epctl.ops.ep.handle import EPHandle
from epctl.ops.ep.streams import Streams
from tests.support.worlds import torch_or_skip


@pytest.fixture(autouse=True)
def torch() -> Any:  # noqa: ANN401
    return torch_or_skip()


@pytest.mark.parametrize(
    ("call", "what", "why"),
    [
        (lambda: arguments.hidden(100), "hidden is 100", "a multiple of 128 up to 16384"),
        (lambda: arguments.hidden(16512), "hidden is 16512", "up to 16384"),
        (lambda: arguments.hidden(0), "hidden is 0", "a multiple of 128"),
        (lambda: arguments.experts(10, 4), "num_experts is 10", "a multiple of the number of ranks, 4"),
        (lambda: arguments.experts(2048, 2), "num_experts is 2048", "from 1 to 1024"),
        (lambda: arguments.experts(None, 2), "num_experts is None", "a whole number"),
        (lambda: arguments.experts(True, 1), "num_experts is True", "a whole number"),
        (lambda: arguments.topk(17), "num_topk (topk_idx.shape[1]) is 17", "from 1 to 16"),
        (lambda: arguments.tokens(0), "num_max_tokens_per_rank is 0", "from 1 to 16384"),
        (lambda: arguments.between("expert_alignment", 1.5, 1, 9), "expert_alignment is 1.5", "from 1 to 9"),
    ],
)
def test_numbers(call: Callable[[], int], what: str, why: str) -> None:
    with pytest.raises(EpctlError) as caught:
        call()
    assert caught.value.what == what
    assert why in caught.value.why


def test_numbers_that_are_well() -> None:
    assert [arguments.hidden(16384), arguments.experts(1024, 8), arguments.topk(16), arguments.tokens(16384)] == [
        16384,
        1024,
        16,
        16384,
    ]


def test_tensors(torch: Any) -> None:  # noqa: ANN401
    device = torch.device("cpu")
    good = torch.zeros((4, 8), dtype=torch.float32)
    arguments.tensor("w", good, (4, None), (torch.float32,), device)
    arguments.tensor("w", torch.zeros((0, 8)), (None, 8), (torch.float32,), device)
    bad = {
        "w is torch.float32 [4, 8] on cpu": good,
        "w is torch.float64 [4, 3] on cpu": torch.zeros((4, 3), dtype=torch.float64),
        "w is torch.float32 [3, 4] on cpu": torch.zeros((4, 3)).t(),
        "w is None": None,
        "w is [1, 2]": [1, 2],
    }
    for what, value in bad.items():
        with pytest.raises(EpctlError) as caught:
            arguments.tensor("w", value, (3, None), (torch.float32,), device)
        assert caught.value.what == what
        assert caught.value.why == "expected is a contiguous torch.float32 [3, any] on cpu"


def test_tensors_begin_at_multiples_of_16_bytes(torch: Any) -> None:  # noqa: ANN401
    shifted = torch.zeros(9)[1:]
    with pytest.raises(EpctlError, match="w is") as caught:
        arguments.tensor("w", shifted, (8,), (torch.float32,), torch.device("cpu"))
    assert "beginning at a multiple of 16 bytes" in caught.value.why


def test_what_is_read_word_by_word_may_begin_at_any_word(torch: Any) -> None:  # noqa: ANN401
    statistics = torch.zeros((3, 3), dtype=torch.int32)[1]
    arguments.tensor("s", statistics, (3,), (torch.int32,), torch.device("cpu"), align_bytes=4)
    with pytest.raises(EpctlError, match="s is"):
        arguments.tensor("s", statistics, (3,), (torch.int32,), torch.device("cpu"), align_bytes=8)


def test_rows_of_a_dispatch(torch: Any) -> None:  # noqa: ANN401
    device, fp8 = torch.device("cpu"), torch.float8_e4m3fn
    x8 = torch.zeros((3, 640), dtype=torch.uint8).view(fp8)
    rows = checked_rows((x8, torch.zeros((3, 5))), 640, 1280, device)
    assert (rows.row_bytes, rows.scale_bytes) == (640, 20)
    packed = checked_rows((x8, torch.zeros((3, 2), dtype=torch.int32)), 640, 1280, device)
    assert packed.scale_bytes == 8
    assert checked_rows(torch.zeros((3, 640)).bfloat16(), 640, 1280, device).scale_bytes == 0
    bad = [
        ((x8,), "x is"),
        ((x8, torch.zeros((3, 4))), r"x\[1\] is"),
        ((x8, torch.zeros((3, 5), dtype=torch.float64)), r"x\[1\] is"),
        ((torch.zeros((3, 640)), torch.zeros((3, 5))), r"x\[0\] is"),
        (x8, "x is torch.float8_e4m3fn"),
        (torch.zeros((3, 512)).bfloat16(), r"x is torch.bfloat16 \[3, 512\]"),
    ]
    for value, message in bad:
        with pytest.raises(EpctlError, match=message):
            checked_rows(value, 640, 1280, device)
    with pytest.raises(EpctlError, match="x is") as caught:
        checked_rows(torch.zeros((3, 640)).bfloat16(), 640, 640, device)
    assert "640 bytes, which the buffer was made for" in caught.value.why


def test_a_handle_belongs_to_its_buffer_and_its_indices(torch: Any) -> None:  # noqa: ANN401
    mine, topk_idx = object(), torch.zeros((2, 1), dtype=torch.int64)
    handle = EPHandle(mine, 0, topk_idx, 2)
    handle.check(mine)
    with pytest.raises(EpctlError, match="belongs to another buffer"):
        handle.check(object())
    topk_idx[0] = 1
    with pytest.raises(EpctlError, match="topk_idx has been changed"):
        handle.check(mine)


def test_a_handle_in_inference_mode(torch: Any) -> None:  # noqa: ANN401
    """PyTorch counts no versions there, and raises when asked."""
    with torch.inference_mode():
        topk_idx = torch.zeros((2, 1), dtype=torch.int64)
        mine = object()
        handle = EPHandle(mine, 0, topk_idx, 2)
        topk_idx[0] = 1
        handle.check(mine)


@pytest.mark.parametrize("value", [None, "handle", (1, 2)])
def test_what_is_no_handle(value: object) -> None:
    with pytest.raises(EpctlError, match="handle is"):
        checks.check_handle(value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ((8, None, None, False), "num_experts is 8"),
        ((None, 128, None, False), "num_max_tokens_per_rank is 128"),
        ((None, None, 4, False), "expert_alignment is 4"),
        ((None, None, None, True), "do_expand is True"),
    ],
)
def test_what_contradicts_a_handle_is_refused(torch: Any, told: Any, message: str) -> None:  # noqa: ANN401
    handle = EPHandle(object(), 0, torch.zeros((2, 1), dtype=torch.int64), 2)
    handle.num_experts, handle.num_max_tokens_per_rank = 16, 64
    checks.check_replay(handle, 16, 64, 1, do_expand=False)
    checks.check_replay(handle, None, None, None, do_expand=False)
    with pytest.raises(EpctlError, match=message):
        checks.check_replay(handle, *told)


class Shared:
    """Of an engine: what checks ask it for."""

    def __init__(self, device: Any, num_ranks: int) -> None:  # noqa: ANN401
        self.device, self.domain = device, SimpleNamespace(num_ranks=num_ranks)

    def ring(self, row_bytes: int, num_tokens: int, num_blocks: int) -> Ring:
        """As Engine's."""
        return ring_for(row_bytes, num_tokens, self.domain.num_ranks, num_blocks)


def test_where_waits_are_told(torch: Any) -> None:  # noqa: ANN401
    engine: Any = Shared(torch.device("cpu"), 2)
    checks.check_waits(engine, None)
    checks.check_waits(engine, torch.zeros(2, dtype=torch.int64))
    for wrong in (torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)):
        with pytest.raises(EpctlError, match="waited_ns is"):
            checks.check_waits(engine, wrong)


def test_too_few_blocks_for_the_counts_of_a_rack(torch: Any) -> None:  # noqa: ANN401
    engine: Any = Shared(torch.device("cpu"), 72)
    checks.check_blocks(engine, 2 * 16384, 16384, 2)
    assert engine.ring(2 * 16384, 9000, 1).num_stages == 1, "one row at a time where the counts leave no room for two"
    with pytest.raises(EpctlError, match="num_sms is 1"):
        checks.check_blocks(engine, 2 * 16384, 16384, 1)


class Stream:
    """Notes what it waits for."""

    def __init__(self, name: str, capturing: bool) -> None:
        self.name, self.capturing = name, capturing
        self.waited: list[str] = []

    def record_event(self) -> str:
        """Its point is its name."""
        return self.name

    def wait_event(self, event: str) -> None:
        """See above."""
        self.waited.append(event)


def test_a_buffer_follows_its_streams_and_what_is_captured_by_itself(
    torch: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current: list[Stream] = []

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current[-1].capturing)
    engine: Any = object.__new__(Engine)
    engine._last_stream = engine._last_captured = None
    eager, other = Stream("eager", capturing=False), Stream("other", capturing=False)
    graph, side = Stream("graph", capturing=True), Stream("side", capturing=True)

    def follow(stream: Stream) -> list[str]:
        with entered(stream):
            engine.follow(stream)
        return stream.waited

    assert follow(eager) == []
    assert follow(graph) == []
    assert follow(side) == ["graph"]
    # The capture has not made the buffer forget what was launched before it.
    assert follow(other) == ["eager"]
    side.capturing = False
    assert follow(graph) == [], "what an earlier capture ended with is no part of this one"


class Memory:
    """Of a tensor: the streams that it is kept for."""

    def __init__(self) -> None:
        self.kept_for: list[str] = []

    def record_stream(self, stream: Stream) -> None:
        """As a tensor's."""
        self.kept_for.append(stream.name)


def test_memory_outlives_its_last_use_in_any_stream(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    """What a call reads is kept for its stream, what it gives for the caller's; the rest of a deferred one runs in a third."""
    caller, comm, third = (Stream(name, capturing=False) for name in ("caller", "comm", "third"))
    current = [caller]
    point = SimpleNamespace(record=lambda _stream: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: current[0])
    monkeypatch.setattr(torch.cuda, "Event", lambda: point)
    streams: Any = object.__new__(Streams)
    shown = Memory()
    streams._engine = SimpleNamespace(
        device="gpu", offset_of=lambda one: 0 if one is shown else None, follow=lambda _stream: None
    )
    given, made = Memory(), Memory()
    assert streams.end(caller, (given,), (made,)).event is None
    assert (given.kept_for, made.kept_for) == ([], [])
    streams.end(comm, ((given, None),), (made, shown))
    assert (given.kept_for, made.kept_for, shown.kept_for) == (["comm"], ["caller"], [])
    given, made = Memory(), Memory()
    event = streams.deferred(comm, (given,), (made,), lambda stream: stream.name)
    assert (given.kept_for, made.kept_for) == (["comm"], [])
    current[0] = third
    assert event.wait() == "third"
    assert (given.kept_for, made.kept_for) == (["comm", "third"], ["third"])


def test_a_deferred_result_is_given_once() -> None:
    event = EventOverlap(deferred=lambda: "result")
    assert event.current_stream_wait() == "result"
    with pytest.raises(EpctlError, match="has been taken"):
        event.current_stream_wait()
    with EventOverlap(deferred=lambda: "other") as left:
        pass
    with pytest.raises(EpctlError, match="has been taken"):
        left.wait()
    assert EventOverlap().wait() is None
