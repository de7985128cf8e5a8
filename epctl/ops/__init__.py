"""Ops by name. Each is one module with `OP`; it is imported when it is asked for."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from epctl.core.errors import EpctlError
from epctl.core.op import Op

OPS = {"link": "epctl.ops.link", "gin": "epctl.ops.gin", "ep": "epctl.ops.ep.trial.op"}
"""Name → module."""


def load(name: str) -> Op:
    """The op `name`. Raises EpctlError with the names that come nearest."""
    if name not in OPS:
        near = get_close_matches(name, OPS, n=2, cutoff=0.5)
        raise EpctlError(
            f"--op {name!r} is unknown",
            f"there are {', '.join(OPS)}",
            f"give --op {' or '.join(near) or next(iter(OPS))}",
        )
    op: Op = import_module(OPS[name]).OP
    return op


def select(names: tuple[str, ...]) -> tuple[Op, ...]:
    """The ops of these names, in the order of the table; all without any."""
    for name in names:
        load(name)
    return tuple(load(name) for name in OPS if not names or name in names)
