"""Dispatch and combine in plain PyTorch, from the inputs of all ranks: what the kernels are compared with, bit by bit.

Rows are in the order of their sources (rank, then token), as the kernels write them. Runs on any device.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

Tensor: TypeAlias = Any
"""torch.Tensor."""


class Sent(Struct, frozen=True):
    """What one rank gives to dispatch. `x`: [T, H]; `scales`: [T, S] or None; `topk_idx`: [T, K]; `weights`: [T, K] or None."""

    x: Any
    scales: Any
    topk_idx: Any
    weights: Any


class Setting(Struct, frozen=True):
    """What all ranks agree on."""

    num_ranks: int
    num_experts: int
    max_tokens: int
    alignment: int = 1
    expand: bool = False

    @property
    def experts_per_rank(self) -> int:
        """e."""
        return self.num_experts // self.num_ranks


class Received(Struct, frozen=True):
    """What dispatch gives to one rank; see EPBuffer.dispatch and EPHandle. `valid`: rows of an expanded output that hold a token."""

    x: Any
    scales: Any
    topk_idx: Any
    weights: Any
    metadata: Any
    tokens_per_source: Any
    expert_sums: Any
    expert_tokens: Any
    valid: Any


def goes_to(topk_idx: Tensor, setting: Setting, rank: int) -> Tensor:
    """bool [T, K]: selections that are experts of the rank."""
    owner = topk_idx.long().div(setting.experts_per_rank, rounding_mode="floor")
    return (topk_idx >= 0) & (owner == rank)


def dispatch(sent: list[Sent], setting: Setting, rank: int) -> Received:
    """What the rank receives from all."""
    import torch

    device = sent[0].x.device
    picks = [goes_to(one.topk_idx, setting, rank) for one in sent]
    rows = [pick.any(1).nonzero().flatten() for pick in picks]
    x = _gather([one.x for one in sent], rows)
    scales = None if sent[0].scales is None else _gather([one.scales for one in sent], rows)
    weights = None if sent[0].weights is None else _gather([one.weights for one in sent], rows)
    local = [
        torch.where(pick, one.topk_idx - rank * setting.experts_per_rank, -1)
        for pick, one in zip(picks, sent, strict=True)
    ]
    topk_idx = _gather(local, rows)
    if weights is not None:
        weights = torch.where(topk_idx >= 0, weights, torch.zeros_like(weights))
    source = torch.cat([index + number * setting.max_tokens for number, index in enumerate(rows)])
    metadata = torch.full((x.shape[0], topk_idx.shape[1] + 2), -1, dtype=torch.int32, device=device)
    metadata[:, 0] = source
    counts = torch.tensor([index.numel() for index in rows], device=device)
    hits = topk_idx[topk_idx >= 0].long()
    experts = torch.bincount(hits, minlength=setting.experts_per_rank)
    aligned = _align(experts, setting.alignment)
    ends = aligned.cumsum(0)
    told = (counts.cumsum(0).int(), (ends - aligned + experts if setting.expand else ends).int(), experts.int())
    if not setting.expand:
        return Received(x, scales, topk_idx, weights, metadata, *told, None)
    placed = _placed(topk_idx, ends - aligned)
    metadata[:, 2:] = placed
    num_rows = int(ends[-1])
    valid = torch.zeros(num_rows, dtype=torch.bool, device=device)
    valid[placed[placed >= 0].long()] = True
    spread = [None if one is None else _spread(one, placed, num_rows) for one in (x, scales)]
    flat = None
    if weights is not None:
        flat = torch.zeros(num_rows, dtype=weights.dtype, device=device)
        flat[placed[placed >= 0].long()] = weights[placed >= 0]
    return Received(spread[0], spread[1], None, flat, metadata, *told, valid)


def _gather(values: list[Tensor], rows: list[Tensor]) -> Tensor:
    """The chosen rows of all, one source after the other. Bytes: not every dtype can be indexed on every device."""
    import torch

    chosen = [_bytes(value)[index] for value, index in zip(values, rows, strict=True)]
    return torch.cat(chosen).contiguous().view(values[0].dtype).view(-1, values[0].shape[1])


def _bytes(value: Tensor) -> Tensor:
    import torch

    return (
        value.contiguous().view(torch.uint8).view(value.shape[0], -1)
        if value.numel()
        else value.new_zeros((value.shape[0], value.shape[1] * value.element_size()), dtype=torch.uint8)
    )


def _align(counts: Tensor, alignment: int) -> Tensor:
    return (counts + alignment - 1).div(alignment, rounding_mode="floor") * alignment


def _placed(topk_idx: Tensor, begins: Tensor) -> Tensor:
    """int32 [N, K]: the row of each selection in the expanded output, −1 where none."""
    import torch

    flat = topk_idx.flatten().long()
    placed = torch.full_like(flat, -1)
    for expert in flat[flat >= 0].unique().tolist():
        at = (flat == expert).nonzero().flatten()
        placed[at] = begins[expert] + torch.arange(at.numel(), device=flat.device)
    return placed.view(topk_idx.shape).int()


def _spread(rows: Tensor, placed: Tensor, num_rows: int) -> Tensor:
    import torch

    raw = _bytes(rows)
    out = torch.zeros((num_rows, raw.shape[1]), dtype=torch.uint8, device=rows.device)
    row, position = (placed >= 0).nonzero(as_tuple=True)
    out[placed[row, position].long()] = raw[row]
    return out.view(rows.dtype).view(num_rows, rows.shape[1])


class Returned(Struct, frozen=True):
    """What one rank gives to combine: x and weights in the layout that it received, and the metadata."""

    x: Any
    weights: Any
    received: Received


def combine(
    returned: list[Returned],
    mine: Sent,
    setting: Setting,
    rank: int,
    biases: tuple[Tensor, ...] = (),
    *,
    multiple_reduction: bool = True,
) -> tuple[Tensor, Tensor]:
    """(combined_x BF16 [T, H], weights float32 [T, K] or None) on the rank that `mine` comes from. Sums in float32, in ascending
    top-k positions: those of a rank first where expanded rows are reduced before they travel."""
    import torch

    num_tokens, num_topk = mine.topk_idx.shape
    hidden = returned[0].x.shape[1]
    device = mine.x.device
    sums = torch.zeros((num_tokens, hidden), dtype=torch.float32, device=device)
    for bias in biases:
        sums += bias.float()
    weights = None
    if returned[0].weights is not None:
        weights = torch.zeros((num_tokens, num_topk), dtype=torch.float32, device=device)
    partials = [_partials(one, setting, multiple_reduction=multiple_reduction) for one in returned]
    picks = [goes_to(mine.topk_idx, setting, owner) for owner in range(setting.num_ranks)]
    rows = [_rows_of(one.received, setting, rank, num_tokens) for one in returned]
    for position in range(num_topk):
        for owner in range(setting.num_ranks):
            here = picks[owner][:, position]
            if weights is not None:
                weights[here, position] = _weight(returned[owner], rows[owner][here], position, setting)
            if setting.expand and not multiple_reduction:
                at = returned[owner].received.metadata[rows[owner][here], 2 + position].long()
            else:
                here = here & ~picks[owner][:, position + 1 :].any(1)
                at = rows[owner][here]
            sums[here] += partials[owner][at].float()
    return sums.bfloat16(), weights


def _weight(one: Returned, rows: Tensor, position: int, setting: Setting) -> Tensor:
    if not setting.expand:
        return one.weights[rows, position]
    return one.weights[one.received.metadata[rows, 2 + position].long()]


def _rows_of(received: Received, setting: Setting, rank: int, num_tokens: int) -> Tensor:
    """int64 [T]: the row of each of the rank's tokens at the receiver, −1 where it did not go."""
    import torch

    source = received.metadata[:, 0].long()
    mine = (source.div(setting.max_tokens, rounding_mode="floor") == rank).nonzero().flatten()
    rows = torch.full((num_tokens,), -1, dtype=torch.long, device=source.device)
    rows[source[mine] - rank * setting.max_tokens] = mine
    return rows


def _partials(one: Returned, setting: Setting, *, multiple_reduction: bool) -> Tensor:
    """Rows that travel."""
    import torch

    if not setting.expand or not multiple_reduction:
        return one.x
    placed = one.received.metadata[:, 2:].long()
    sums = torch.zeros((placed.shape[0], one.x.shape[1]), dtype=torch.float32, device=one.x.device)
    for position in range(placed.shape[1]):
        here = placed[:, position] >= 0
        sums[here] += one.x[placed[here, position]].float()
    return sums.bfloat16()
