"""A combine in which every expanded row travels: homes pull the rows, and round each sum once."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import structs

from epctl.native.ep_args import Pull
from epctl.ops.ep.call import address
from epctl.ops.ep.combining import Wish, combined_shape, outputs
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.handle import EPHandle

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""


def without_padding(metadata: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """(rows to take [received * K] int64, metadata [received, K + 2] int32 that names them by their place in that list), for metadata
    of the same shape that names expanded rows below `num_rows`. Selections that are not there, and rows of metadata that nobody has
    written, name some row that is never asked for."""
    import torch

    placed = metadata[:, 2:]
    places = torch.arange(placed.numel(), dtype=torch.int32, device=metadata.device).view_as(placed)
    found = metadata.clone()
    found[:, 2:] = torch.where(placed < 0, placed, places)
    return placed.clamp(0, num_rows - 1).reshape(-1).long(), found


class Pulling:
    """See Combining. Rows are copied into symmetric memory first."""

    def __init__(
        self, engine: Engine, x: Tensor, handle: EPHandle, weights: Tensor, biases: tuple[Tensor, Tensor], wish: Wish
    ) -> None:
        self._engine, self._x, self._handle, self._weights, self._wish = engine, x, handle, weights, wish
        self._biases = biases

    def send(self, stream: Stream) -> None:
        """Rows, weights and metadata to where peers can read them; announced at once when the rest is deferred."""
        import torch

        memory, metadata = self._engine.memory, self._handle.recv_src_metadata
        rows_at, weights_at, metadata_at = self._engine.layout.every_row
        chosen = None
        if self._x.shape[0] > self._engine.layout.num_every_row:
            # Many experts, each group padded: only the rows that travel have room.
            chosen, metadata = without_padding(metadata, int(self._x.shape[0]))
        for at, rows in ((rows_at, self._x), (weights_at, self._weights)):
            if rows is None:
                continue
            shape = (rows.shape[0] if chosen is None else chosen.shape[0], *rows.shape[1:])
            staged = memory.view(at, shape, rows.dtype)
            if chosen is None:
                staged.copy_(rows)
            else:
                torch.index_select(rows.detach(), 0, chosen, out=staged)
        memory.view(metadata_at, tuple(metadata.shape), torch.int32).copy_(metadata)
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
            engine.memory.address + rows_at,
            0 if self._weights is None else engine.memory.address + weights_at,
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
