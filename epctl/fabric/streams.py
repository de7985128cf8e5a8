"""Streams: what every traffic sends under one draw of the gate, and which of them run at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from epctl.fabric import placement, routing
from epctl.fabric.placement import Placed, Side
from epctl.fabric.request import Settled
from epctl.fabric.routing import Sends
from epctl.model.sampling import Trace, sample_trace

MAX_PICKS = 1 << 22
"""Picks of experts that all draws of the gate make together, unless a redraw is asked for: a second or two."""
_WORTH = 8
"""Fewer draws than that would cost more than they tell."""


class Stream(Struct, frozen=True):
    """One traffic of one phase. micro_batch: all requests (-1), or those of the first (0) or second (1) half."""

    phase: str
    traffic: str
    mode: str
    micro_batch: int = -1


class Group(Struct, frozen=True):
    """Streams that run at the same time, by number."""

    name: str
    """'' for one traffic alone."""
    members: tuple[int, ...]


def streams(found: Settled) -> tuple[tuple[Stream, ...], tuple[Group, ...]]:
    """All streams of a request: its traffics first, each a group of its own, then what --together adds."""
    request = found.request
    every = [
        Stream(phase, traffic, routing.mode_of(phase, traffic, request.transfer)) for phase, traffic in found.kinds
    ]
    groups = [Group("", (i,)) for i in range(len(every))]
    if "phases" in request.together:
        groups.append(Group("phases", tuple(range(len(found.kinds)))))
    if "micro-batches" in request.together:
        for phase, side in (("prefill", found.roles.prefill), ("decode", found.roles.decode)):
            there, back = side.traffics
            if (phase, there) not in found.kinds or (phase, back) not in found.kinds:
                continue
            groups.append(Group(f"{phase} micro-batches", (len(every), len(every) + 1)))
            for half, traffic in enumerate((there, back)):
                every.append(Stream(phase, traffic, routing.mode_of(phase, traffic, request.transfer), half))
    return tuple(every), tuple(groups)


def num_draws(found: Settled, trace: Trace | None) -> dict[str, int]:
    """By phase, how many different draws of gate and lengths all seeds share: seed i takes draw i modulo this. KV has prefill's lengths."""
    request = found.request
    asked = {phase for phase, _ in found.kinds}
    draws = {}
    for phase in ("prefill", "decode"):
        picks = sum(_tokens(found, phase, request.seed)) * found.topk
        most = MAX_PICKS // picks if phase in asked else request.seeds
        most = most if most >= _WORTH else 1
        if trace is not None and not (phase == "prefill" and found.lengths.spread):
            most = 1
        if request.redraw == "ecmp":
            most = 1
        draws[phase] = request.seeds if request.redraw in ("both", "routing") else min(request.seeds, most)
    return {**draws, "kv": draws["prefill"]}


def _tokens(found: Settled, phase: str, seed: int) -> Sequence[int]:
    """Tokens of every request in a phase."""
    return found.lengths.of(found.batch, seed) if phase == "prefill" else (1,) * found.batch


def draw(found: Settled, every: Sequence[Stream], seed: int, trace: Trace | None) -> list[Sends]:
    """What the streams of one phase send under the draw of `seed`. Return traffic answers the picks of the way there."""
    placed = placement.place(found.roles, found.fabric.gpus_per_node, found.batch)
    made: dict[int, Sends] = {}
    sends = []
    for stream in every:
        if stream.micro_batch not in made:
            made[stream.micro_batch] = _sends(found, stream, placed, seed, trace)
        there = made[stream.micro_batch]
        sends.append(there.reversed(found.return_bytes) if stream.traffic in placement.RETURNS else there)
    return sends


def _sends(found: Settled, stream: Stream, placed: Placed, seed: int, trace: Trace | None) -> Sends:
    lengths = _tokens(found, "prefill" if stream.phase == "kv" else stream.phase, seed)
    if stream.phase == "kv":
        return routing.kv_sends(zip(placed.prefill, placed.decode, lengths, strict=True), found.kv_bytes)
    side = found.roles.prefill if stream.phase == "prefill" else found.roles.decode
    gpus = placed.prefill if stream.phase == "prefill" else placed.decode
    picks = trace if trace is not None else _drawn(found, stream.phase, sum(lengths), seed)
    gpus_per_node = found.fabric.gpus_per_node
    owners = placement.expert_owners(side, gpus_per_node, found.experts)
    tokens = _with_picks(gpus, lengths, picks, stream.micro_batch, _width(side, gpus_per_node))
    return routing.route(tokens, owners, gpus_per_node, stream.mode, found.send_bytes)


def _width(side: Side, gpus_per_node: int) -> int:
    return len(side.attention) * gpus_per_node


def _drawn(found: Settled, phase: str, num_tokens: int, seed: int) -> Trace:
    if found.gate is None:
        raise ValueError("a trace stands for the gate")
    # Prefill and decode draw apart, and a seed's draws are not those of the next seed.
    return sample_trace(found.gate, found.experts, found.topk, num_tokens, 2 * seed + (phase == "prefill"))


def _with_picks(
    gpus: Sequence[int], lengths: Sequence[int], picks: Trace, micro_batch: int, width: int
) -> Iterator[tuple[int, Sequence[int]]]:
    """(GPU, experts) of every token. A trace that is too short starts again. Micro-batches take a GPU's requests in turn."""
    k, experts, row = picks.num_topk, picks.experts, 0
    for i, (gpu, length) in enumerate(zip(gpus, lengths, strict=True)):
        mine = micro_batch < 0 or i // width % 2 == micro_batch
        for _ in range(length):
            if mine:
                yield gpu, experts[row : row + k]
            row += k
            if row == len(experts):
                row = 0
