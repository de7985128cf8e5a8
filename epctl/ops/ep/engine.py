"""The memory and the kernels of one expert-parallel buffer on one rank."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.comm.domain import Domain
from epctl.core.errors import EpctlError
from epctl.native import ep_sizes, families
from epctl.native.ep_args import Combine, Dispatch, Expand, Finish, Offsets, Pull, SmallCombine, SmallDispatch
from epctl.native.ep_sizes import Ring
from epctl.native.launcher import Kernel
from epctl.native.peers import Limits
from epctl.ops.ep.layout import NUM_SLOTS, Layout, Rows, layout_for

Tensor: TypeAlias = Any
"""torch.Tensor."""
Stream: TypeAlias = Any
"""torch.cuda.Stream."""
_ALL_SHARED = ep_sizes.MAX_SHARED_BYTES


class Engine:
    """Making and closing it is collective."""

    def __init__(self, domain: Domain, rows: Rows) -> None:
        import torch

        if domain.lsa_size != domain.num_ranks:
            raise EpctlError(
                f"{domain.num_ranks} ranks lie in several load/store domains (this rank's has {domain.lsa_size})",
                "expert parallelism across nodes goes over GIN, which this version has no kernels for",
                "use ranks of one NVLink domain",
                exit_code=4,
            )
        self.domain = domain
        self.layout: Layout = layout_for(rows)
        self.memory = domain.symmetric(self.layout.num_bytes)
        self.peers = domain.peers(self.memory)
        self.device = domain.device
        # Kernels of all ranks of a GPU wait for each other: they must fit side by side.
        device_sms = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.num_sms = max(1, device_sms // domain.ranks_per_gpu)
        columns = max(domain.num_ranks, ep_sizes.MAX_EXPERTS)
        with torch.cuda.device(self.device):
            self._state = torch.zeros(ep_sizes.STATE_BYTES, dtype=torch.uint8, device=self.device)
            self._dispatch_words = torch.zeros(
                (2, domain.num_ranks, ep_sizes.MAX_BLOCKS), dtype=torch.int64, device=self.device
            )
            self._expand_words = torch.zeros((2, columns, ep_sizes.MAX_BLOCKS), dtype=torch.int64, device=self.device)
            self._expert_counts = torch.zeros(ep_sizes.MAX_EXPERTS, dtype=torch.int32, device=self.device)
            torch.cuda.synchronize(self.device)
        # All of them before any waits for a peer: loading a kernel may wait for those that run.
        self._dispatch = self._kernel("epctl_ep_dispatch", ep_sizes.BLOCK_THREADS, _ALL_SHARED)
        self._finish = self._kernel("epctl_ep_dispatch_finish", 32)
        self._expand = self._kernel("epctl_ep_expand", ep_sizes.BLOCK_THREADS)
        self._combine = self._kernel("epctl_ep_combine", ep_sizes.BLOCK_THREADS, _ALL_SHARED)
        self._pull = self._kernel("epctl_ep_pull", ep_sizes.BLOCK_THREADS)
        self._small_dispatch = self._kernel("epctl_ep_small_dispatch", ep_sizes.BLOCK_THREADS)
        self._small_combine = self._kernel("epctl_ep_small_combine", ep_sizes.BLOCK_THREADS)
        self.small_tokens = ep_sizes.SMALL_TOKENS if domain.has_nvlink else 0
        """Calls for up to so many tokens of each rank use the kernels for few tokens: lines of 128 bytes stay whole over NVLink, but not
        over PCIe."""
        self._last_stream: Stream | None = None
        self._last_captured: Stream | None = None
        self._rings: dict[tuple[int, int, int], Ring] = {}

    def _kernel(self, name: str, block_threads: int, shared_bytes: int = 0) -> Kernel:
        variant = families.EP.variants[0]
        return self.domain.launcher.kernel(families.EP, variant, name, block_threads, shared_bytes)

    def ring(self, row_bytes: int, num_tokens: int, num_blocks: int) -> Ring:
        """See ep_sizes.ring_for; kept, since calls repeat."""
        key = (row_bytes, num_tokens, num_blocks)
        if key not in self._rings:
            self._rings[key] = ep_sizes.ring_for(row_bytes, num_tokens, self.domain.num_ranks, num_blocks)
        return self._rings[key]

    # ---- addresses

    @property
    def state(self) -> int:
        """EpState."""
        return int(self._state.data_ptr())

    @property
    def dispatch_words(self) -> int:
        """Chunk words of dispatch."""
        return int(self._dispatch_words.data_ptr())

    @property
    def expand_words(self) -> int:
        """Chunk words of expand."""
        return int(self._expand_words.data_ptr())

    @property
    def expert_counts(self) -> int:
        """Zero between calls."""
        return int(self._expert_counts.data_ptr())

    def slot(self, call_idx: int) -> Offsets:
        """Where the outputs of that dispatch lie."""
        return self.layout.offsets(call_idx % NUM_SLOTS)

    def limits(self) -> Limits:
        """How kernels wait."""
        return self.domain.limits()

    def offset_of(self, value: Tensor) -> int | None:
        """Where a tensor lies in the buffer's symmetric memory; None for one that does not, as a whole."""
        offset = int(value.data_ptr()) - self.memory.address
        size = value.numel() * value.element_size()
        return offset if offset >= 0 and offset + size <= self.layout.num_bytes else None

    # ---- launches

    def follow(self, stream: Stream) -> None:
        """The stream goes on after everything that this buffer was last used for, in whatever stream that was."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            # What is captured runs later: it neither waits for what was launched, nor does that end with it.
            last, self._last_captured = self._last_captured, stream
            if last is None or last == stream or not _captures(last):
                return
        else:
            last, self._last_stream = self._last_stream, stream
            if last is None or last == stream:
                return
        stream.wait_event(last.record_event())

    def dispatch(self, arguments: Dispatch, num_blocks: int, stream: Stream) -> None:
        """Launches epctl_ep_dispatch."""
        self._dispatch.launch(num_blocks, stream.cuda_stream, arguments.pack())

    def finish(self, at: Offsets, waited_ns: int, stream: Stream) -> None:
        """Launches epctl_ep_dispatch_finish."""
        arguments = Finish(self.peers, at, self.state, waited_ns, self.limits())
        self._finish.launch(1, stream.cuda_stream, arguments.pack())

    def expand(self, arguments: Expand, num_blocks: int, stream: Stream) -> None:
        """Launches epctl_ep_expand."""
        self._expand.launch(num_blocks, stream.cuda_stream, arguments.pack())

    def combine(self, arguments: Combine, num_blocks: int, stream: Stream) -> None:
        """Launches epctl_ep_combine."""
        self._combine.launch(num_blocks, stream.cuda_stream, arguments.pack())

    def pull(self, arguments: Pull, num_blocks: int, stream: Stream) -> None:
        """Launches epctl_ep_pull."""
        self._pull.launch(num_blocks, stream.cuda_stream, arguments.pack())

    def small_dispatch(self, arguments: SmallDispatch, num_blocks: int, stream: Stream) -> None:
        """Launches epctl_ep_small_dispatch: one block keeps the books, the others move rows."""
        self._small_dispatch.launch(max(2, num_blocks), stream.cuda_stream, arguments.pack())

    def small_combine(self, arguments: SmallCombine, num_blocks: int, stream: Stream) -> None:
        """Launches epctl_ep_small_combine."""
        self._small_combine.launch(num_blocks, stream.cuda_stream, arguments.pack())


def _captures(stream: Stream) -> bool:
    import torch

    with torch.cuda.stream(stream):
        return bool(torch.cuda.is_current_stream_capturing())
