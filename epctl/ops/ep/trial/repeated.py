"""Many calls in a row that are checked: back to back without barriers, on two buffers at once, and out of a CUDA graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from msgspec import structs

from epctl.core.op import Case, Corruption, Outcome, World
from epctl.ops.ep.buffer import EPBuffer
from epctl.ops.ep.reference import goes_to
from epctl.ops.ep.trial import compare
from epctl.ops.ep.trial.compare import Difference, same
from epctl.ops.ep.trial.exchange import Got, differences, once
from epctl.ops.ep.trial.guard import Guard
from epctl.ops.ep.trial.inputs import Turn, setting_of, turn_of
from epctl.ops.ep.trial.options import PAIR, options_of
from epctl.ops.ep.trial.pool import key_for, pool_of

Tensor: TypeAlias = Any
"""torch.Tensor."""
NUM_SETS = 4
"""Different inputs, with routing of their own, that take turns."""
GRAPH_SETS = 16


class _Repeated(ABC):
    """What the kinds share."""

    def __init__(self, case: Case, world: World, num_buffers: int, num_sets: int) -> None:
        self._world, self._options = world, options_of(case)
        options = self._options
        self._guard = Guard(world)
        self._pool = pool = pool_of(world)
        keys = [
            key_for(options.capacity, options.hidden, options.topk, every_row=options.every_row, number=number)
            for number in range(num_buffers)
        ]
        self._buffers: list[EPBuffer] = [pool.get(key) for key in keys]
        seed = case.whole("seed")
        self._sets: list[Turn] = [
            turn_of(options, world.rank, world.size, world.generator, seed * 1009 + number, 0)
            for number in range(num_sets)
        ]
        world.torch.cuda.synchronize(world.device)

    def run(self) -> None:
        """All calls."""
        with self._pool.watched():
            self._go()

    @abstractmethod
    def _go(self) -> None: ...

    def corrupt(self, kind: Corruption) -> None:
        raise ValueError(kind)

    def measured_us(self) -> float | None:
        return None

    def close(self) -> None:
        self._guard.close()

    def _timeout(self) -> Outcome | None:
        told = self._guard.timeout()
        return None if told is None else Outcome(ok=False, message=str(told))


class Burst(_Repeated):
    """Dispatches and combines without a barrier or a host wait between them, each with other data and other routing than the one
    before; every other round replays the handles of the round before. With two buffers, each has a stream, and their calls overlap."""

    def __init__(self, case: Case, world: World) -> None:
        two = case.word("kind") == PAIR
        super().__init__(case, world, 2 if two else 1, NUM_SETS)
        cuda = world.torch.cuda
        self._streams = (
            [cuda.Stream(world.device) for _ in self._buffers] if two else [cuda.current_stream(world.device)]
        )
        self._got: list[tuple[int, Got]] = []

    def _go(self) -> None:
        cuda = self._world.torch.cuda
        self._got = []
        current = cuda.current_stream(self._world.device)
        handles: dict[tuple[int, int], Any] = {}
        for stream in self._streams:
            if stream != current:
                stream.wait_stream(current)
        for number in range(self._options.repeats):
            # Other inputs on the other buffer, so that rows which end up in the wrong one are seen.
            for which, (buffer, stream) in enumerate(zip(self._buffers, self._streams, strict=True)):
                chosen = (number + which) % NUM_SETS
                cached = number // NUM_SETS % 2 == 1
                with cuda.stream(stream):
                    self._got.append((chosen, self._call(buffer, which, chosen, handles, cached=cached)))
        for stream in self._streams:
            if stream != current:
                current.wait_stream(stream)

    def _call(
        self, buffer: EPBuffer, which: int, chosen: int, handles: dict[tuple[int, int], Any], *, cached: bool
    ) -> Got:
        buffer.zero_copy = True
        turn, key = self._sets[chosen], (which, chosen)
        statistics = self._world.torch.zeros_like(turn.received.expert_tokens)
        got = once(buffer, self._options, turn, handles.get(key) if cached else None, statistics)
        handles[key] = got.handle
        # Views end with the dispatch after the next one.
        copies = {name: getattr(got, name) for name in ("x", "scales", "topk_idx", "weights")}
        return structs.replace(got, **{name: None if one is None else one.clone() for name, one in copies.items()})

    def check(self) -> Outcome:
        found: list[Difference] = []
        for number, (chosen, got) in enumerate(self._got):
            found += differences(self._options, self._sets[chosen], got, f"call {number}")
        self._got = []
        return self._timeout() or compare.outcome(found)


class Graph(_Repeated):
    """One decode step, dispatch and combine of what was received, captured once and replayed with new tokens and new routing each
    time. What comes home of a token that went to c ranks is c times the token, which float32 holds exactly: every step is checked on the
    GPU, without the reference; what was received in the last step is compared with the reference."""

    def __init__(self, case: Case, world: World) -> None:
        super().__init__(case, world, 1, GRAPH_SETS)
        torch, options = world.torch, self._options
        setting = setting_of(options, world.size)
        self._wanted = [self._home(one, setting) for one in self._sets]
        first = self._sets[0].sent
        self._x, self._topk_idx, self._weights = first.x.clone(), first.topk_idx.clone(), first.weights.clone()
        self._bad = torch.zeros(options.repeats, dtype=torch.int64, device=world.device)
        self._graph: Any = None
        self._out: tuple[Any, ...] = ()

    def _home(self, one: Turn, setting: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - Setting
        torch = self._world.torch
        reached = [goes_to(one.sent.topk_idx, setting, rank).any(1) for rank in range(self._world.size)]
        copies = torch.stack(reached).sum(0).float()[:, None]
        weights = torch.where(one.sent.topk_idx >= 0, one.sent.weights, torch.zeros_like(one.sent.weights))
        return (one.sent.x.float() * copies).bfloat16(), weights

    def _step(self) -> tuple[Any, ...]:
        buffer, options = self._buffers[0], self._options
        buffer.zero_copy = True
        x, topk_idx, weights, handle, _ = buffer.dispatch(
            self._x,
            self._topk_idx,
            self._weights,
            num_experts=options.experts,
            num_max_tokens_per_rank=options.capacity,
            num_sms=options.sms,
            do_cpu_sync=False,
        )
        metadata = handle.recv_src_metadata
        combined, combined_weights, _ = buffer.combine(x, handle, weights, num_sms=options.sms)
        return combined, combined_weights, x, topk_idx, weights, metadata, handle

    def _capture(self) -> None:
        torch = self._world.torch
        side = torch.cuda.Stream(self._world.device)
        side.wait_stream(torch.cuda.current_stream(self._world.device))
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream(self._world.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._out = self._step()

    def _go(self) -> None:
        if self._graph is None:
            self._capture()
        self._bad.fill_(-1)
        for number in range(self._options.repeats):
            one, (wanted, wanted_weights) = self._sets[number % GRAPH_SETS], self._wanted[number % GRAPH_SETS]
            self._x.copy_(one.sent.x)
            self._topk_idx.copy_(one.sent.topk_idx)
            self._weights.copy_(one.sent.weights)
            self._graph.replay()
            wrong = (self._out[0] != wanted).sum() + (self._out[1] != wanted_weights).sum()
            self._bad[number] = wrong

    def check(self) -> Outcome:
        told = self._timeout()
        if told is not None:
            return told
        wrong = self._bad.nonzero().flatten()
        if wrong.numel():
            step = int(wrong[0])
            where = f"step {step}: {int(self._bad[step])} values are wrong"
            return Outcome(False, f"{wrong.numel()} of {self._options.repeats} replayed steps are wrong", where)
        last = self._sets[(self._options.repeats - 1) % GRAPH_SETS].received
        num_rows = last.x.shape[0]
        _, _, x, topk_idx, weights, metadata, handle = self._out
        found = [
            *same("x", x[:num_rows], last.x, "last step"),
            *same("topk_idx", topk_idx[:num_rows], last.topk_idx.to(topk_idx.dtype), "last step"),
            *same("weights", weights[:num_rows], last.weights, "last step"),
            *same("metadata", metadata[:num_rows, :1].contiguous(), last.metadata[:, :1].contiguous(), "last step"),
            *same("sums by rank", handle.psum_num_recv_tokens_per_scaleup_rank, last.tokens_per_source, "last step"),
        ]
        return compare.outcome(found)

    def close(self) -> None:
        self._graph, self._out = None, ()
        super().close()
