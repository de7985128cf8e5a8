"""The command line in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from epctl import cli
from tests.support.cli import Ran, Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `epctl ARGS` in this process."""

    def call(*argv: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["epctl", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return call
