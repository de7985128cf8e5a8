"""A combine in which every expanded row travels: homes pull the rows, and round each sum once."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import structs

from epctl.native.ep_args import Pull
from epctl.ops.ep import arguments
from epctl.ops.ep.call import address
from epctl.ops.ep.combining import Wish, combined_shape, outputs
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.handle import EPHandle

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""


class Pulling:
    """See Combining. Rows are copied into symmetric memory first."""

    def __init__(
        self, engine: Engine, x: Tensor, handle: EPHandle, weights: Tensor, biases: tuple[Tensor, Tensor], wish: Wish
    ) -> None:
        self._engine, self._x, self._handle, self._weights, self._wish = engine, x, handle, weights, wish
        self._biases = biases
        room = engine.layout.num_every_row
        if x.shape[0] > room:
            raise arguments.refuse(
                "x", x, f"at most {room} rows, which a buffer with allow_multiple_reduction=False has room for"
            )

    def send(self, stream: Stream) -> None:
        """Rows, weights and metadata to where peers can read them; announced at once when the rest is deferred."""
        import torch

        memory, metadata = self._engine.memory, self._handle.recv_src_metadata
        rows_at, weights_at, metadata_at = self._engine.layout.every_row
        memory.view(rows_at, tuple(self._x.shape), torch.bfloat16).copy_(self._x)
        memory.view(metadata_at, tuple(metadata.shape), torch.int32).copy_(metadata)
        if self._weights is not None:
            memory.view(weights_at, tuple(self._weights.shape), torch.float32).copy_(self._weights)
        if self._wish.deferred:
            self._launch(stream, None, None, announces=True, pulls=False)

    def receive(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """(combined_x [tokens, H] BF16, combined_topk_weights [tokens, K] float32 or None)."""
        out, weights = outputs(self._engine, self._x, self._handle, self._weights)
        self._launch(stream, out, weights, announces=not self._wish.deferred, pulls=True)
        return out, weights

    def _launch(self, stream: Stream, out: Tensor, weights: Tensor, *, announces: bool, pulls: bool) -> None:
        handle, engine, wish = self._handle, self._engine, self._wish
        rows_at, weights_at, metadata_at = engine.layout.every_row
        told = Pull(
            engine.peers,
            structs.replace(engine.slot(0), metadata=metadata_at),
            combined_shape(self._x, handle, engine.domain.num_ranks),
            rows_at,
            weights_at,
            address(self._x),
            address(self._weights),
            handle.topk_idx.data_ptr(),
            handle.routes.data_ptr(),
            address(self._biases[0]),
            address(self._biases[1]),
            address(out),
            address(weights),
            engine.state,
            wish.waited_ns,
            announces,
            pulls,
            engine.limits(),
        )
        engine.pull(told, wish.num_blocks if pulls else 1, stream)
