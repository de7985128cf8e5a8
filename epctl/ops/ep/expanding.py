"""The second half of an expanded dispatch: received rows become rows of (token, expert), grouped by expert."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from epctl.native.ep_args import Expand, Shape
from epctl.native.ep_sizes import MAX_BLOCKS
from epctl.ops.ep.call import Result, Rows, Wish, address
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.handle import EPHandle
from epctl.ops.ep.layout import expanded_capacity

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class Sources(Struct, frozen=True):
    """Addresses of what was received: rows, scales, local indices, weights, metadata. An empty tensor has none, so that 0 says nothing."""

    rows: int
    scales: int
    indices: int
    weights: int
    metadata: int
    has_weights: bool


def expand(
    engine: Engine, handle: EPHandle, rows: Rows, wish: Wish, shape: Shape, sources: Sources, stream: Stream
) -> Result:
    """Launches epctl_ep_expand; outputs are memory of their own, exactly as large as known on the host, else of capacity."""
    import torch

    device, num_ranks = engine.device, engine.domain.num_ranks
    num_rows = handle.num_expanded_tokens
    if num_rows is None:
        sizes = (num_ranks, handle.num_max_tokens_per_rank, handle.num_topk, shape.experts_per_rank)
        num_rows = expanded_capacity(*sizes, handle.expert_alignment)
    num_sources = handle.num_recv_tokens
    if num_sources is None:
        num_sources = num_ranks * handle.num_max_tokens_per_rank
    x = torch.empty((num_rows, rows.x.shape[1]), dtype=rows.x.dtype, device=device)
    scales, stride = _scales(rows, num_rows, wish, device)
    weights = torch.empty(num_rows, dtype=torch.float32, device=device) if sources.has_weights else None
    metadata = torch.empty((num_sources, handle.num_topk + 2), dtype=torch.int32, device=device)
    told = Expand(
        shape,
        sources.rows,
        sources.scales,
        sources.indices,
        sources.weights,
        sources.metadata,
        handle.psum_num_recv_tokens_per_scaleup_rank.data_ptr(),
        handle.psum_num_recv_tokens_per_expert.data_ptr(),
        handle.num_unaligned_recv_tokens_per_expert.data_ptr(),
        x.data_ptr(),
        address(scales),
        address(weights),
        metadata.data_ptr(),
        engine.state,
        engine.expand_words,
        num_ranks,
        handle.expert_alignment,
        wish.zero_padding,
        wish.column_scales and scales is not None,
        stride,
        num_rows,
        engine.limits(),
    )
    engine.expand(told, min(engine.num_sms, MAX_BLOCKS), stream)
    handle.keep_metadata(metadata)
    return Result(x if scales is None else (x, scales), None, weights, handle)


def _scales(rows: Rows, num_rows: int, wish: Wish, device: Any) -> tuple[Tensor, int]:  # noqa: ANN401 - torch.device
    """(tensor, rows of a column)."""
    import torch

    if rows.scales is None:
        return None, 0
    width = rows.scales.shape[1]
    if not wish.column_scales:
        return torch.empty((num_rows, width), dtype=rows.scales.dtype, device=device), 0
    stride = -(-num_rows // 4) * 4  # columns begin at multiples of 16 bytes, as TMA wants it
    whole = torch.empty((width, stride), dtype=rows.scales.dtype, device=device)
    return whole.t()[:num_rows], stride
