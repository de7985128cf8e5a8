"""`epctl plan` in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.cli import Run

MODEL = ("--experts", "256", "--topk", "8")


def planned(run: Run, *argv: str | Path) -> dict[str, Any]:
    """The JSON of a plan, whatever the exit code."""
    ran = run("plan", *argv, "--format", "json")
    assert ran.out, ran
    found: dict[str, Any] = json.loads(ran.out)
    return found
