"""Calls of few tokens: nothing is exchanged before rows travel, and outputs are memory of their own."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import structs

from epctl.native.ep_args import SmallCombine, SmallDispatch, SmallOffsets
from epctl.ops.ep import combining
from epctl.ops.ep.call import Result, Rows, Wish, address, learn, shape_of
from epctl.ops.ep.combining import combined_shape, outputs
from epctl.ops.ep.dispatching import counts_of
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.expanding import Sources, expand
from epctl.ops.ep.handle import EPHandle
from epctl.ops.ep.host_counts import HEAD, HostCounts

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class SmallDispatching:
    """See Dispatching."""

    def __init__(self, engine: Engine, rows: Rows, handle: EPHandle, weights: Tensor, wish: Wish) -> None:
        self._engine, self._rows, self._handle, self._weights, self._wish = engine, rows, handle, weights, wish
        self._cached = handle.routes is not None
        self._shape = shape_of(rows, handle, engine.domain.num_ranks)
        self._out = self._allocate()

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Memory that is written to."""
        return self._out

    def _allocate(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Rows, scales, indices, weights and metadata for as many rows as may come."""
        import torch

        handle, rows, device = self._handle, self._rows, self._engine.device
        num_rows = handle.num_recv_tokens
        if num_rows is None:
            num_rows = self._engine.domain.num_ranks * handle.num_max_tokens_per_rank
        topk = handle.num_topk
        scales = weights = None
        if rows.scales is not None:
            scales = torch.empty((num_rows, rows.scales.shape[1]), dtype=rows.scales.dtype, device=device)
        if self._weights is not None:
            weights = torch.empty((num_rows, topk), dtype=torch.float32, device=device)
        x = torch.empty((num_rows, rows.x.shape[1]), dtype=rows.x.dtype, device=device)
        indices = torch.empty((num_rows, topk), dtype=handle.topk_idx.dtype, device=device)
        metadata = torch.empty((num_rows, topk + 2), dtype=torch.int32, device=device)
        return x, scales, indices, weights, metadata

    def send(self, stream: Stream, statistics: Tensor, host: HostCounts) -> None:
        """Launches the kernel: both halves, unless the second one is deferred."""
        import torch

        handle, engine = self._handle, self._engine
        if not self._cached:
            counts_of(handle, engine, self._shape.experts_per_rank)
            handle.routes = torch.empty(max(1, handle.num_tokens), dtype=torch.int32, device=engine.device)
        elif statistics is not None:
            statistics.add_(handle.num_unaligned_recv_tokens_per_expert)
        self._told = self._arguments(None if self._cached else statistics, host)
        told = structs.replace(self._told, sends=True, receives=not self._wish.deferred)
        engine.small_dispatch(told, self._wish.num_blocks, stream)

    def _arguments(self, statistics: Tensor, host: HostCounts) -> SmallDispatch:
        handle, engine, rows, wish = self._handle, self._engine, self._rows, self._wish
        syncs = wish.cpu_sync and not self._cached
        x, scales, indices, weights, metadata = (address(one) for one in self._out)
        return SmallDispatch(
            engine.peers,
            engine.layout.small,
            self._shape,
            rows.x.data_ptr(),
            address(rows.scales),
            handle.topk_idx.data_ptr(),
            address(self._weights),
            x,
            scales,
            indices,
            weights,
            metadata,
            handle.routes.data_ptr(),
            engine.state,
            handle.psum_num_recv_tokens_per_scaleup_rank.data_ptr(),
            handle.psum_num_recv_tokens_per_expert.data_ptr(),
            handle.num_unaligned_recv_tokens_per_expert.data_ptr(),
            address(statistics),
            host.address if syncs else 0,
            wish.waited_ns,
            host.expect() if syncs else 0,
            handle.expert_alignment,
            handle.do_expand,
            True,
            True,
            engine.limits(),
        )

    def receive(self, stream: Stream, host: HostCounts) -> Result:
        """The second half of a deferred one, then the outputs."""
        handle, engine, wish = self._handle, self._engine, self._wish
        if wish.deferred:
            engine.small_dispatch(structs.replace(self._told, sends=False), wish.num_blocks, stream)
        if wish.cpu_sync and not self._cached:
            learn(handle, host.wait(HEAD + self._shape.experts_per_rank), HEAD)
        if handle.do_expand:
            x, scales, indices, weights, metadata = (address(one) for one in self._out)
            found = Sources(x, scales, indices, weights, metadata, self._weights is not None)
            return expand(engine, handle, self._rows, wish, self._shape, found, stream)
        num_rows = handle.num_recv_tokens
        out = [one if one is None or num_rows is None else one[:num_rows] for one in self._out]
        handle.keep_metadata(out[4])
        return Result(out[0] if out[1] is None else (out[0], out[1]), out[2], out[3], handle)


class SmallCombining:
    """See Combining."""

    def __init__(
        self,
        engine: Engine,
        x: Tensor,
        handle: EPHandle,
        weights: Tensor,
        biases: tuple[Tensor, Tensor],
        wish: combining.Wish,
    ) -> None:
        self._engine, self._x, self._handle, self._weights, self._wish = engine, x, handle, weights, wish
        self._biases = biases

    def send(self, stream: Stream) -> None:
        """Pushes the rows home when the rest is deferred; else one launch does both."""
        if self._wish.deferred:
            self._launch(stream, None, None, sends=True, receives=False)

    def receive(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """(combined_x [tokens, H] BF16, combined_topk_weights [tokens, K] float32 or None)."""
        out, weights = outputs(self._engine, self._x, self._handle, self._weights)
        self._launch(stream, out, weights, sends=not self._wish.deferred, receives=True)
        return out, weights

    def _launch(self, stream: Stream, out: Tensor, weights: Tensor, *, sends: bool, receives: bool) -> None:
        handle, engine, wish = self._handle, self._engine, self._wish
        small: SmallOffsets = engine.layout.small
        num_rows = int(handle.recv_src_metadata.shape[0])
        if not handle.do_expand:
            # Rows are read before it is known whether they count: not behind the end of x.
            num_rows = min(num_rows, int(self._x.shape[0]))
        told = SmallCombine(
            engine.peers,
            small,
            combined_shape(self._x, handle, engine.domain.num_ranks),
            address(self._x),
            address(self._weights),
            handle.topk_idx.data_ptr(),
            handle.routes.data_ptr(),
            handle.recv_src_metadata.data_ptr(),
            handle.psum_num_recv_tokens_per_scaleup_rank.data_ptr(),
            address(self._biases[0]),
            address(self._biases[1]),
            address(out),
            address(weights),
            engine.state,
            wish.waited_ns,
            handle.do_expand,
            sends,
            receives,
            num_rows,
            engine.limits(),
        )
        engine.small_combine(told, wish.num_blocks, stream)
