"""Flags as text: what is read, what is refused, what a sweep goes through."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.model.plan.request import EXAMPLES, Request, field_of, flag, parsed, request_of, sweep_of
from epctl.model.refusal import RefusalError

FIELDS = tuple(field.name for field in msgspec.structs.fields(Request))


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_has_an_example_that_is_taken(field: str) -> None:
    value = parsed(field, EXAMPLES[field])
    assert getattr(request_of({field: EXAMPLES[field]}), field) == value
    assert field_of(flag(field)) == field_of(flag(field)[2:]) == field


@given(st.sampled_from(FIELDS), st.text(max_size=80))
def test_text_is_read_or_refused_with_a_value_that_would_do(field: str, text: str) -> None:
    try:
        value = parsed(field, text)
    except RefusalError as error:
        assert flag(field) in error.what
        assert EXAMPLES[field] in error.todo
        assert len(error.what) < 150
    else:
        assert value is not None


def test_a_sweep_goes_through_every_combination_with_the_last_key_fastest() -> None:
    sweep = sweep_of(["nodes=1,2", "--tokens=8, 16,32"])
    assert sweep.keys == ("nodes", "tokens")
    assert sweep.count == 6
    assert list(sweep.combinations())[:4] == [(1, 8), (1, 16), (1, 32), (2, 8)]
    assert list(sweep_of([]).combinations()) == [()]
