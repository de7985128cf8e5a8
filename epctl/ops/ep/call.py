"""What a dispatch is called with, checked, and what it gives."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from epctl.native.ep_args import Shape
from epctl.ops.ep import arguments
from epctl.ops.ep.handle import EPHandle

Tensor: TypeAlias = Any
"""torch.Tensor."""
WIDE_BYTES = 8


class Rows(Struct, frozen=True):
    """Rows that are sent: data and, for FP8, their scales (float32, or packed int32)."""

    x: Any
    scales: Any

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(self.x.shape[1]) * int(self.x.element_size())

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row of scales; 0 without."""
        return 0 if self.scales is None else int(self.scales.shape[1]) * int(self.scales.element_size())


class Wish(Struct, frozen=True):
    """How a dispatch is to be made."""

    num_blocks: int
    do_expand: bool
    zero_padding: bool
    column_scales: bool
    cpu_sync: bool
    deferred: bool
    copies: bool
    """Outputs in memory of their own instead of views of the buffer."""
    waited_ns: int = 0


class Result(Struct, frozen=True):
    """What the caller gets."""

    x: Any
    topk_idx: Any
    topk_weights: Any
    handle: Any


def address(value: Tensor) -> int:
    """Of a tensor; 0 for none."""
    return 0 if value is None else int(value.data_ptr())


def checked_rows(x: Any, hidden: int | None, max_row_bytes: int, device: Any) -> Rows:  # noqa: ANN401 - tensor or pair
    """Rows of a dispatch. Raises EpctlError that names the argument."""
    import torch

    fp8 = torch.float8_e4m3fn
    if isinstance(x, tuple | list):
        if len(x) != 2:
            raise arguments.refuse("x", x, "a tensor, or a pair (float8_e4m3fn data, scales)")
        data, scales = x
        arguments.tensor("x[0]", data, (None, hidden), (fp8,), device)
        width = -(-int(data.shape[1]) // 128)
        packed = getattr(scales, "dtype", None) == torch.int32
        shape = (int(data.shape[0]), -(-width // 4) if packed else width)
        arguments.tensor("x[1]", scales, shape, (torch.float32, torch.int32), device)
    else:
        data, scales = x, None
        arguments.tensor("x", data, (None, hidden), (torch.bfloat16,), device)
    arguments.hidden(int(data.shape[1]))
    rows = Rows(data, scales)
    if rows.row_bytes > max_row_bytes:
        raise arguments.refuse("x", data, f"rows of at most {max_row_bytes} bytes, which the buffer was made for")
    return rows


def shape_of(rows: Rows, handle: EPHandle, num_ranks: int) -> Shape:
    """The call's shape, for kernels."""
    return Shape(
        handle.num_tokens,
        handle.num_max_tokens_per_rank,
        rows.row_bytes,
        rows.scale_bytes,
        handle.num_topk,
        handle.num_experts,
        handle.num_experts // num_ranks,
        int(handle.topk_idx.element_size() == WIDE_BYTES),
    )


def learn(handle: EPHandle, words: list[int], head: int) -> None:
    """Puts what the host was told into the handle."""
    handle.num_recv_tokens, handle.num_expanded_tokens = words[1], words[2]
    handle.num_recv_tokens_per_expert_list = words[head:]
