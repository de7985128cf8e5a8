"""Rows between ranks over gloo: from each to each, and from all to all."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.core.op import World

Tensor: TypeAlias = Any
"""torch.Tensor."""


def exchanged(world: World, parts: list[Tensor]) -> list[Tensor]:
    """What each rank has for this one, of `parts`, which this rank has for each. All have as many columns and one dtype."""
    if world.size == 1:
        return list(parts)
    import torch
    import torch.distributed as dist

    counts = torch.tensor([part.shape[0] for part in parts], dtype=torch.int64)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts, group=world.group)
    sizes = [int(one) for one in theirs]
    shape, dtype = parts[0].shape[1:], parts[0].dtype
    outgoing = torch.cat([_bytes(part) for part in parts])
    width = outgoing.shape[1]
    incoming = torch.empty((sum(sizes), width), dtype=torch.uint8)
    dist.all_to_all_single(incoming, outgoing, sizes, counts.tolist(), group=world.group)
    return [_typed(part, shape, dtype) for part in incoming.split(sizes)]


def gathered(world: World, value: Tensor) -> list[Tensor]:
    """The tensors of all ranks, which differ in their number of rows only; Nones for None."""
    if value is None:
        return [None] * world.size
    if world.size == 1:
        return [value]
    import torch
    import torch.distributed as dist

    counts = [torch.empty(1, dtype=torch.int64) for _ in range(world.size)]
    dist.all_gather(counts, torch.tensor([value.shape[0]]), group=world.group)
    most = max(int(count) for count in counts)
    raw = _bytes(value)
    padded = torch.zeros((most, raw.shape[1]), dtype=torch.uint8)
    padded[: raw.shape[0]] = raw
    every = [torch.empty_like(padded) for _ in range(world.size)]
    if most:
        dist.all_gather(every, padded, group=world.group)
    return [_typed(one[: int(count)], value.shape[1:], value.dtype) for one, count in zip(every, counts, strict=True)]


def _bytes(value: Tensor) -> Tensor:
    import math

    import torch

    width = math.prod(value.shape[1:]) * value.element_size()
    if not value.shape[0]:
        return torch.zeros((0, width), dtype=torch.uint8)
    whole = value.contiguous()
    return (whole.view(-1, 1) if whole.dim() == 1 else whole).view(torch.uint8).view(value.shape[0], width)


def _typed(raw: Tensor, shape: Any, dtype: Any) -> Tensor:  # noqa: ANN401 - torch.Size, torch.dtype
    import torch

    if not raw.shape[0]:
        return torch.zeros((0, *shape), dtype=dtype)
    return raw.contiguous().clone().view(dtype).view(raw.shape[0], *shape)
