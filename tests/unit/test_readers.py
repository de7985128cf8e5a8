"""Every recorded output of a tool gives the facts that it holds; damaged ones give facts or a reason, never an exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epctl.probes.readers import TOOLS, read

FIXTURES = Path(__file__).parent.parent / "data" / "readers"
PAIRS = sorted(path for path in FIXTURES.glob("*/*.json"))


def contradictions(expected: Any, got: Any, where: str = "facts") -> list[str]:  # noqa: ANN401
    """Where `got` contradicts `expected`: more keys are welcome, other values are not."""
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return [f"{where}: {got!r} is not an object"]
        if not expected and got:
            return [f"{where}: {got!r} instead of an empty object"]
        return [
            line
            for key, value in expected.items()
            for line in (
                contradictions(value, got[key], f"{where}.{key}") if key in got else [f"{where}.{key}: missing"]
            )
        ]
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return [f"{where}: {got!r} instead of {expected!r}"]
        return [
            line
            for i, (e, g) in enumerate(zip(expected, got, strict=True))
            for line in contradictions(e, g, f"{where}[{i}]")
        ]
    if isinstance(expected, float) and isinstance(got, int | float):
        return (
            []
            if abs(expected - got) <= 1e-6 * max(1.0, abs(expected))
            else [f"{where}: {got!r} instead of {expected!r}"]
        )
    return (
        []
        if expected == got and isinstance(expected, bool) == isinstance(got, bool)
        else [f"{where}: {got!r} instead of {expected!r}"]
    )


@pytest.mark.parametrize("path", PAIRS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_recorded_output_gives_the_facts_it_holds(path: Path) -> None:
    expected = json.loads(path.read_text())
    raw = (path.parent / expected["fixture"]).read_bytes()
    got = msgspec.to_builtins(read(path.parent.name, raw), str_keys=True)
    assert got["status"] == expected["status"]
    if expected["status"] == "error":
        assert contradictions(expected["error"], got["error"], "error") == []
    assert contradictions(expected.get("facts", {}), got["facts"]) == []
    kinds = [problem["kind"] for problem in got["problems"]]
    assert sorted(kinds) == sorted(problem["kind"] for problem in expected.get("problems", []))


def test_all_85_recorded_outputs_are_here_and_every_tool_has_some() -> None:
    assert len(PAIRS) == 85
    assert {path.parent.name for path in PAIRS} == set(TOOLS)
