"""What ranks send in a self-test: drawn from seeds, so that every rank knows what all others send, and what must come of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from epctl.ops.ep import reference
from epctl.ops.ep.reference import Received, Returned, Sent, Setting
from epctl.ops.ep.trial import gates
from epctl.ops.ep.trial.options import BF16, FP8, Options

Tensor: TypeAlias = Any
"""torch.Tensor."""
Generators: TypeAlias = Callable[[int], Any]
"""World.generator: the same numbers on every rank for the same seed."""
SCALE_BLOCK = 128
PACKED_SCALES = 4
LARGE = 2.0**24
"""A summand beside which float32 keeps nothing below 2 of another one."""
LARGEST_FINITE = 0x7E
"""Of float8_e4m3fn without sign; 0x7F is no number."""


def seed_of(*words: object) -> int:
    """Other data for each purpose, case, rank and turn."""
    return zlib.crc32(" ".join(map(str, words)).encode())


def setting_of(options: Options, num_ranks: int) -> Setting:
    """What all ranks agree on."""
    return Setting(num_ranks, options.experts, options.capacity, options.alignment, options.expand)


def data(generator: Any, num_tokens: int, hidden: int, dtype: str) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - torch.Generator
    """(rows, scales or None). FP8 rows hold every finite value of both signs; scales are float32, or four exponents in an int32."""
    import torch

    device = generator.device
    if dtype == BF16:
        return torch.randn((num_tokens, hidden), device=device, generator=generator).bfloat16(), None
    raw = torch.randint(
        0, LARGEST_FINITE + 1, (num_tokens, hidden), dtype=torch.uint8, device=device, generator=generator
    )
    sign = torch.randint(0, 2, (num_tokens, hidden), dtype=torch.uint8, device=device, generator=generator) * 128
    x = (raw + sign).view(torch.float8_e4m3fn)
    width = -(-hidden // SCALE_BLOCK)
    if dtype == FP8:
        return x, torch.rand((num_tokens, width), device=device, generator=generator)
    shape = (num_tokens, -(-width // PACKED_SCALES))
    scales = torch.randint(-(2**31), 2**31 - 1, shape, device=device, generator=generator)
    return x, scales.int()


def routing(options: Options, rank: int, num_ranks: int, generators: Generators, seed: int) -> Tensor:
    """topk_idx of that rank."""
    import torch

    generator = generators(seed_of(seed, "routing", rank))
    gate = gates.parse(options.gate)
    num_tokens = options.tokens_of(rank)
    found = gates.selections(
        gate, num_tokens, options.topk, options.experts, num_ranks, generator, first=rank * num_tokens
    )
    if options.masked:
        drop = torch.rand(found.shape, device=found.device, generator=generator) * 100 < options.masked
        found = torch.where(drop, -1, found)
    return found if options.wide else found.int()


def sent_by(options: Options, rank: int, num_ranks: int, generators: Generators, seed: int, turn: int) -> Sent:
    """What that rank gives to dispatch in that turn: the same routing in all turns, new data in each."""
    import torch

    generator = generators(seed_of(seed, "data", rank, turn))
    num_tokens = options.tokens_of(rank)
    x, scales = data(generator, num_tokens, options.hidden, options.dtype)
    weights = None
    if options.weights:
        weights = torch.rand((num_tokens, options.topk), device=x.device, generator=generator)
    return Sent(x, scales, routing(options, rank, num_ranks, generators, seed), weights)


class Turn(Struct, frozen=True):
    """One dispatch and combine of one rank: what it gives, and what it must get."""

    sent: Sent
    received: Received
    rows: Any
    """BF16 [N, H]: what it gives to combine."""
    biases: tuple[Any, ...]
    combined: Any
    combined_weights: Any


def summands(generator: Any, shape: tuple[int, int], *, cancelling: bool) -> Tensor:  # noqa: ANN401 - torch.Generator
    """BF16 of that shape. `cancelling`: half of them are ±LARGE. A few normal ones add up to the same in any order, since float32 has 16
    bits more than they; beside large ones that come and go, what is left tells the order."""
    import torch

    device = generator.device
    found = torch.randn(shape, device=device, generator=generator)
    if cancelling:
        kind = torch.randint(0, 4, shape, device=device, generator=generator)
        found = torch.where(kind == 0, LARGE, torch.where(kind == 1, -LARGE, found))
    return found.bfloat16()


def turn_of(
    options: Options,
    rank: int,
    num_ranks: int,
    generators: Generators,
    seed: int,
    turn: int,
    *,
    cancelling: bool = False,
) -> Turn:
    """By the reference, from the inputs of all ranks. `cancelling`: see summands; who adds in another order must not get them."""
    setting = setting_of(options, num_ranks)
    every = [sent_by(options, one, num_ranks, generators, seed, turn) for one in range(num_ranks)]
    received = [reference.dispatch(every, setting, one) for one in range(num_ranks)]
    returned = []
    for one, got in enumerate(received):
        generator = generators(seed_of(seed, "combine", one, turn))
        rows = summands(generator, (int(got.x.shape[0]), options.hidden), cancelling=cancelling)
        returned.append(Returned(rows, got.weights, got))
    generator = generators(seed_of(seed, "bias", rank, turn))
    shape = (options.tokens_of(rank), options.hidden)
    biases = tuple(summands(generator, shape, cancelling=cancelling) for _ in range(options.biases))
    combined, weights = reference.combine(
        returned, every[rank], setting, rank, biases, multiple_reduction=not options.every_row
    )
    return Turn(every[rank], received[rank], returned[rank].x, biases, combined, weights)
