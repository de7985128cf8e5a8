"""How a check is tested: at least one node on which it fails and one on which it passes, and what it says there."""

from __future__ import annotations

from msgspec import Struct

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import Finding, evaluate, registered
from epctl.core.context import Context
from epctl.core.profile import chosen
from epctl.core.snapshot import Snapshot

DEFAULT = ("deepep-2.5",)


class Case(Struct, frozen=True):
    """`says`: text that the evidence must contain (a value, a name), so that a check fails for the reason we mean."""

    id: str
    fails: Snapshot
    passes: Snapshot
    says: str
    severity: str = ""
    """Expected severity of the failed finding; '' is that of the check."""
    profiles: tuple[str, ...] = DEFAULT
    num_nodes: int = 1
    fix_says: str = ""


def run(id: str, node: Snapshot, profiles: tuple[str, ...] = DEFAULT, num_nodes: int = 1) -> Finding:  # noqa: A002
    """The finding of one check on `node`."""
    return evaluate(registered()[id], Context(node, chosen(profiles), num_nodes))


def verify(case: Case) -> None:
    """Runs both nodes of a case and compares."""
    failed = run(case.id, case.fails, case.profiles, case.num_nodes)
    assert failed.status == "failed", failed
    assert case.says in " ".join(failed.evidence), failed.evidence
    assert failed.severity == (case.severity or registered()[case.id].severity)
    assert case.fix_says in failed.fix
    passed = run(case.id, case.passes, case.profiles, case.num_nodes)
    assert passed.status == "passed", passed
