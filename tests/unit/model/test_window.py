"""Windows of symmetric memory share the stride of address space that NCCL reserves for each rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epctl.model.budget_lines import Load, window_stride
from epctl.model.hardware import hardware
from epctl.model.inputs import Flags, Node, resolve
from epctl.model.rules import RULES

GIB = 1 << 30


def node() -> Node:
    return resolve(Flags(), hardware("h200-ndr400"), None, RULES["deepep-2.5"])


def test_without_a_setting_the_stride_is_the_memory_up_to_four_gibibytes() -> None:
    memory = int(node().memory_bytes.value)
    assert window_stride(node(), Load()) == -(-memory // (4 * GIB)) * 4 * GIB


@given(st.integers(1, 1 << 45))
def test_a_set_stride_is_rounded_up_and_never_down(stride: int) -> None:
    found = window_stride(node(), Load(window_stride_bytes=stride))
    assert found % (4 * GIB) == 0
    assert stride <= found < stride + 4 * GIB
