"""What a dispatch leaves behind: for the combine, for cached replays, and for the caller's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from epctl.core.errors import EpctlError

Tensor: TypeAlias = Any
"""torch.Tensor."""


class EPHandle:
    """Routing of one dispatch on one rank. R ranks, e experts of this rank, K = top-k, N rows received.

    Attributes (tensors are on the GPU unless said otherwise):
        topk_idx: the caller's tensor [tokens, K], kept by reference; it must not change while the handle is in use.
        num_recv_tokens: N, and num_expanded_tokens: aligned total; None where the host does not know them.
        num_recv_tokens_per_expert_list: aligned counts, after a CPU sync; else empty.
        psum_num_recv_tokens_per_scaleup_rank: int32 [R], inclusive sums of tokens by source. Its last element is N.
        psum_num_recv_tokens_per_expert: int32 [e]. Inclusive sums of aligned counts; expanded: begin of the group plus its real count.
        num_unaligned_recv_tokens_per_expert: int32 [e], real counts.
        num_sms, num_experts, expert_alignment, num_max_tokens_per_rank, do_expand: as they were in the call.
    """

    def __init__(self, buffer: Any, call_idx: int, topk_idx: Tensor, num_tokens: int) -> None:  # noqa: ANN401 - EPBuffer
        self._buffer = buffer
        self._version = _version_of(topk_idx)
        self.call_idx = call_idx
        self.topk_idx = topk_idx
        self.num_tokens = num_tokens
        self.num_topk = int(topk_idx.shape[1])
        self.num_recv_tokens: int | None = None
        self.num_expanded_tokens: int | None = None
        self.num_recv_tokens_per_expert_list: list[int] = []
        self.routes: Tensor = None
        self.psum_num_recv_tokens_per_scaleup_rank: Tensor = None
        self.psum_num_recv_tokens_per_expert: Tensor = None
        self.num_unaligned_recv_tokens_per_expert: Tensor = None
        self.num_experts = 0
        self.expert_alignment = 1
        self.num_max_tokens_per_rank = 0
        self.do_expand = False
        self.num_sms = 0
        self.is_small = False
        self._metadata: Tensor = None
        self._read_metadata: Callable[[], Tensor] | None = None

    @property
    def recv_src_metadata(self) -> Tensor:
        """int32 [N or capacity, K + 2]: column 0 is the global index of the source token, rank × num_max_tokens_per_rank + index;
        columns from 2 on are its rows in the expanded output, −1 where none. Not expanded: it lies in the buffer, and must be read (it
        is copied then) before the next dispatch but one. Raises EpctlError afterwards."""
        if self._metadata is None and self._read_metadata is not None:
            self._metadata = self._read_metadata()
        return self._metadata

    def tensors(self) -> tuple[Any, ...]:
        """All that kernels read of it."""
        # The three counts are parts of one tensor.
        return self.topk_idx, self.routes, self.psum_num_recv_tokens_per_scaleup_rank, self._metadata

    def keep_metadata(self, metadata: Tensor) -> None:
        """Of an expanded dispatch: memory of its own."""
        self._metadata = metadata

    def read_metadata_with(self, read: Callable[[], Tensor]) -> None:
        """How to get it out of the buffer."""
        self._read_metadata = read

    def check(self, buffer: Any) -> None:  # noqa: ANN401 - EPBuffer
        """Raises EpctlError for another buffer's handle, or when topk_idx has been written to since."""
        if buffer is not self._buffer:
            raise EpctlError(
                "the handle belongs to another buffer",
                "its rows lie there",
                "use it with the buffer that made it",
                exit_code=1,
            )
        if _version_of(self.topk_idx) != self._version:
            raise EpctlError(
                "topk_idx has been changed since the dispatch",
                "the handle refers to it, and combine needs it as it was",
                "give dispatch a copy, or change topk_idx only after the last use of the handle",
                exit_code=1,
            )


def _version_of(tensor: Tensor) -> int | None:
    """How often it has been written to; None in inference mode, where PyTorch does not count."""
    return None if tensor.is_inference() else int(tensor._version)
