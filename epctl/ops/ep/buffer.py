"""EPBuffer: expert-parallel dispatch and combine, with the names and meanings of DeepEP 2.5's buffer of that name."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.comm.control import GroupControl
from epctl.comm.domain import Domain, torch_communicator
from epctl.core.errors import EpctlError
from epctl.native.ep_sizes import MAX_BLOCKS
from epctl.ops.ep import arguments, combining, host_counts
from epctl.ops.ep.arguments import refuse
from epctl.ops.ep.call import Result, address, checked_rows
from epctl.ops.ep.call import Rows as SentRows
from epctl.ops.ep.call import Wish as DispatchWish
from epctl.ops.ep.checks import (
    biases_of,
    check_combined,
    check_details,
    check_handle,
    check_replay,
    check_waits,
    max_tokens_of,
)
from epctl.ops.ep.combining import Combining
from epctl.ops.ep.dispatching import Dispatching
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.events import EventHandle, EventOverlap
from epctl.ops.ep.handle import EPHandle
from epctl.ops.ep.host_counts import HostCounts
from epctl.ops.ep.layout import Rows, layout_for, rows_for
from epctl.ops.ep.pulling import Pulling
from epctl.ops.ep.small import SmallCombining, SmallDispatching
from epctl.ops.ep.sms import theoretical_num_qps, theoretical_num_sms
from epctl.ops.ep.streams import Streams, record

Tensor: TypeAlias = Any
"""torch.Tensor."""
MAX_LOCAL_EXPERTS = 1024
_UNDESTROYED: dict[int, tuple[Engine, HostCounts]] = {}
"""Of buffers that nobody has destroyed: kernels and CUDA graphs may still use their memory when the Python object is gone."""


class EPBuffer:
    """Symmetric memory and kernels for the expert parallelism of one process group. Making and destroying it is collective.

    Dispatch writes each row once, straight into the receiver's output. With `zero_copy` that output is a view of the buffer's
    symmetric memory: it stays valid until the next dispatch but one on this buffer. With zero_copy=False outputs are copied into
    memory of their own, for callers that keep them. All calls on a buffer are made by all ranks in the same order; they may come
    from several streams, and are put in order.

    A captured call has its place for outputs fixed: each replay overwrites those of the replay before, and counts as no dispatch for
    the lifetimes above. Replays are put in order with other calls by whoever launches them. All blocks of a kernel run at once: calls
    that go on beside other communication on the same GPU (another buffer, NCCL) must leave it SMs by num_sms, or both may wait for ever.

    Args:
        group: torch.distributed process group; one GPU for each rank, all in one NVLink domain.
        num_bytes: symmetric memory to use; by default what get_buffer_size_hint says for the shape.
        num_max_tokens_per_rank: M, up to 16,384, equal on all ranks.
        hidden: H, a multiple of 128 up to 16,384.
        num_topk: K, up to 16.
        use_fp8_dispatch: dispatch takes float8_e4m3fn rows only, which need half the memory.
        deterministic: row order and sums are the same from run to run. They always are: counts come before rows.
        allow_hybrid_mode: taken for compatibility; one load/store domain has no scale-out.
        allow_multiple_reduction: a rank's expanded rows of a token are summed and rounded before they travel.
        prefer_overlap_with_compute: the default number of SMs leaves the others to the caller.
        sl_idx, num_allocated_qps: of the network; not used inside one load/store domain.
        num_cpu_timeout_secs, num_gpu_timeout_secs: how long the host and kernels wait for a peer.
        explicitly_destroy: the caller calls destroy(); otherwise the process's end does.
        zero_copy: see above.
    """

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch.distributed.ProcessGroup
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: float = 300,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        zero_copy: bool = True,
        domain: Domain | None = None,
    ) -> None:
        """`domain`: ranks that are together already; then `group` may be None. Raises EpctlError."""

        del sl_idx, num_allocated_qps, allow_hybrid_mode
        self.group = group
        self.deterministic = deterministic
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.zero_copy = zero_copy
        self.explicitly_destroy = explicitly_destroy
        self.num_calls = 0
        self._owned = domain is None
        self._domain = _domain_of(group, num_gpu_timeout_secs) if domain is None else domain
        self.rank, self.num_ranks = self._domain.rank, self._domain.num_ranks
        rows = _rows(
            self.num_ranks, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, allow_multiple_reduction
        )
        needed = layout_for(rows).num_bytes
        if num_bytes is not None and num_bytes < needed:
            raise refuse("num_bytes", num_bytes, f"at least {needed} for this shape (get_buffer_size_hint tells)")
        self._rows = rows
        self._engine: Engine | None = Engine(self._domain, rows)
        self.num_bytes = needed
        self._streams = Streams(self._engine)
        self._host = HostCounts(host_counts.HEAD + MAX_LOCAL_EXPERTS, num_cpu_timeout_secs, self._engine)
        _UNDESTROYED[id(self._engine)] = (self._engine, self._host)
        self._pending_dispatch: EventOverlap | None = None
        self._pending_combine: EventOverlap | None = None

    # ---- sizes and settings

    @staticmethod
    def get_buffer_size_hint(
        group: Any,  # noqa: ANN401 - torch.distributed.ProcessGroup, or the number of ranks
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
        use_fp8_dispatch: bool = False,
        allow_multiple_reduction: bool = True,
        **_: object,
    ) -> int:
        """Bytes of symmetric memory on each rank. `group` may be a number of ranks. Raises EpctlError."""
        num_ranks: int = group if isinstance(group, int) else group.size()
        rows = _rows(num_ranks, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, allow_multiple_reduction)
        return layout_for(rows).num_bytes

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, **_: object) -> int:
        """SMs that suffice for the link; see epctl.ops.ep.sms."""
        return theoretical_num_sms(self.num_ranks, num_experts, num_topk, self.engine.num_sms)

    @staticmethod
    def get_theoretical_num_qps(num_sms: int) -> int:
        """Queue pairs: none inside one load/store domain, whatever the number of SMs."""
        return theoretical_num_qps(num_sms)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(scale-out ranks, scale-up ranks) as the hardware has them."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(scale-out ranks, scale-up ranks) as the kernels use them."""
        return 1, self.num_ranks

    def get_comm_stream(self) -> Any:  # noqa: ANN401 - torch.cuda.Stream
        """The stream of calls with async_with_compute_stream=True."""
        return self._streams.comm

    @property
    def engine(self) -> Engine:
        """Raises EpctlError after destroy()."""
        if self._engine is None:
            raise EpctlError("the buffer has been destroyed", "destroy() was called", "make a new buffer", exit_code=1)
        return self._engine

    @staticmethod
    def capture() -> EventHandle:
        """The current stream's present point, for previous_event."""
        return EventHandle()

    def barrier(self, use_comm_stream: bool = False, with_cpu_sync: bool = False, **_: object) -> None:
        """All ranks meet on the GPU; with_cpu_sync: the host waits for it, and learns of waits that gave up. Raises EpctlError."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            raise EpctlError(
                "barrier() cannot be captured in a CUDA graph",
                "its number is counted on the host, and would be the same at each replay",
                "call it before or after the graph",
            )
        stream = self._streams.comm if use_comm_stream else torch.cuda.current_stream(self.engine.device)
        self.engine.follow(stream)
        self._domain.barrier(stream.cuda_stream)
        if with_cpu_sync:
            stream.synchronize()
            self._domain.check()

    def destroy(self) -> None:
        """Gives everything back. Collective; all work is waited for. A second call does nothing."""
        if self._engine is None:
            return
        import torch

        engine, self._engine = self._engine, None
        torch.cuda.synchronize(engine.device)
        _UNDESTROYED.pop(id(engine), None)
        if self._owned:
            self._domain.close(failed=self._domain.timeout() is not None)
        else:
            self._domain.control.all_gather("destroy the buffer", b"")
            self._domain.release(engine.memory)

    # ---- dispatch

    def dispatch(
        self,
        x: Any,  # noqa: ANN401 - tensor, or (data, scales)
        topk_idx: Tensor = None,
        topk_weights: Tensor = None,
        cumulative_local_expert_recv_stats: Tensor = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | EventOverlap | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
        *,
        waited_ns: Tensor = None,
    ) -> Any:  # noqa: ANN401 - a tuple, or the event alone
        """Sends each token to the ranks of its experts. Collective.

        Args:
            x: BF16 [T, H], or (float8_e4m3fn [T, H], scales [T, ceil(H/128)] float32 or [T, ceil(H/512)] int32 with four UE8M0
                exponents each). 0 <= T <= num_max_tokens_per_rank.
            topk_idx: int64 or int32 [T, K]. −1, and whatever else is no expert, is no selection. None with `handle`.
            topk_weights: float32 [T, K], or None on all ranks.
            cumulative_local_expert_recv_stats: int32 [e], real counts are added.
            handle: of an earlier dispatch: the same routing with new data, without counting. What is told beside it must agree with it.
            do_cpu_sync: True: the host learns the counts and outputs have exactly N rows. False: capacity R × M rows, no host wait,
                may be captured in a CUDA graph. None: True unless cached or capturing.
            do_expand: one row for each (token, local expert), grouped by expert and aligned to expert_alignment.
            defer_epilogue: the event alone is returned; its wait gives the outputs. x, topk_idx and topk_weights stay as they are until
                then: the second half takes from them what stays on this rank.
            waited_ns: int64 [R] or None: how long this rank waited for each: its counts and rows; few tokens: which of its come.

        Returns:
            (recv_x, recv_topk_idx, recv_topk_weights, handle, event). Raises EpctlError that names a bad argument.
        """
        import torch

        del num_qps
        engine = self.engine
        self._check_before(previous_event, allocate_on_comm_stream)
        check_waits(engine, waited_ns)
        if self._pending_dispatch is not None:
            raise EpctlError(
                "a deferred dispatch is under way",
                "its rows have been sent and not taken yet",
                "wait for its event first",
                exit_code=1,
            )
        rows = checked_rows(x, self._rows.hidden, self._rows.row_bytes, engine.device)
        cached = handle is not None
        if handle is None:
            handle = self._new_handle(rows, topk_idx, num_experts, num_max_tokens_per_rank, expert_alignment, do_expand)
        else:
            handle = self._replayed(handle, rows, topk_idx)
            check_replay(handle, num_experts, num_max_tokens_per_rank, expert_alignment, do_expand)
        check_details(engine, handle, topk_weights, cumulative_local_expert_recv_stats)
        capturing = torch.cuda.is_current_stream_capturing()
        syncs = not (cached or capturing) if do_cpu_sync is None else bool(do_cpu_sync)
        if syncs and capturing:
            raise refuse("do_cpu_sync", do_cpu_sync, "False while a CUDA graph is captured: the host cannot wait in it")
        handle.num_sms = self._num_sms(num_sms, handle)
        wish = DispatchWish(
            handle.num_sms,
            handle.do_expand,
            do_zero_padding,
            use_tma_aligned_col_major_sf,
            syncs,
            defer_epilogue,
            not self.zero_copy,
            address(waited_ns),
        )
        stream, inside = self._streams.begin(previous_event, async_with_compute_stream)
        # Whatever is allocated from here on belongs to the stream of the call: another one's memory may still be in use there.
        with inside:
            made = (SmallDispatching if handle.is_small else Dispatching)(engine, rows, handle, topk_weights, wish)
            self.num_calls += 1
            made.send(stream, cumulative_local_expert_recv_stats, self._host)
            given = (rows.x, rows.scales, topk_weights, cumulative_local_expert_recv_stats, waited_ns)
            if defer_epilogue:
                self._pending_dispatch = self._streams.deferred(
                    stream, (*given, *handle.tensors()), made.outputs, lambda now: self._dispatched(made, now)
                )
                return self._pending_dispatch
            result = made.receive(stream, self._host)
        results = (result.x, result.topk_idx, result.topk_weights, *handle.tensors())
        event = self._streams.end(stream, (*given, *handle.tensors()), results)
        return (*_dispatched(result), event)

    def _dispatched(self, made: Dispatching | SmallDispatching, stream: Any) -> Any:  # noqa: ANN401 - torch.cuda.Stream, a tuple
        self._pending_dispatch = None
        return _dispatched(made.receive(stream, self._host))

    def _new_handle(
        self,
        rows: SentRows,
        topk_idx: Tensor,
        num_experts: int | None,
        num_max_tokens: int | None,
        alignment: int | None,
        do_expand: bool,
    ) -> EPHandle:
        import torch

        num_tokens = int(rows.x.shape[0])
        if topk_idx is None:
            raise refuse("topk_idx", topk_idx, "a tensor [tokens, topk], since there is no handle to replay")
        arguments.tensor(
            "topk_idx", topk_idx, (num_tokens, None), (torch.int64, torch.int32), self.engine.device, align_bytes=4
        )
        arguments.topk(int(topk_idx.shape[1]))
        if topk_idx.shape[1] > self._rows.num_topk:
            raise refuse(
                "topk_idx", topk_idx, f"at most {self._rows.num_topk} selections, which the buffer was made for"
            )
        handle = EPHandle(self, self.num_calls, topk_idx, num_tokens)
        handle.num_experts = arguments.experts(num_experts, self.num_ranks)
        handle.num_max_tokens_per_rank = max_tokens_of(self.engine, num_max_tokens, num_tokens)
        handle.expert_alignment = arguments.between(
            "expert_alignment", 1 if alignment is None else alignment, 1, 1 << 16
        )
        handle.do_expand = do_expand
        few = handle.num_max_tokens_per_rank <= self.engine.small_tokens
        handle.is_small = few and (self.allow_multiple_reduction or not do_expand)
        return handle

    def _replayed(self, handle: EPHandle, rows: SentRows, topk_idx: Tensor) -> EPHandle:
        if topk_idx is not None:
            raise refuse("topk_idx", topk_idx, "None together with handle, which brings the routing")
        check_handle(handle)
        handle.check(self)
        if int(rows.x.shape[0]) != handle.num_tokens:
            raise refuse("x", rows.x, f"{handle.num_tokens} tokens, as in the dispatch that made the handle")
        handle.call_idx = self.num_calls
        return handle

    # ---- combine

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor = None,
        bias: Any = None,  # noqa: ANN401 - None, a tensor, or two
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | EventOverlap | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
        *,
        waited_ns: Tensor = None,
    ) -> Any:  # noqa: ANN401 - a tuple, or the event alone
        """Brings each token's partial rows home and adds them: in float32, in the order of top-k positions, rounded once. Collective.

        Args:
            x: BF16 [N, H], one row for each received token, weighted by the caller; or [rows, H] in the expanded layout. In any memory of
                this GPU: rows are pushed to the tokens' homes from where they are, and may be overwritten after the call; after the wait of
                a deferred one.
            topk_weights: as received, or None, on all ranks alike.
            bias: None, or one or two BF16 [T, H] that the sums start from.

        Returns:
            (combined_x BF16 [T, H], combined_topk_weights float32 [T, K] or None, event). Raises EpctlError.
        """

        del num_qps
        engine = self.engine
        self._check_before(previous_event, allocate_on_comm_stream)
        check_waits(engine, waited_ns)
        check_handle(handle)
        handle.check(self)
        if self._pending_combine is not None:
            raise EpctlError(
                "a deferred combine is under way",
                "its rows are announced and not pulled yet",
                "wait for its event first",
                exit_code=1,
            )
        check_combined(engine, x, handle, topk_weights)
        biases = biases_of(engine, bias, handle)
        chosen = self._num_sms(num_sms, handle)
        wish = combining.Wish(chosen, defer_epilogue, address(waited_ns))
        stream, inside = self._streams.begin(previous_event, async_with_compute_stream)
        way: type[SmallCombining | Combining | Pulling] = SmallCombining if handle.is_small else Combining
        if handle.do_expand and not self.allow_multiple_reduction:
            way = Pulling
        with inside:
            made = way(engine, x, handle, topk_weights, biases, wish)
            made.send(stream)
            kept = (x, topk_weights, *biases, waited_ns, *handle.tensors())
            record(
                handle.tensors(), stream
            )  # they may have been made in another stream, also where the call is not asynchronous
            if defer_epilogue:
                self._pending_combine = self._streams.deferred(stream, kept, (), lambda now: self._combined(made, now))
                return self._pending_combine
            result = made.receive(stream)
        return (*result, self._streams.end(stream, kept, result))

    def _combined(self, made: Combining | SmallCombining | Pulling, stream: Any) -> Any:  # noqa: ANN401 - torch.cuda.Stream, a tuple
        self._pending_combine = None
        return made.receive(stream)

    def _check_before(self, previous_event: EventHandle | EventOverlap | None, allocate_on_comm_stream: bool) -> None:
        if previous_event is not None and not allocate_on_comm_stream:
            raise refuse("previous_event", previous_event, "allocate_on_comm_stream=True together with it")
        self._domain.check()

    def _num_sms(self, num_sms: int, handle: EPHandle) -> int:
        most: int = min(self.engine.num_sms, MAX_BLOCKS)
        arguments.between("num_sms", num_sms, 0, most)
        if num_sms:
            return num_sms
        # A few microseconds of all SMs cost the caller less than many of some.
        if handle.is_small or not self.prefer_overlap_with_compute:
            return most
        return self.get_theoretical_num_sms(handle.num_experts, handle.num_topk)


def _dispatched(result: Result) -> tuple[Any, Any, Any, Any]:
    return result.x, result.topk_idx, result.topk_weights, result.handle


def _rows(num_ranks: int, max_tokens: int, hidden: int, num_topk: int, fp8: bool, multiple_reduction: bool) -> Rows:
    arguments.tokens(max_tokens)
    arguments.hidden(hidden)
    arguments.between("num_topk", num_topk, 1, 16)
    return rows_for(num_ranks, max_tokens, hidden, num_topk, fp8=fp8, every_row=not multiple_reduction)


def _domain_of(group: Any, timeout_s: float) -> Domain:  # noqa: ANN401 - torch.distributed.ProcessGroup
    import torch
    import torch.distributed as dist

    device_idx = torch.cuda.current_device()
    adopt = torch_communicator(group, torch.device("cuda", device_idx))
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return Domain(GroupControl(group), rank, size, device_idx, timeout_s=timeout_s, adopt=adopt)
