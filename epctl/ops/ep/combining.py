"""One combine: rows are pushed to their tokens' homes and added there."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from epctl.native.ep_args import Combine, Shape
from epctl.native.ep_sizes import Ring, push_ring_for
from epctl.ops.ep.call import WIDE_BYTES, address
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.handle import EPHandle
from epctl.ops.ep.layout import BF16_BYTES

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class Wish(Struct, frozen=True):
    """How a combine is to be made."""

    num_blocks: int
    deferred: bool
    waited_ns: int = 0


class Combining:
    """A combine under way: `send` pushes where the rest is deferred, `receive` gives the sums."""

    def __init__(
        self, engine: Engine, x: Tensor, handle: EPHandle, weights: Tensor, biases: tuple[Tensor, Tensor], wish: Wish
    ) -> None:
        self._engine, self._x, self._handle, self._weights, self._wish = engine, x, handle, weights, wish
        self._biases = biases
        self._ring: Ring = push_ring_for(int(x.shape[1]) * BF16_BYTES)

    def send(self, stream: Stream) -> None:
        """Pushes the rows when the rest is deferred; else one launch does both."""
        if self._wish.deferred:
            self._launch(stream, None, None, sends=True, receives=False)

    def receive(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """(combined_x [tokens, H] BF16, combined_topk_weights [tokens, K] float32 or None)."""
        out, weights = outputs(self._engine, self._x, self._handle, self._weights)
        self._launch(stream, out, weights, sends=not self._wish.deferred, receives=True)
        return out, weights

    def _launch(self, stream: Stream, out: Tensor, weights: Tensor, *, sends: bool, receives: bool) -> None:
        handle, engine, wish = self._handle, self._engine, self._wish
        told = Combine(
            engine.peers,
            engine.layout.combine,
            combined_shape(self._x, handle, engine.domain.num_ranks),
            address(self._x),
            address(self._weights),
            handle.topk_idx.data_ptr(),
            handle.routes.data_ptr(),
            address(handle.recv_src_metadata) if handle.do_expand else 0,
            address(self._biases[0]),
            address(self._biases[1]),
            address(out),
            address(weights),
            engine.state,
            wish.waited_ns,
            handle.do_expand,
            sends,
            receives,
            # All warps add up where nothing is pushed.
            self._ring if sends else Ring(0, 1, 0, 0),
            engine.limits(),
        )
        engine.combine(told, wish.num_blocks, stream)


def outputs(engine: Engine, x: Tensor, handle: EPHandle, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for combined_x and combined_topk_weights (None without weights)."""
    import torch

    out = torch.empty((handle.num_tokens, x.shape[1]), dtype=torch.bfloat16, device=engine.device)
    if weights is None:
        return out, None
    return out, torch.empty((handle.num_tokens, handle.num_topk), dtype=torch.float32, device=engine.device)


def combined_shape(x: Tensor, handle: EPHandle, num_ranks: int) -> Shape:
    """The call's shape, for kernels."""
    return Shape(
        handle.num_tokens,
        handle.num_max_tokens_per_rank,
        int(x.shape[1]) * BF16_BYTES,
        0,
        handle.num_topk,
        handle.num_experts,
        handle.num_experts // num_ranks,
        int(handle.topk_idx.element_size() == WIDE_BYTES),
    )
