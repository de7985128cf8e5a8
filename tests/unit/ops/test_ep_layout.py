"""Where the parts of an expert-parallel buffer lie, what fits into shared memory, and structs that C++ reads the same way."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from epctl.native import ep_args, ep_sizes
from epctl.native.ep_sizes import MAX_MOVERS, MAX_SHARED_BYTES, push_ring_for, ring_for
from epctl.native.peers import Limits, Peers
from epctl.ops.ep.layout import ALIGN_BYTES, NUM_SLOTS, control_parts, expanded_capacity, layout_for, rows_for

HEADER = Path(ep_args.__file__).resolve().parent / "include" / "epctl" / "ops" / "ep_args.h"
SHAPES = st.tuples(
    st.sampled_from((1, 2, 8, 72)),
    st.integers(1, 16384),
    st.integers(1, 128).map(lambda one: one * 128),
    st.integers(1, 16),
)


@given(shape=SHAPES, fp8=st.booleans(), every_row=st.booleans())
def test_parts_follow_each_other_without_overlap(shape: tuple[int, int, int, int], fp8: bool, every_row: bool) -> None:
    num_ranks, max_tokens, hidden, num_topk = shape
    rows = rows_for(num_ranks, max_tokens, hidden, num_topk, fp8=fp8, every_row=every_row)
    layout = layout_for(rows)
    capacity = num_ranks * max_tokens
    sizes = {
        "rows": capacity * (hidden if fp8 else 2 * hidden),
        "scales": capacity * -(-hidden // 128) * 4,
        "indices": capacity * num_topk * 8,
        "weights": capacity * num_topk * 4,
        "metadata": capacity * (num_topk + 2) * 4,
    }
    parts = []
    for slot_idx in range(NUM_SLOTS):
        at = layout.offsets(slot_idx)
        parts += [(getattr(at, name), size) for name, size in sizes.items()]
    control = control_parts(num_ranks)
    parts += [(begin, end - begin) for begin, end in itertools.pairwise(control)]
    parts.sort()
    for (begin, size), (following, _) in itertools.pairwise(parts):
        assert begin + size <= following
    assert all(begin % ALIGN_BYTES == 0 for begin, _ in parts)
    last, size = parts[-1]
    assert last + size <= layout.slot_begin + NUM_SLOTS * layout.slot_bytes <= layout.num_bytes


@given(shape=SHAPES, fp8=st.booleans(), max_tokens=st.integers(1, 16384))
def test_calls_of_either_parity_keep_apart_whatever_their_shapes(
    shape: tuple[int, int, int, int], fp8: bool, max_tokens: int
) -> None:
    """A rank that is one call ahead writes while others still read: where it does must not depend on the call's own sizes."""
    num_ranks, most_tokens, hidden, num_topk = shape
    layout = layout_for(rows_for(num_ranks, most_tokens, hidden, num_topk, fp8=fp8))
    combine, small = layout.combine, layout.small
    called = min(max_tokens, most_tokens)
    assert num_ranks * (called + 1) * 4 <= combine.table_bytes
    assert combine.table + 2 * combine.table_bytes <= combine.landed
    scales = -(-hidden // 128)
    for row_bytes, num_scales in ((hidden, scales), (hidden, -(-scales // 4)), *(() if fp8 else ((2 * hidden, 0),))):
        assert ep_sizes.small_slot_bytes(row_bytes, 4 * num_scales) <= small.line_bytes
    assert small.line_bytes % ep_sizes.GROUP_BYTES == 0
    assert small.lines + 2 * num_ranks * small.num_tokens * small.line_bytes <= small.here
    words = 2 * num_ranks * -(-ep_sizes.MAX_EXPERTS // num_ranks)
    assert small.experts + 8 * words <= small.lines
    control = control_parts(num_ranks)
    assert control[1] + 8 * 2 * num_ranks * (num_ranks + -(-ep_sizes.MAX_EXPERTS // num_ranks)) <= control[2]


def test_kernels_find_words_of_counts_by_what_no_call_changes() -> None:
    """The number of experts is a call's own: a stride made of it would let one call's words lie on another's."""
    for name in ("ep_count.cuh", "ep_dispatch.cuh", "ep_small_masks.cuh"):
        text = (HEADER.parent / name).read_text("utf-8")
        assert "num_ranks + args.shape.experts_per_rank" not in text
        assert "columns = num_ranks + each" not in text
        assert not re.search(r"\) \* each \+ i % each", text)


def test_half_the_room_for_rows_of_fp8() -> None:
    wide, narrow = (layout_for(rows_for(2, 4096, 7168, 8, fp8=fp8)) for fp8 in (False, True))
    assert wide.slot_bytes - narrow.slot_bytes == 2 * 4096 * 7168


@given(
    hidden=st.integers(1, 128).map(lambda one: one * 128),
    element=st.sampled_from((1, 2)),
    num_tokens=st.integers(0, 16384),
    num_ranks=st.integers(1, 72),
    num_blocks=st.integers(1, 256),
)
def test_rings_fit_into_shared_memory(
    hidden: int, element: int, num_tokens: int, num_ranks: int, num_blocks: int
) -> None:
    row_bytes = hidden * element
    try:
        ring = ring_for(row_bytes, num_tokens, num_ranks, num_blocks)
    except ValueError:
        counted = num_tokens if num_tokens <= ep_sizes.COUNTED_BY_ALL else -(-num_tokens // num_blocks)
        assert 8 * -(-counted // 32) * num_ranks + row_bytes > MAX_SHARED_BYTES - 256
        return
    assert 1 <= ring.num_warps <= MAX_MOVERS
    assert 1 <= ring.num_stages <= 2
    assert ring.slot_bytes >= row_bytes
    assert ring.slot_bytes % 128 == 0
    assert ring.shared_bytes <= MAX_SHARED_BYTES
    assert push_ring_for(row_bytes).shared_bytes <= MAX_SHARED_BYTES


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 300000 bytes do not fit"):
        ring_for(300_000, 1, 1, 1)


@pytest.mark.parametrize(
    ("tokens", "topk", "local", "alignment", "wanted"),
    [(4, 2, 8, 1, 16), (4, 8, 2, 1, 16), (1, 1, 1, 128, 256), (128, 8, 128, 128, 2048 + 127 * 128)],
)
def test_capacity_of_an_expanded_output(tokens: int, topk: int, local: int, alignment: int, wanted: int) -> None:
    assert expanded_capacity(2, tokens, topk, local, alignment) == wanted


@given(
    counts=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    alignment=st.sampled_from((1, 4, 16)),
)
def test_no_counts_need_more_than_the_capacity(counts: list[int], alignment: int) -> None:
    capacity = expanded_capacity(1, 6, 3, 3, alignment)
    assert sum(-(-count // alignment) * alignment for count in counts) <= capacity
    assert capacity % alignment == 0


def filled(kind: Any) -> Any:  # noqa: ANN401 - a value of the type
    """A value of a struct, zeros all through."""
    if kind is Peers:
        return Peers((0, 0), 0)
    if kind is Limits:
        return Limits(0, 0, 1.0, 0)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind(*(filled(one) for one in get_type_hints(kind).values()))
    return kind()


def sizes_in_cpp() -> dict[str, int]:
    """What the header asserts."""
    return {name: int(size) for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)", HEADER.read_text("utf-8"))}


def test_structs_have_the_sizes_that_the_header_asserts() -> None:
    wanted = sizes_in_cpp()
    packed = {
        name: kind
        for name, kind in inspect.getmembers(ep_args, inspect.isclass)
        if kind.__module__ == ep_args.__name__ and hasattr(kind, "pack")
    }
    found = {}
    for name, kind in packed.items():
        in_cpp = next((one for one in (f"{name}Args", f"Ep{name}", name) if one in wanted), None)
        if in_cpp is not None:
            found[in_cpp] = len(filled(kind).pack())
    assert found == {name: size for name, size in wanted.items() if name != "EpState"}
    assert wanted["EpState"] == ep_sizes.STATE_BYTES
