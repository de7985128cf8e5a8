"""Rows that travel one by one, without the padding between groups: the list of rows and the metadata that names them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.ops.ep.pulling import without_padding
from tests.support.worlds import torch_or_skip


@pytest.fixture(scope="module")
def torch() -> Any:  # noqa: ANN401
    return torch_or_skip()


@given(data=st.data(), num_received=st.integers(0, 9), topk=st.integers(1, 5))
def test_each_selection_names_the_same_row_before_and_after(
    torch: Any,  # noqa: ANN401
    data: st.DataObject,
    num_received: int,
    topk: int,
) -> None:
    num_rows = 7 * num_received * topk + 1
    places = st.lists(st.integers(-1, num_rows - 1), min_size=num_received * topk, max_size=num_received * topk)
    metadata = torch.full((num_received, topk + 2), 5, dtype=torch.int32)
    metadata[:, 2:] = torch.tensor(data.draw(places), dtype=torch.int32).view(num_received, topk)
    x = torch.arange(num_rows)
    chosen, found = without_padding(metadata, num_rows)
    staged = x[chosen]
    assert staged.shape == (num_received * topk,)
    assert torch.equal(found[:, :2], metadata[:, :2])
    for row in range(num_received):
        for k in range(2, topk + 2):
            placed = int(metadata[row, k])
            assert placed == (int(staged[found[row, k]]) if placed >= 0 else int(found[row, k]))


def test_what_nobody_has_written_names_rows_that_exist(torch: Any) -> None:  # noqa: ANN401
    metadata = torch.full((3, 4), 2**31 - 1, dtype=torch.int32)
    chosen, found = without_padding(metadata, 10)
    assert chosen.tolist() == [9] * 6
    assert found[:, 2:].max() < 6
