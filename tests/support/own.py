"""Which checks a module of epctl.checks registers."""

from __future__ import annotations

import importlib

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import Check, registered


def own(module: str) -> frozenset[str]:
    """Ids of the checks that epctl.checks.`module` declares."""
    declared = {
        one.id for one in vars(importlib.import_module(f"epctl.checks.{module}")).values() if isinstance(one, Check)
    }
    assert declared <= set(registered())
    return frozenset(declared)
