"""Every command that can answer with JSON tells its errors as JSON, too, in one form."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from epctl.cli import app
from tests.support.cli import Run, json_error

ERRORS = {
    "topo": (("--from", "/nonexistent"), "input_invalid", 2),
    "topo diff": (("/nonexistent", "sample:laptop"), "input_invalid", 2),
    "plan": (("--experts", "256", "--topk", "x"), "value_invalid", 2),
    "fabric": (("--nodes", "x"), "value_invalid", 2),
    "bench": (("--op", "none", "--device", "cpu"), "input_invalid", 2),
    "doctor": (("--from", "/nonexistent"), "input_invalid", 2),
    "capture": ((), "input_invalid", 2),
    "probe": (("nosuch",), "input_invalid", 2),
    "build": (("--arch", "zz"), "input_invalid", 2),
    "selftest": (("--seed", "-1"), "input_invalid", 2),
}

THREE_LINES_ONLY = {"schema"}
"""JSON is all that it prints, asked for or not, and who types the name wrong is a person."""


def with_format(command: Any, words: tuple[str, ...] = ()) -> set[str]:  # noqa: ANN401 - click's, wherever typer has it from
    """Names of commands that know --format."""
    own = {" ".join(words)} if any(option.name == "format" for option in command.params) else set()
    return own.union(*(with_format(sub, (*words, name)) for name, sub in getattr(command, "commands", {}).items()))


def test_no_command_is_forgotten() -> None:
    assert set(ERRORS) | THREE_LINES_ONLY == with_format(typer.main.get_command(app))


@pytest.mark.parametrize("command", ERRORS)
def test_an_error_is_an_object_of_one_form(run: Run, command: str) -> None:
    arguments, error_code, code = ERRORS[command]
    json_error(run(*command.split(), *arguments, "--format", "json"), error_code, code)


@pytest.mark.parametrize("command", [("bench",), ("selftest", "--tier", "gpu")])
def test_what_could_not_be_measured_is_no_bad_input(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    json_error(run(*command, "--format", "json"), "not_measured", 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("bench", "--op", "link", "--device", "cpu", "--case", "nothing"), 2),
        (("selftest", "--op", "link", "--tier", "cpu", "--case", "nothing"), 2),
        (("selftest", "--op", "gin", "--tier", "cpu", "--ranks", "1"), 4),
    ],
)
def test_so_is_one_that_only_the_ranks_can_find(run: Run, arguments: tuple[str, ...], code: int) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    json_error(run(*arguments, "--format", "json"), {2: "input_invalid", 4: "not_measured"}[code], code)
