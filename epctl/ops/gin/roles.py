"""Who sends what to whom in a case of the GIN op, and what must have come; for both tiers."""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

from msgspec import Struct

from epctl.core.op import Case, Layout, World
from epctl.ops.gin import cases

Tensor: TypeAlias = Any
"""torch.Tensor."""
STALE = 0xA5
"""Bytes of the inbox before a run: what the run leaves out is seen."""
WRONG_BIT = 0x10


class Roles(Struct, frozen=True):
    """Of one rank; ranks that are idle have none."""

    to: int
    sender: int
    takes_part: bool
    serves: bool
    """Begins a round trip."""


def roles(case: Case, layout: Layout, rank: int) -> Roles:
    """Rings over the ranks with the same place in their domains, or over all ranks where there is one domain. Round trips join the
    first two ranks of such a ring. Gets go against the direction of puts: `to` is the rank that is read."""
    step = layout.scale_up if layout.scale_out > 1 else 1
    to, sender = (rank + step) % layout.num_ranks, (rank - step) % layout.num_ranks
    if case.word("kind") != cases.ROUND_TRIP:
        return Roles(to, sender, True, False)
    peer = {0: step, step: 0}.get(rank)
    return Roles(to if peer is None else peer, sender if peer is None else peer, peer is not None, rank == 0)


def outbox(world: World, case: Case, rank: int) -> Tensor:
    """uint8 [region]: what `rank` sends, or offers to be read; the same on every rank that asks."""
    seed = zlib.crc32(f"{case.params.get('seed', 0)} {case.name} {rank}".encode())
    shape = (cases.region_bytes(case),)
    return world.torch.randint(
        0, 256, shape, dtype=world.torch.uint8, generator=world.generator(seed), device=world.device
    )


def expected(world: World, case: Case, found: Roles) -> Tensor:
    """uint8 [region] that the inbox must hold after a run: data where messages lie, STALE between them."""
    torch, kind = world.torch, case.word("kind")
    wanted = torch.full((cases.region_bytes(case),), STALE, dtype=torch.uint8, device=world.device)
    if not found.takes_part or kind == cases.SIGNAL or not case.whole("bytes"):
        return wanted
    sent = outbox(world, case, found.to if kind == cases.GET else found.sender)
    slots, size = cases.slot_bytes(case), case.whole("bytes")
    wanted.view(-1, slots)[:, :size] = sent.view(-1, slots)[:, :size]
    return wanted


def wrong_byte(case: Case) -> int:
    """Place of the byte that the self-test changes: the last one of the last message."""
    return cases.region_bytes(case) - cases.slot_bytes(case) + case.whole("bytes") - 1


def num_signals(case: Case) -> int:
    """That come to each context in a run. Puts have one behind them all; gets none."""
    kind = case.word("kind")
    return {cases.PUT: 1, cases.GET: 0}.get(kind, case.whole("messages"))


def step_of(case: Case) -> int:
    """What one signal adds."""
    return cases.ADDED if case.params.get("adds") is True else 1
