"""Budgets of a plan (the lines are in `budget_lines`), and the nearest plan that fits them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from epctl.model.budget_lines import (
    MAX_CONTEXTS,
    MIN_CONTEXTS,
    Budget,
    Load,
    allocated_contexts,
    budgets,
    buffer_bytes_of,
    queue_pairs,
)
from epctl.model.buffers import EpBufferRequest
from epctl.model.ep import plan_ep
from epctl.model.ep_types import ByAtomics, EpPlan, EpRequest
from epctl.model.fit import largest_tokens
from epctl.model.inputs import Node
from epctl.model.refusal import RefusalError
from epctl.model.rules import Rules

__all__ = [
    "MAX_CONTEXTS",
    "MIN_CONTEXTS",
    "Budget",
    "Change",
    "Load",
    "Moved",
    "allocated_contexts",
    "budgets",
    "buffer_bytes_of",
    "nearest_plan",
    "queue_pairs",
]

MAX_NODES = 256
"""The largest group that the nearest plan is looked for in; hybrid kernels end at 32 nodes."""


class Change(Struct, frozen=True):
    """One thing that the nearest plan has otherwise."""

    name: str
    """contexts, tokens, mode, nodes, overlap."""
    before: int | str | bool
    after: int | str | bool

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


class Moved(Struct, frozen=True):
    """What moved the plan: the budgets that the request breaks (none: it fits as it is), and what was changed for them."""

    constraints: tuple[str, ...]
    changes: tuple[Change, ...]
    text: str
    request: EpRequest
    buffer: EpBufferRequest
    num_contexts: int

    def __str__(self) -> str:
        return self.text


def nearest_plan(
    request: EpRequest,
    node: Node,
    rules: Rules,
    buffer: EpBufferRequest,
    num_contexts: int | None = None,
    load: Load = Load(),  # noqa: B008 - frozen
) -> tuple[EpPlan, Moved] | None:
    """The plan that fits with the fewest and mildest changes, and what moved it; None where none does.

    Milder first: fewer allocated contexts, fewer tokens, the other mode, no overlap, more nodes, fewer nodes; among equals, the
    smallest step. Tried: both modes with every node count that the experts divide over, up to 256 nodes; a request that gives its
    own mean of distinct ranks or nodes keeps its node count, for which that mean holds.
    """
    constraints = _broken(request, node, rules, buffer, num_contexts, load)
    found: list[tuple[tuple[float, ...], EpPlan, EpRequest, EpBufferRequest, int, tuple[Change, ...]]] = []
    for candidate in _candidates(request):
        fitted = _fit(candidate, node, rules, buffer, num_contexts, load)
        if fitted is None:
            continue
        plan, room, contexts, shrunk = fitted
        changes = (*_differences(request, candidate), *shrunk)
        found.append((_cost(changes), plan, candidate, room, contexts, changes))
    if not found:
        return None
    _, plan, candidate, room, contexts, changes = min(found, key=lambda entry: entry[0])
    if changes:
        text = f"{' and '.join(constraints)} does not fit; nearest: {', '.join(str(change) for change in changes)}"
    else:
        text = "fits as it is"
    return plan, Moved(constraints, changes, text, candidate, room, contexts)


def _broken(
    request: EpRequest, node: Node, rules: Rules, buffer: EpBufferRequest, num_contexts: int | None, load: Load
) -> tuple[str, ...]:
    try:
        plan = plan_ep(request, rules)
        size = buffer_bytes_of(buffer, rules.layout)
    except RefusalError as error:
        return (error.code,)
    return tuple(entry.name for entry in budgets(plan, node, request, size, num_contexts, load) if not entry.fits)


def _candidates(request: EpRequest) -> Iterator[EpRequest]:
    counts = {request.num_nodes}
    balanced = request.distinct_ranks is None and request.distinct_nodes is None
    for nodes in range(1, MAX_NODES + 1) if balanced and request.gpus_per_node > 0 else ():
        if request.num_experts % (nodes * request.gpus_per_node) == 0:
            counts.add(nodes)
    for nodes in sorted(counts):
        for mode in ("direct", "hybrid"):
            for overlap in (True, False) if request.prefer_overlap else (False,):
                yield msgspec.structs.replace(request, num_nodes=nodes, mode=mode, prefer_overlap=overlap)


def _fit(
    request: EpRequest, node: Node, rules: Rules, buffer: EpBufferRequest, num_contexts: int | None, load: Load
) -> tuple[EpPlan, EpBufferRequest, int, tuple[Change, ...]] | None:
    """The candidate with as many contexts and tokens as fit; None where it cannot be made to fit."""
    try:
        plan = plan_ep(request, rules)
        contexts = allocated_contexts(plan, node) if num_contexts is None else num_contexts
        room = msgspec.structs.replace(buffer, num_nodes=request.num_nodes, mode=request.mode)
        most = min(contexts, _most_contexts(plan, node, load))
        free = int(node.memory_bytes.value) - load.reserved_bytes
        tokens = min(buffer.num_max_tokens_per_rank, largest_tokens(free, room, layout=rules.layout))
    except RefusalError:
        return None
    changes = []
    if most < contexts:
        changes.append(Change("contexts", contexts, most))
    if tokens < buffer.num_max_tokens_per_rank:
        changes.append(Change("tokens", buffer.num_max_tokens_per_rank, tokens))
    room = msgspec.structs.replace(room, num_max_tokens_per_rank=tokens)
    given = most if num_contexts is not None or most < contexts else None
    if most < contexts:
        plan = _with_contexts(plan, most)
    entries = budgets(plan, node, request, buffer_bytes_of(room, rules.layout), given, load) if most else ()
    return (plan, room, most, tuple(changes)) if entries and all(entry.fits for entry in entries) else None


def _most_contexts(plan: EpPlan, node: Node, load: Load) -> int:
    each = queue_pairs(plan, node, 1, load)
    return min(MAX_CONTEXTS, int(node.max_qp.value) // each) if each else MAX_CONTEXTS


def _with_contexts(plan: EpPlan, most: int) -> EpPlan:
    """`plan` with no more allocated contexts, and no more used, than `most`."""
    used = ByAtomics(min(most, plan.num_qps.fast_atomics), min(most, plan.num_qps.slow_atomics))
    return msgspec.structs.replace(plan, allocated_qps=ByAtomics(most, most), num_qps=used)


def _differences(request: EpRequest, candidate: EpRequest) -> tuple[Change, ...]:
    found = []
    if candidate.mode != request.mode:
        found.append(Change("mode", request.mode, candidate.mode))
    if candidate.prefer_overlap != request.prefer_overlap:
        found.append(Change("overlap", request.prefer_overlap, candidate.prefer_overlap))
    if candidate.num_nodes != request.num_nodes:
        found.append(Change("nodes", request.num_nodes, candidate.num_nodes))
    return tuple(found)


_WEIGHTS = {"contexts": 1.0, "tokens": 2.0, "mode": 3.0, "overlap": 4.0, "nodes": 5.0}


def _cost(changes: tuple[Change, ...]) -> tuple[float, ...]:
    """(changes, their weight, how far they go in powers of two)."""
    weight = sum(_WEIGHTS[change.name] for change in changes)
    steps = 0.0
    for change in changes:
        if change.name in ("contexts", "tokens", "nodes"):
            before, after = max(1, int(change.before)), max(1, int(change.after))
            steps += abs(math.log2(after / before))
            if change.name == "nodes" and after < before:
                weight += 1
    return float(len(changes)), weight, steps
