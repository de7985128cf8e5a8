"""Flags of `epctl build` that would mean everything by mistake."""

from __future__ import annotations

import pytest

from tests.support.cli import Run, three_lines


@pytest.mark.parametrize("flag", ["--arch", "--op"])
@pytest.mark.parametrize("value", ["", " , "])
def test_an_empty_list_is_an_error_and_not_everything(run: Run, flag: str, value: str) -> None:
    asked = run("build", flag, value)
    three_lines(asked)
    assert f"{flag} is empty" in asked.err
    assert f"leave {flag} out" in asked.err
