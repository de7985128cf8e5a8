"""Who moves whose data in a case, and what must lie where afterwards: the reference, on either tier."""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

from msgspec import Struct

from epctl.core.op import Case, Layout, World
from epctl.ops.link.cases import READS, WRITES

Tensor: TypeAlias = Any
"""torch.Tensor."""
STALE = 0xA5
"""Bytes of a target before a run: what the run leaves out is seen."""
WRONG_BIT = 0x80
"""In the upper byte of a BF16 value it is the sign, which no rounding hides."""


class Roles(Struct, frozen=True):
    """Of one rank in one case; None: nobody."""

    sends_to: int | None
    receives_from: int | None
    runs: bool
    """Whether this rank's GPU does the work."""


def roles(case: Case, layout: Layout, rank: int) -> Roles:
    """Ranks that do not take part have no roles. Ranks of one-way cases count within the first domain."""
    kind = case.word("kind")
    if "source" in case.params:
        source, target = case.whole("source"), case.whole("target")
        to = target if rank == source else None
        of = source if rank == target else None
    else:
        to, of = layout.scale_up_peer(rank), layout.scale_up_peer(rank, -1)
    return Roles(to, of, (kind in WRITES and to is not None) or (kind in READS and of is not None))


def seed_of(case: Case, what: str, rank: int) -> int:
    """Other data for each case, purpose and rank; the same on every rank that asks."""
    seed = case.params.get("seed", 0)
    return zlib.crc32(f"{seed} {case.name} {what} {rank}".encode())


def payload(world: World, case: Case, what: str, rank: int) -> Tensor:
    """uint8 [bytes]: the data of `rank`. BF16 values of a normal distribution where they are added, else any bytes."""
    torch, num_bytes = world.torch, case.whole("bytes")
    generator = world.generator(seed_of(case, what, rank))
    if case.word("kind") == "pull-add":
        values = torch.randn(num_bytes // 2, generator=generator, device=world.device)
        return values.to(torch.bfloat16).view(torch.uint8)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator, device=world.device)


def added(world: World, remote: Tensor, local: Tensor) -> Tensor:
    """Sum of BF16 rows, in float32 and rounded once; uint8 in and out."""
    torch = world.torch
    total = remote.view(torch.bfloat16).float() + local.view(torch.bfloat16).float()
    return total.to(torch.bfloat16).view(torch.uint8)


def expected(world: World, case: Case, source: int) -> Tensor:
    """uint8 [bytes] that must lie at this rank after it received from `source`."""
    data = payload(world, case, "rows", source)
    if case.word("kind") == "pull-add":
        return added(world, data, payload(world, case, "addend", world.rank))
    return data


def wrong_byte(num_bytes: int) -> int:
    """Place of the byte that the self-test changes: odd, so that it is the upper half of a BF16 value."""
    return min(num_bytes // 2 | 1, num_bytes - 1)
