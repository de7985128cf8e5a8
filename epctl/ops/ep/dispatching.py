"""One dispatch: from checked arguments to kernels and views of what they wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from epctl.core.errors import EpctlError
from epctl.native.ep_args import Dispatch, Offsets, Shape
from epctl.ops.ep.call import Result, Rows, Wish, address, learn, shape_of
from epctl.ops.ep.checks import check_blocks
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.expanding import Sources, expand
from epctl.ops.ep.handle import EPHandle
from epctl.ops.ep.host_counts import HEAD, HostCounts
from epctl.ops.ep.layout import NUM_SLOTS

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class Dispatching:
    """A dispatch under way: `send` launches it, `receive` gives its outputs."""

    def __init__(self, engine: Engine, rows: Rows, handle: EPHandle, weights: Tensor, wish: Wish) -> None:
        self._engine, self._rows, self._handle, self._weights, self._wish = engine, rows, handle, weights, wish
        self._at: Offsets = engine.slot(handle.call_idx)
        self._cached = handle.routes is not None
        self._call_idx = handle.call_idx
        self.experts_per_rank = handle.num_experts // engine.domain.num_ranks
        check_blocks(engine, rows.row_bytes, handle.num_max_tokens_per_rank, wish.num_blocks)

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Memory that is written to, but for the buffer's own: none."""
        return ()

    @property
    def _shape(self) -> Shape:
        return shape_of(self._rows, self._handle, self._engine.domain.num_ranks)

    def send(self, stream: Stream, statistics: Tensor, host: HostCounts) -> None:
        """Launches the kernel."""
        import torch

        handle, engine, rows, wish = self._handle, self._engine, self._rows, self._wish
        if not self._cached:
            counts_of(handle, engine, self.experts_per_rank)
            handle.routes = torch.empty((handle.num_tokens, handle.num_topk), dtype=torch.int32, device=engine.device)
        elif statistics is not None:
            statistics.add_(handle.num_unaligned_recv_tokens_per_expert)
        told = Dispatch(
            engine.peers,
            self._at,
            self._shape,
            rows.x.data_ptr(),
            address(rows.scales),
            handle.topk_idx.data_ptr(),
            address(self._weights),
            handle.routes.data_ptr(),
            engine.state,
            engine.dispatch_words,
            engine.expert_counts,
            handle.psum_num_recv_tokens_per_scaleup_rank.data_ptr(),
            handle.psum_num_recv_tokens_per_expert.data_ptr(),
            handle.num_unaligned_recv_tokens_per_expert.data_ptr(),
            0 if self._cached else address(statistics),
            host.address if wish.cpu_sync and not self._cached else 0,
            wish.waited_ns,
            host.expect() if wish.cpu_sync and not self._cached else 0,
            handle.expert_alignment,
            handle.do_expand,
            self._cached,
            not wish.deferred,
            engine.ring(rows.row_bytes, handle.num_tokens, wish.num_blocks),
            engine.limits(),
        )
        engine.dispatch(told, wish.num_blocks, stream)

    def receive(self, stream: Stream, host: HostCounts) -> Result:
        """What remains of a deferred one, then the outputs."""
        handle, engine, wish = self._handle, self._engine, self._wish
        if wish.deferred:
            engine.finish(self._at, wish.waited_ns, stream)
        if wish.cpu_sync and not self._cached:
            learn(handle, host.wait(HEAD + self.experts_per_rank), HEAD)
        if handle.do_expand:
            base, at = engine.memory.address, self._at
            weights_at = 0 if self._weights is None else base + at.weights
            found = Sources(
                base + at.rows,
                base + at.scales,
                base + at.indices,
                weights_at,
                base + at.metadata,
                self._weights is not None,
            )
            return expand(engine, handle, self._rows, wish, self._shape, found, stream)
        num_rows = handle.num_recv_tokens
        if num_rows is None:
            num_rows = engine.domain.num_ranks * handle.num_max_tokens_per_rank
        handle.read_metadata_with(self._metadata_reader(num_rows))
        x, scales = self._received(num_rows)
        topk_idx = self._view(self._at.indices, (num_rows, handle.num_topk), handle.topk_idx.dtype)
        weights = self._sent_weights(num_rows)
        if wish.copies:
            handle.recv_src_metadata  # noqa: B018 - copies it
            x, scales, topk_idx, weights = (
                None if one is None else one.clone() for one in (x, scales, topk_idx, weights)
            )
        return Result(x if scales is None else (x, scales), topk_idx, weights, handle)

    def _view(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Tensor:  # noqa: ANN401 - torch.dtype
        return self._engine.memory.view(offset, shape, dtype)

    def _received(self, num_rows: int) -> tuple[Tensor, Tensor]:
        rows = self._rows
        x = self._view(self._at.rows, (num_rows, rows.x.shape[1]), rows.x.dtype)
        if rows.scales is None:
            return x, None
        return x, self._view(self._at.scales, (num_rows, rows.scales.shape[1]), rows.scales.dtype)

    def _sent_weights(self, num_rows: int) -> Tensor:
        if self._weights is None:
            return None
        return self._view(self._at.weights, (num_rows, self._handle.num_topk), self._weights.dtype)

    def _metadata_reader(self, num_rows: int) -> Callable[[], Tensor]:
        import torch

        handle, call_idx = self._handle, self._call_idx

        def read() -> Tensor:
            self._engine_is_not_past(call_idx)
            return self._view(self._at.metadata, (num_rows, handle.num_topk + 2), torch.int32).clone()

        return read

    def _engine_is_not_past(self, call_idx: int) -> None:
        done = self._handle._buffer.num_calls
        if done > call_idx + NUM_SLOTS:
            raise EpctlError(
                "the source metadata of this dispatch has been overwritten",
                f"{done - call_idx - 1} dispatches on the same buffer came after it, and views stay valid until the next but one",
                "read handle.recv_src_metadata right after the dispatch, or make the buffer with zero_copy=False",
                exit_code=1,
            )


def counts_of(handle: EPHandle, engine: Engine, experts_per_rank: int) -> None:
    """Memory for the counts that the kernels write."""
    import torch

    num_ranks = engine.domain.num_ranks
    counts = torch.empty(num_ranks + 2 * experts_per_rank, dtype=torch.int32, device=engine.device)
    handle.psum_num_recv_tokens_per_scaleup_rank = counts[:num_ranks]
    handle.psum_num_recv_tokens_per_expert = counts[num_ranks : num_ranks + experts_per_rank]
    handle.num_unaligned_recv_tokens_per_expert = counts[num_ranks + experts_per_rank :]
