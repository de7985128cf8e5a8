"""Why there is no GIN between the ranks of a layout: the gates of this node, one by one."""

from __future__ import annotations

import os

from epctl.comm import gin_gates
from epctl.core.context import Context
from epctl.core.op import Layout
from epctl.core.snapshot import Snapshot
from epctl.core.views import gin
from epctl.core.views.gates import Gate


def told(layout: Layout) -> str:
    """In one line; '' where there is GIN."""
    if layout.tier == "cpu":
        return "" if layout.num_ranks > 1 else "one rank has no peer"
    if layout.gin_type:
        return "" if layout.num_ranks > 1 else "one rank has no peer"
    return f"NCCL offers no GIN between these {layout.num_ranks} ranks: {gates_told(gates())}"


def gates() -> tuple[Gate, ...]:
    """Of this node, without active probes, and of its environment."""
    from epctl.probes import load

    return of_snapshot(load.live(active=False))


def of_snapshot(node: Snapshot) -> tuple[Gate, ...]:
    """The same out of a snapshot, with this process's environment."""
    return (*gin_gates.environment(os.environ), *gin.gates(Context(node)))


def gates_told(every: tuple[Gate, ...]) -> str:
    """Closed ones first, then what could not be seen."""
    closed = [f"{gate.name} closed ({gate.text})" for gate in every if gate.state == "closed"]
    unknown = [f"{gate.name} unknown ({gate.text})" for gate in every if gate.state == "unknown"]
    return "; ".join([*closed, *unknown]) or "all gates that can be seen are open: look at NCCL_DEBUG=INFO"
