"""Dispatch and combine by plain loops over tokens, experts and positions: a second way beside `reference`, which it shares nothing with."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from epctl.ops.ep.reference import Received, Sent, Setting
from epctl.ops.ep.trial.inputs import Turn

Tensor: TypeAlias = Any
"""torch.Tensor."""


class Arrived(Struct, frozen=True):
    """What came from each rank, by rank: rows and scales as bytes, indices, weights, and the tokens' numbers there."""

    x: list[Any]
    scales: list[Any] | None
    topk_idx: list[Any]
    weights: list[Any] | None
    tokens: list[Any]


class Back(Struct, frozen=True):
    """What goes back to each rank, by rank."""

    rows: list[Any]
    weights: list[Any]


def tokens_for(topk_idx: list[list[int]], setting: Setting, rank: int) -> list[int]:
    """Tokens that select an expert of that rank, in their order."""
    first, end = rank * setting.experts_per_rank, (rank + 1) * setting.experts_per_rank
    return [token for token, row in enumerate(topk_idx) if any(first <= expert < end for expert in row)]


def place(arrived: Arrived, sent: Sent, setting: Setting, rank: int) -> Received:
    """The rank's outputs. `sent`: of this rank, for dtypes and widths."""
    import torch

    first = rank * setting.experts_per_rank
    num_topk = int(sent.topk_idx.shape[1])
    local, metadata, tokens_per_source = [], [], []
    for source, (tokens, rows) in enumerate(zip(arrived.tokens, arrived.topk_idx, strict=True)):
        for token, row in zip(tokens.tolist(), rows.tolist(), strict=True):
            local.append([expert - first if 0 <= expert - first < setting.experts_per_rank else -1 for expert in row])
            metadata.append([source * setting.max_tokens + token, -1, *[-1] * num_topk])
        tokens_per_source.append(len(local))
    counts = [sum(row.count(expert) for row in local) for expert in range(setting.experts_per_rank)]
    begins, ends, at = [], [], 0
    for count in counts:
        begins.append(at)
        ends.append(at + count)
        at += -(-count // setting.alignment) * setting.alignment
    x = torch.cat(arrived.x)
    scales = None if arrived.scales is None else torch.cat(arrived.scales)
    weights = None if arrived.weights is None else torch.cat(arrived.weights)
    if setting.expand:
        return _expanded(
            _Rows(x, scales, weights, local, metadata), (begins, ends, counts, at), tokens_per_source, sent
        )
    for row, chosen in enumerate(local):
        for position, expert in enumerate(chosen):
            if weights is not None and expert < 0:
                weights[row, position] = 0.0
    inclusive = [*begins[1:], at]
    return Received(
        _typed(x, sent.x),
        None if scales is None else _typed(scales, sent.scales),
        torch.tensor(local, dtype=sent.topk_idx.dtype).view(-1, num_topk),
        weights,
        torch.tensor(metadata, dtype=torch.int32).view(-1, num_topk + 2),
        _ints(tokens_per_source),
        _ints(inclusive),
        _ints(counts),
        None,
    )


class _Rows(Struct, frozen=True):
    x: Any
    scales: Any
    weights: Any
    local: list[list[int]]
    metadata: list[list[int]]


def _expanded(
    rows: _Rows, groups: tuple[list[int], list[int], list[int], int], tokens_per_source: list[int], sent: Sent
) -> Received:
    import torch

    begins, ends, counts, num_rows = groups
    x = torch.zeros((num_rows, rows.x.shape[1]), dtype=torch.uint8)
    scales = None if rows.scales is None else torch.zeros((num_rows, rows.scales.shape[1]), dtype=torch.uint8)
    weights = None if rows.weights is None else torch.zeros(num_rows)
    valid = torch.zeros(num_rows, dtype=torch.bool)
    free = list(begins)
    for row, chosen in enumerate(rows.local):
        for position, expert in enumerate(chosen):
            if expert < 0:
                continue
            target = free[expert]
            free[expert] += 1
            rows.metadata[row][2 + position] = target
            valid[target] = True
            x[target] = rows.x[row]
            if scales is not None:
                scales[target] = rows.scales[row]
            if weights is not None:
                weights[target] = rows.weights[row, position]
    num_topk = int(sent.topk_idx.shape[1])
    return Received(
        _typed(x, sent.x),
        None if scales is None else _typed(scales, sent.scales),
        None,
        weights,
        torch.tensor(rows.metadata, dtype=torch.int32).view(-1, num_topk + 2),
        _ints(tokens_per_source),
        _ints(ends),
        _ints(counts),
        valid,
    )


def sources_of(rows: Tensor, received: Received, setting: Setting, *, every_row: bool) -> Back:
    """Partial rows, and weights, for each source, in the order in which its tokens came. `every_row`: a token's rows, unsummed, one for
    each position of the selection: zeros where it is another rank's."""
    import torch

    parts: list[list[Any]] = [[] for _ in range(setting.num_ranks)]
    weights: list[list[Any]] = [[] for _ in range(setting.num_ranks)]
    metadata = received.metadata.tolist()
    num_topk = int(received.metadata.shape[1]) - 2
    hidden = int(rows.shape[1])
    for row, (source, _, *placed) in enumerate(metadata):
        home = source // setting.max_tokens
        if not setting.expand:
            parts[home].append(rows[row])
        elif every_row:
            parts[home].append(torch.cat([rows[at] if at >= 0 else torch.zeros(hidden).bfloat16() for at in placed]))
        else:
            total = torch.zeros(hidden)
            for at in placed:
                if at >= 0:
                    total = total + rows[at].float()
            parts[home].append(total.bfloat16())
        if received.weights is not None and setting.expand:
            weights[home].append(torch.stack([received.weights[at] if at >= 0 else torch.zeros(()) for at in placed]))
        elif received.weights is not None:
            weights[home].append(received.weights[row])
    width = hidden * num_topk if setting.expand and every_row else hidden
    return Back(
        [torch.stack(part) if part else torch.zeros((0, width)).bfloat16() for part in parts],
        [torch.stack(part) if part else torch.zeros((0, num_topk)) for part in weights],
    )


def come_home(
    rows: list[Tensor],
    weights: list[Tensor] | None,
    chosen: list[list[int]],
    turn: Turn,
    setting: Setting,
    *,
    every_row: bool,
) -> tuple[Tensor, Tensor]:
    """(combined_x, combined weights) out of what came back from each rank for the tokens that had gone there."""
    import torch

    topk_idx = turn.sent.topk_idx.tolist()
    num_topk = int(turn.sent.topk_idx.shape[1])
    hidden = int(turn.rows.shape[1])
    where = [{token: row for row, token in enumerate(tokens)} for tokens in chosen]
    combined = torch.zeros((len(topk_idx), hidden), dtype=torch.bfloat16)
    home_weights = None if weights is None else torch.zeros((len(topk_idx), num_topk))
    for token, selected in enumerate(topk_idx):
        total = torch.zeros(hidden)
        for bias in turn.biases:
            total = total + bias[token].float()
        owners = [expert // setting.experts_per_rank if expert >= 0 else -1 for expert in selected]
        for position, owner in enumerate(owners):
            if owner < 0:
                continue
            row = where[owner][token]
            if home_weights is not None and weights is not None:
                home_weights[token, position] = weights[owner][row, position]
            if setting.expand and every_row:
                total = total + rows[owner][row].view(num_topk, hidden)[position].float()
            elif owner not in owners[position + 1 :]:
                total = total + rows[owner][row].float()
        combined[token] = total.bfloat16()
    return combined, home_weights


def _typed(raw: Tensor, like: Tensor) -> Tensor:
    """Bytes as rows of another tensor's dtype and width."""
    import torch

    if not raw.shape[0]:
        return torch.zeros((0, like.shape[1]), dtype=torch.uint8).to(like.dtype)
    return raw.contiguous().view(like.dtype).view(raw.shape[0], like.shape[1])


def _ints(values: list[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)
