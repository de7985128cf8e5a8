"""What `epctl fabric` is asked, with everything that a preset or a default stands for."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from epctl.fabric import placement
from epctl.fabric.flows import Pairing
from epctl.fabric.lengths import Lengths, lengths_of
from epctl.fabric.models import DEFAULT_MODEL, Model, model_named
from epctl.fabric.placement import PHASES, TRAFFICS, Roles
from epctl.fabric.routing import TRANSFERS
from epctl.fabric.topology import Fabric, Shape, build
from epctl.model.gate import Gate, check_topk
from epctl.model.refusal import MAX_SEED, RefusalError
from epctl.model.spread import gate_named

REDRAWS = ("auto", "both", "ecmp", "routing")
MAX_SEEDS = 1_000_000
MAX_TOKEN_BYTES = 1 << 26
MAX_PICKS = 1 << 28
"""Picks of experts in one phase, each of which is drawn: a few minutes, and a gigabyte."""
TOGETHERS = ("phases", "micro-batches")


class Request(Struct, frozen=True, kw_only=True):
    """Flags as they are given. None: the model's, the layout's, or a default."""

    shape: Shape = Shape()
    graph: Fabric | None = None
    """A fabric that was given link by link; then `shape` says nothing."""
    origin: tuple[str, ...] = ()
    """What of the fabric is out of a graph of `epctl topo`, and what is not, in sentences."""
    layout: str = "unified"
    traffic: tuple[str, ...] = TRAFFICS
    phases: tuple[str, ...] = PHASES
    transfer: str = "default"
    batch: int | None = None
    """Requests: 32, or as many as there are lengths."""
    lengths: str = "82"
    model: str = DEFAULT_MODEL
    experts: int | None = None
    topk: int | None = None
    hidden: int | None = None
    send_bytes: int | None = None
    """Of one token on its way to experts; hidden x 1 (FP8)."""
    return_bytes: int | None = None
    """Of one token on its way back; hidden x 2 (BF16)."""
    kv_bytes: int | None = None
    """Of one token in all layers."""
    gate: str = "balanced"
    seed: int = 0
    seeds: int = 1
    redraw: str = "auto"
    qps: int = 1
    ports: int = Pairing().ports
    together: tuple[str, ...] = ()
    what_if: bool = False


class Settled(Struct, frozen=True, dict=True):
    """A request with all values in place, checked."""

    request: Request
    fabric: Fabric
    roles: Roles
    model: Model
    experts: int
    topk: int
    send_bytes: int
    return_bytes: int
    kv_bytes: int
    batch: int
    lengths: Lengths
    gate: Gate | None
    """None where a trace stands for it."""
    kinds: tuple[tuple[str, str], ...]
    """(phase, traffic) to count."""
    pairing: Pairing

    def unit_bytes(self, traffic: str) -> int:
        """Bytes of one send."""
        if traffic == "kv":
            return self.kv_bytes
        return self.return_bytes if traffic in placement.RETURNS else self.send_bytes


def settle(request: Request, *, traced: bool = False) -> Settled:
    """Raises RefusalError for what cannot be."""
    fabric = request.graph if request.graph is not None else build(request.shape)
    roles = placement.roles(request.layout, fabric.num_nodes)
    model = model_named(request.model)
    experts, topk = _or(request.experts, model.num_experts), _or(request.topk, model.num_topk)
    check_topk(experts, topk)
    for side in (roles.prefill, roles.decode):
        placement.expert_owners(side, fabric.gpus_per_node, experts)
    hidden = _weight("--hidden", request.hidden, model.hidden)
    lengths, batch = lengths_of(request.lengths, request.batch)
    _among("--transfer", request.transfer, TRANSFERS)
    _among("--redraw", request.redraw, REDRAWS)
    for value in request.together:
        _among("--together", value, TOGETHERS)
    kinds = _kinds(request, roles)
    _check_work(kinds, sum(lengths.of(batch, request.seed)), batch, topk)
    _bounded("--seed", request.seed, 0, MAX_SEED)
    _bounded("--seeds", request.seeds, 1, MAX_SEEDS)
    return Settled(
        request=request,
        fabric=fabric,
        roles=roles,
        model=model,
        experts=experts,
        topk=topk,
        send_bytes=_weight("--send-bytes", request.send_bytes, hidden),
        return_bytes=_weight("--return-bytes", request.return_bytes, 2 * hidden),
        kv_bytes=_weight("--kv-bytes", request.kv_bytes, model.kv_bytes),
        batch=batch,
        lengths=lengths,
        gate=None if traced else gate_named(request.gate, experts),
        kinds=kinds,
        pairing=Pairing(request.qps, request.ports).checked(),
    )


def _kinds(request: Request, roles: Roles) -> tuple[tuple[str, str], ...]:
    for option, values, allowed in (("--traffic", request.traffic, TRAFFICS), ("--phase", request.phases, PHASES)):
        for value in values:
            _among(option, value, allowed)
    found = tuple(kind for kind in roles.kinds if kind[0] in request.phases and kind[1] in request.traffic)
    if not found:
        has = ", ".join(f"{phase} {traffic}" if phase != traffic else phase for phase, traffic in roles.kinds)
        what = f"no traffic of {', '.join(request.traffic)} in {', '.join(request.phases)}"
        why = f"the layout {roles.layout} has {has}"
        raise RefusalError("no_traffic", what, why, f"give --traffic {roles.kinds[-1][1]}, or another --layout")
    return found


def _check_work(kinds: tuple[tuple[str, str], ...], prompt_tokens: int, batch: int, topk: int) -> None:
    for phase, tokens in (("prefill", prompt_tokens), ("decode", batch)):
        if tokens * topk > MAX_PICKS and any(kind[0] == phase for kind in kinds):
            what = f"{phase} has {tokens} tokens that pick {topk} experts each"
            why = f"every pick is drawn, and at most {MAX_PICKS} are"
            todo = (
                "give shorter --lengths, a smaller --batch, or --phase decode"
                if phase == "prefill"
                else "give a smaller --batch"
            )
            raise RefusalError("too_much", what, why, todo)


def absent(request: Request, roles: Roles) -> tuple[str, ...]:
    """Traffics that were asked for and that the layout does not have."""
    if request.traffic == TRAFFICS:
        return ()
    has = {traffic for phase, traffic in roles.kinds if phase in request.phases}
    return tuple(traffic for traffic in request.traffic if traffic not in has)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _weight(option: str, given: int | None, default: int) -> int:
    return default if given is None else _bounded(option, given, 1, MAX_TOKEN_BYTES)


def _bounded(option: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise RefusalError(
            "value_invalid", f"{option} is {value}", f"{least} to {most} are taken", f"give {option} {max(least, 1)}"
        )
    return value


def _among(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RefusalError(
            "value_invalid",
            f"{option} is {value[:40]!r}",
            f"it may be {', '.join(allowed)}",
            f"give {option} {allowed[0]}",
        )


def changed(request: Request, **values: Any) -> Request:  # noqa: ANN401 - any field's
    """`request` with fields changed; those of the shape by their own names."""
    shape = {name: value for name, value in values.items() if name in Shape.__struct_fields__}
    rest = {name: value for name, value in values.items() if name not in shape}
    if shape:
        rest["shape"] = msgspec.structs.replace(request.shape, **shape)
    return msgspec.structs.replace(request, **rest)
