"""An expert-parallel buffer that the reference plays, on ranks that are threads: what the self-test and the bench ask of it can be tried
without a GPU, and so can what they notice."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec import structs

from epctl.core.op import Layout
from epctl.ops.ep import reference
from epctl.ops.ep.events import EventOverlap
from epctl.ops.ep.reference import Received, Returned, Sent, Setting
from epctl.ops.ep.trial import exchange, guard, ours, repeated
from epctl.ops.ep.trial.pool import Key
from tests.support.worlds import Meeting, ThreadWorld, layout, torch_or_skip

T = TypeVar("T")
LIMIT_S = 100.0
EXTRA_ROWS = 5
"""Of a capacity-sized output, beyond what is valid."""
Tensor = Any
Fault = Callable[[Received], Received]
"""Damages what rank 0 receives."""


class _Event:
    """Of the host's clock."""

    def __init__(self, *_: object, **__: object) -> None:
        self._at = 0.0

    def record(self, *_: object) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _Event) -> float:
        return (other._at - self._at) * 1e3

    def current_stream_wait(self) -> None:
        """Everything has happened already."""


class _Stream:
    """Things happen at once."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


def _torch_with_cuda() -> ModuleType:
    """PyTorch whose `cuda` is of the host; the real module stays as it is."""
    import torch

    module = ModuleType("torch_played")
    module.__dict__.update({name: getattr(torch, name) for name in dir(torch) if not name.startswith("__")})
    current = _Stream()
    module.__dict__["cuda"] = SimpleNamespace(
        synchronize=lambda *_: None,
        Stream=_Stream,
        Event=_Event,
        current_stream=lambda *_: current,
        stream=lambda stream: stream,
        _sleep=lambda _: None,
    )
    return module


class Domain:
    """What the guard asks of a domain."""

    def __init__(self) -> None:
        self.timeout_s = 20.0
        self.gave_up: str | None = None

    def timeout(self) -> str | None:
        return self.gave_up


class PlayedWorld(ThreadWorld):
    """As if it were on a GPU."""

    tier = "gpu"

    def __init__(self, rank: int, where: Layout, meeting: Meeting) -> None:
        super().__init__(rank, where, meeting)
        self.domain = Domain()
        self.pool = Pool(self)
        self.fault: Fault | None = None
        self._played = _torch_with_cuda()

    @property
    def torch(self) -> ModuleType:
        return self._played


class Pool:
    """Buffers of one rank."""

    def __init__(self, world: PlayedWorld) -> None:
        self._world = world
        self._buffers: dict[Key, Buffer] = {}

    def get(self, key: Key) -> Buffer:
        return self._buffers.setdefault(key, Buffer(self._world, key))

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def heal(self, world: PlayedWorld) -> bool:
        hurt = any(world.meeting.all_gather("heal", b"1" if world.domain.gave_up else b""))
        world.domain.gave_up = None
        return hurt


class Handle:
    """What an EPHandle tells."""

    def __init__(self, topk_idx: Tensor, setting: Setting, num_sms: int) -> None:
        self.topk_idx, self.setting, self.num_sms = topk_idx, setting, num_sms
        self.num_recv_tokens: int | None = None
        self.num_expanded_tokens: int | None = None
        self.num_recv_tokens_per_expert_list: list[int] = []
        self.received: Any = None

    def take(self, received: Received, *, knows: bool) -> None:
        """The counts; `knows`: the host, too."""
        self.received = received
        self.recv_src_metadata = received.metadata.clone()
        self.psum_num_recv_tokens_per_scaleup_rank = received.tokens_per_source
        self.psum_num_recv_tokens_per_expert = received.expert_sums
        self.num_unaligned_recv_tokens_per_expert = received.expert_tokens
        if knows:
            aligned = -(-received.expert_tokens // self.setting.alignment) * self.setting.alignment
            self.num_recv_tokens, self.num_expanded_tokens = int(received.metadata.shape[0]), int(aligned.sum())
            self.num_recv_tokens_per_expert_list = aligned.tolist()


class Buffer:
    """What an EPBuffer does, by the reference: ranks give each other what they have, and each computes."""

    num_bytes = 1

    def __init__(self, world: PlayedWorld, key: Key) -> None:
        self._world, self._key = world, key
        self.zero_copy, self.deterministic = True, False
        bytes_tensor = lambda *_: world.torch.zeros(4, dtype=world.torch.uint8)  # noqa: E731
        layout = SimpleNamespace(slot_begin=0, slot_bytes=2, num_bytes=4)
        self.engine = SimpleNamespace(layout=layout, memory=SimpleNamespace(bytes_tensor=bytes_tensor))

    def _shared(self, mine: Any) -> list[Any]:  # noqa: ANN401 - what ranks give
        board = _BOARDS.setdefault(id(self._world.meeting), {})
        self._world.barrier()
        board[self._world.rank] = mine
        self._world.barrier()
        return [board[rank] for rank in range(self._world.size)]

    @staticmethod
    def capture() -> _Event:
        return _Event()

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor = None,
        topk_weights: Tensor = None,
        cumulative_local_expert_recv_stats: Tensor = None,
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        data, scales = x if isinstance(x, tuple) else (x, None)
        handle, cached = more.get("handle"), more.get("handle") is not None
        if handle is None:
            setting = Setting(
                self._world.size,
                more["num_experts"],
                more["num_max_tokens_per_rank"],
                more.get("expert_alignment", 1),
                more.get("do_expand", False),
            )
            handle = Handle(topk_idx, setting, more.get("num_sms") or 64)
        every = self._shared(
            Sent(*(None if one is None else one.clone() for one in (data, scales, handle.topk_idx, topk_weights)))
        )
        received = reference.dispatch(every, handle.setting, self._world.rank)
        if self._world.fault is not None and self._world.rank == 0:
            received = self._world.fault(received)
        handle.take(received, knows=bool(more.get("do_cpu_sync")) and not cached)
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += received.expert_tokens
        exact = handle.num_recv_tokens is not None
        index = None if received.topk_idx is None else received.topk_idx.to(handle.topk_idx.dtype)
        x_out, scales_out, index, weights = (
            one if exact else _larger(one) for one in (received.x, received.scales, index, received.weights)
        )
        if more.get("use_tma_aligned_col_major_sf") and scales_out is not None:
            scales_out = _columns(scales_out)
        result = (x_out if scales_out is None else (x_out, scales_out), index, weights, handle)
        return EventOverlap(deferred=lambda: result) if more.get("defer_epilogue") else (*result, EventOverlap())

    def combine(self, x: Tensor, handle: Handle, topk_weights: Tensor = None, bias: Any = None, **more: Any) -> Any:  # noqa: ANN401
        import torch

        received = handle.received
        num_rows = received.x.shape[0]
        weights = None if topk_weights is None else topk_weights[:num_rows].clone()
        returned = self._shared(Returned(x[:num_rows].clone(), weights, received))
        biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
        mine = Sent(torch.zeros((handle.topk_idx.shape[0], 1)), None, handle.topk_idx, None)
        result = reference.combine(
            returned, mine, handle.setting, self._world.rank, biases, multiple_reduction=not self._key.every_row
        )
        return EventOverlap(deferred=lambda: result) if more.get("defer_epilogue") else (*result, EventOverlap())


_BOARDS: dict[int, dict[int, Any]] = {}
"""Of the worlds of this process, by their meeting."""


def _larger(value: Tensor) -> Tensor:
    """With rows that hold nothing behind it, as a capacity-sized output has them."""
    import torch

    if value is None:
        return None
    narrow = value.element_size() == 1
    raw = value.view(torch.uint8) if narrow else value
    whole = torch.cat([raw, raw.new_full((EXTRA_ROWS, *raw.shape[1:]), 77)])
    return whole.view(value.dtype) if narrow else whole


def _columns(scales: Tensor) -> Tensor:
    num_rows, width = scales.shape
    whole = scales.new_zeros((width, -(-num_rows // 4) * 4))
    whole[:, :num_rows] = scales.t()
    return whole.t()[:num_rows]


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the op find played buffers in a PlayedWorld."""
    for module in (exchange, guard, ours, repeated):
        for name, found in (("pool_of", lambda world: world.pool), ("of_world", lambda world: world.domain)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, found)


def on_ranks(size: int, work: Callable[[PlayedWorld], T]) -> list[T]:
    """What `work` returns on each rank."""
    torch_or_skip()
    meeting, where = Meeting(size), layout(size, tier="gpu")

    def one(rank: int) -> T:
        meeting.enter(rank)
        return work(PlayedWorld(rank, where, meeting))

    with ThreadPoolExecutor(size) as pool:
        return [done.result(LIMIT_S) for done in [pool.submit(one, rank) for rank in range(size)]]


def damaged(field: str, row: int = 0) -> Fault:
    """One element of an output is another one."""

    def fault(received: Received) -> Received:
        value = getattr(received, field).clone()
        if value.element_size() == 1:
            value.view(_uint8())[row, 0] ^= 1
        elif value.dim() == 1:
            value[row] += 1
        else:
            value[row, 0] += 1
        return structs.replace(received, **{field: value})

    return fault


def _uint8() -> Any:  # noqa: ANN401 - torch.dtype
    import torch

    return torch.uint8


def swapped(received: Received) -> Received:
    """Two rows have changed places, the rest has not."""
    order = [1, 0, *range(2, received.x.shape[0])]
    return structs.replace(received, x=received.x[order])
