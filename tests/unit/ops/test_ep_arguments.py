"""Bad arguments of the expert-parallel calls are told by name, shape and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.ops.ep import arguments
from epctl.ops.ep.call import checked_rows
from epctl.ops.ep.events import EventOverlap
from epctl.ops.ep.handle import EPHandle
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
