"""Plans of symmetric memory, and the views that their tensors become."""

from __future__ import annotations

import ctypes
import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.comm.symmetric import ALIGN_BYTES, Plan, SymmetricMemory
from epctl.core.errors import EpctlError
from tests.support.played_comm import PEER_STRIDE, PlayedComm, play
from tests.support.worlds import torch_or_skip

DTYPES = {"uint8": 1, "bfloat16": 2, "float32": 4, "int64": 8, "float8_e4m3fn": 1}


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch) -> PlayedComm:
    play(monkeypatch)
    return PlayedComm()


def made(comm: PlayedComm, num_bytes: int) -> SymmetricMemory:
    return SymmetricMemory(cast("Any", comm), num_bytes, 0)


def test_tensors_lie_one_behind_the_other_at_multiples_of_1024() -> None:
    torch = torch_or_skip()
    plan = Plan()
    rows = plan.allocate((3, 128), torch.bfloat16)
    counts = plan.allocate((256,), torch.int32)
    nothing = plan.allocate((0, 7), torch.int64)
    flags = plan.allocate((1025,), torch.uint8)
    assert plan.num_bytes == 1024 + 1024 + 0 + 2048
    assert plan.take() == [(rows, 0), (counts, 1024), (nothing, 2048), (flags, 2048)]
    assert {one.device.type for one in (rows, counts, nothing, flags)} == {"meta"}
    assert (rows.shape, rows.dtype) == ((3, 128), torch.bfloat16)


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=3), st.sampled_from(sorted(DTYPES))), max_size=6))
def test_no_two_tensors_overlap(wanted: list[tuple[list[int], str]]) -> None:
    torch = torch_or_skip()
    plan, sizes = Plan(), []
    for shape, dtype in wanted:
        plan.allocate(tuple(shape), getattr(torch, dtype))
        sizes.append(math.prod(shape) * DTYPES[dtype])
    offsets = [offset for _, offset in plan.take()]
    assert all(offset % ALIGN_BYTES == 0 for offset in offsets)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    for end, following in zip(ends, [*offsets[1:], plan.num_bytes], strict=False):
        assert end <= following < end + ALIGN_BYTES


def test_a_plan_makes_one_allocation() -> None:
    torch = torch_or_skip()
    plan = Plan()
    plan.take()
    with pytest.raises(EpctlError, match="the plan has been used") as taken:
        plan.take()
    assert taken.value.why == "a plan makes one allocation"
    with pytest.raises(EpctlError, match="the plan has been used") as late:
        plan.allocate((1,), torch.uint8)
    assert late.value.why == "its memory exists already and cannot grow"


@pytest.mark.parametrize(("asked", "size"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)])
def test_memory_is_whole_pages_and_zero(comm: PlayedComm, asked: int, size: int) -> None:
    memory = made(comm, asked)
    assert memory.num_bytes == size
    assert ctypes.string_at(memory.address, size) == bytes(size)
    assert memory.bytes_tensor().shape == (size,)
    assert (memory.window, memory.peer_address(1)) == (7000, memory.address + PEER_STRIDE)


def test_planned_tensors_become_views_of_the_memory(comm: PlayedComm) -> None:
    torch = torch_or_skip()
    plan = Plan()
    rows, counts = plan.allocate((2, 4), torch.bfloat16), plan.allocate((3,), torch.int32)
    same = rows
    memory = made(comm, 1024 + plan.num_bytes)
    memory.materialise(plan, 1024)
    assert same is rows
    assert (rows.device.type, rows.shape, rows.dtype) == ("cpu", (2, 4), torch.bfloat16)
    assert (counts.shape, counts.dtype) == ((3,), torch.int32)
    assert (rows.data_ptr(), counts.data_ptr()) == (memory.address + 1024, memory.address + 2048)
    counts.copy_(torch.tensor([1, -1, 258], dtype=torch.int32))
    rows[1, 3] = 1.0  # 0x3F80, the last of 8
    raw = ctypes.string_at(memory.address, memory.num_bytes)
    assert raw[2048:2060] == b"\1\0\0\0\xff\xff\xff\xff\2\1\0\0"
    assert raw[1024:1040] == bytes(14) + b"\x80\x3f"
    with pytest.raises(EpctlError, match="the plan has been used"):
        memory.materialise(plan)


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (4096, 1), (4000, 97), (0, 4097), (8, -1), (5000, None)])
def test_views_stay_inside(comm: PlayedComm, offset: int, size: int | None) -> None:
    memory = made(comm, 4096)
    with pytest.raises(ValueError, match="bytes from"):
        memory.bytes_tensor(offset, size)


def test_a_plan_that_is_larger_than_the_memory_is_refused(comm: PlayedComm) -> None:
    torch = torch_or_skip()
    plan = Plan()
    plan.allocate((4097,), torch.uint8)
    with pytest.raises(ValueError, match="4097 bytes from 0 of 4096"):
        made(comm, 4096).materialise(plan)


def test_memory_goes_back_once_after_its_window(comm: PlayedComm) -> None:
    memory = made(comm, 1)
    memory.close()
    memory.close()
    assert comm.said == ["allocate", "add window", "remove window", "free"]


def test_without_a_window_the_memory_goes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    comm = PlayedComm(refuses_windows=True)
    with pytest.raises(EpctlError, match="no window"):
        made(comm, 1)
    assert comm.said == ["allocate", "free"]
