"""Dispatch, cached dispatch and combine of one rank through the API, as a case says, and what came of them."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from epctl.core.op import Case, Corruption, Outcome, World
from epctl.ops.ep.buffer import EPBuffer
from epctl.ops.ep.layout import NUM_SLOTS
from epctl.ops.ep.trial import compare
from epctl.ops.ep.trial.compare import Difference, equal, same
from epctl.ops.ep.trial.damage import damaged_turn
from epctl.ops.ep.trial.guard import Guard
from epctl.ops.ep.trial.inputs import Turn, turn_of
from epctl.ops.ep.trial.options import ASYNC, ASYNC_DEFERRED, COPYING, DEFERRED, IN_PLACE, Options, options_of
from epctl.ops.ep.trial.pool import key_for, pool_of

Tensor: TypeAlias = Any
"""torch.Tensor."""
NUM_TURNS = 2
"""The second one replays the handle of the first, with new data."""
FIRST_STATISTICS = 3
"""What the caller's statistics stand at before a run: counts are added."""


class Got(Struct, frozen=True):
    """What one turn gave."""

    x: Any
    scales: Any
    topk_idx: Any
    weights: Any
    handle: Any
    metadata: Any
    combined: Any
    combined_weights: Any


def input_of(turn: Turn) -> Any:  # noqa: ANN401 - tensor or pair
    """x as dispatch takes it."""
    return turn.sent.x if turn.sent.scales is None else (turn.sent.x, turn.sent.scales)


def once(buffer: EPBuffer, options: Options, turn: Turn, handle: Any, statistics: Tensor) -> Got:  # noqa: ANN401 - EPHandle or None
    """One dispatch (cached with a handle) and one combine, by the options' ways. Nothing waits for the GPU but dispatch's CPU sync."""
    way = _way(buffer, options)
    call = {
        **way,
        "do_zero_padding": options.zero_padding,
        "use_tma_aligned_col_major_sf": options.columns,
        "cumulative_local_expert_recv_stats": statistics,
    }
    if handle is None:
        call |= {
            "topk_idx": turn.sent.topk_idx,
            "num_experts": options.experts,
            "num_max_tokens_per_rank": options.capacity,
            "expert_alignment": options.alignment,
            "do_expand": options.expand,
            "do_cpu_sync": options.sync,
        }
    else:
        call["handle"] = handle
    x, topk_idx, weights, handle = _result(
        buffer.dispatch(input_of(turn), topk_weights=turn.sent.weights, **call), options
    )
    metadata = handle.recv_src_metadata
    data, scales = x if isinstance(x, tuple) else (x, None)
    rows, kept = _rows(options, turn, data)
    bias = turn.biases if len(turn.biases) > 1 else next(iter(turn.biases), None)
    combined = _result(buffer.combine(rows, handle, weights, bias, **_way(buffer, options)), options)
    return Got(kept, scales, topk_idx, weights, handle, metadata, combined[0], combined[1])


def _way(buffer: EPBuffer, options: Options) -> dict[str, Any]:
    asynchronous = options.way in (ASYNC, ASYNC_DEFERRED)
    found: dict[str, Any] = {
        "num_sms": options.sms,
        "async_with_compute_stream": asynchronous,
        "defer_epilogue": options.way in (DEFERRED, ASYNC_DEFERRED),
    }
    if options.previous:
        found |= {"previous_event": buffer.capture(), "allocate_on_comm_stream": True}
    return found


def _result(value: Any, options: Options) -> Any:  # noqa: ANN401 - event or tuple
    """The outputs, which the current stream may use from here on."""
    if options.way in (DEFERRED, ASYNC_DEFERRED):
        return value.current_stream_wait()
    value[-1].current_stream_wait()
    return value[:-1]


def _rows(options: Options, turn: Turn, data: Tensor) -> tuple[Tensor, Tensor]:
    """(what goes into combine, what dispatch had given): as many rows as dispatch gave, of which the first hold something."""
    import torch

    num_rows = int(turn.rows.shape[0])
    if options.place == IN_PLACE:
        kept = data.clone()
        data[:num_rows] = turn.rows
        return data, kept
    place = torch.empty((int(data.shape[0]), options.hidden), dtype=torch.bfloat16, device=data.device)
    place[:num_rows] = turn.rows
    return place, data


class Exchange:
    """See Running of epctl.core.op."""

    def __init__(self, case: Case, world: World) -> None:
        self._world, self._options = world, options_of(case)
        options = self._options
        self._key = key_for(options.capacity, options.hidden, options.topk, every_row=options.every_row)
        self._guard = Guard(world)
        self._pool = pool_of(world)
        self._buffer = self._pool.get(self._key)
        seed = case.whole("seed")
        self._turns = [
            turn_of(options, world.rank, world.size, world.generator, seed, turn, cancelling=True)
            for turn in range(NUM_TURNS)
        ]
        self._statistics = world.torch.zeros(
            options.experts // world.size, dtype=world.torch.int32, device=world.device
        )
        self._got: list[Got] = []
        self._damage: Corruption | None = None
        self._damaged: set[str] = set()
        world.torch.cuda.synchronize(world.device)

    def run(self) -> None:
        """All turns, one after another, without a pause; in the other order than the run before, so that what that one left behind is
        wrong everywhere."""
        self._turns = self._turns[::-1]
        self._got = []
        if self._damage == "signal":
            self._guard.lose_signal(self._turns_go)
            return
        with self._pool.watched():
            self._turns_go()

    def _turns_go(self) -> None:
        buffer, options = self._buffer, self._options
        buffer.zero_copy, buffer.deterministic = options.place != COPYING, options.deterministic
        self._statistics.fill_(FIRST_STATISTICS)
        handle = None
        for turn in self._turns:
            if self._damage == "byte":
                turn, names = damaged_turn(turn, options, self._world.rank, self._world.size)
                self._damaged |= names
            got = once(buffer, options, turn, handle, self._statistics)
            handle = got.handle
            self._got.append(got)

    def check(self) -> Outcome:
        """Both turns against the reference."""
        damage, self._damage = self._damage, None
        damaged, self._damaged = self._damaged, set()
        if damage == "signal":
            outcome = self._guard.lost()
            self._pool.heal(self._world)
            self._buffer = self._pool.get(self._key)
            return outcome
        told = self._guard.timeout()
        if told is not None:
            return Outcome(ok=False, message=str(told))
        found: list[Difference] = []
        for number, (turn, got) in enumerate(zip(self._turns, self._got, strict=True)):
            found += differences(self._options, turn, got, "cached" if number else "")
        wanted = FIRST_STATISTICS + NUM_TURNS * self._turns[0].received.expert_tokens
        found += same("statistics", self._statistics, wanted.int())
        self._poison()
        return compare.outcome_of_damage(found, damaged) if damage == "byte" else compare.outcome(found)

    def _poison(self) -> None:
        for got in self._got:
            compare.poison(
                got.combined, got.combined_weights, got.metadata, *(got.x, got.scales, got.topk_idx, got.weights)
            )
        self._got = []
        engine = self._buffer.engine
        num_bytes = NUM_SLOTS * engine.layout.slot_bytes
        engine.memory.bytes_tensor(engine.layout.slot_begin, num_bytes).fill_(compare.STALE)
        self._world.torch.cuda.synchronize(self._world.device)

    def corrupt(self, kind: Corruption) -> None:
        """See Running."""
        self._damage = kind

    def measured_us(self) -> float | None:
        """See Running."""
        return None

    def close(self) -> None:
        """The buffer stays in the pool."""
        self._got = []
        self._guard.close()


def differences(options: Options, turn: Turn, got: Got, label: str) -> list[Difference]:
    """What one turn gave, against the reference."""
    import torch

    wanted, handle = turn.received, got.handle
    num_rows, num_tokens = wanted.x.shape[0], wanted.metadata.shape[0]
    topk_idx = None if wanted.topk_idx is None else wanted.topk_idx.to(turn.sent.topk_idx.dtype)

    def rows(what: str, found: Tensor, expected: Tensor) -> list[Difference]:
        if found is not None and expected is not None and options.expand and not options.zero_padding:
            found, expected = (_valid(one, wanted.valid) for one in (found[:num_rows], expected))
            return same(what, found, expected, label)
        return same(what, None if found is None else found[:num_rows], expected, label)

    found = [
        *rows("x", got.x, wanted.x),
        *rows("scales", got.scales, wanted.scales),
        *rows("weights", got.weights, wanted.weights),
        *same("topk_idx", None if got.topk_idx is None else got.topk_idx[:num_rows], topk_idx, label),
        *same("metadata", _known(got.metadata[:num_tokens], options), _known(wanted.metadata, options), label),
        *same("sums by rank", handle.psum_num_recv_tokens_per_scaleup_rank, wanted.tokens_per_source, label),
        *same("sums by expert", handle.psum_num_recv_tokens_per_expert, wanted.expert_sums, label),
        *same("combined", got.combined, turn.combined, label),
        *same("combined weights", got.combined_weights, turn.combined_weights, label),
    ]
    if options.expand:
        found += same("tokens by expert", handle.num_unaligned_recv_tokens_per_expert, wanted.expert_tokens, label)
    if options.columns and got.scales is not None and got.scales.shape[0]:
        stride = -(-int(got.scales.shape[0]) // 4) * 4
        found += equal("strides of scales", tuple(got.scales.stride()), (1, stride), label)
    if options.sync:
        aligned = -(-wanted.expert_tokens // options.alignment) * options.alignment
        found += equal("number of rows", int(got.x.shape[0]), num_rows, label)
        found += equal("num_recv_tokens", handle.num_recv_tokens, num_tokens, label)
        found += equal("num_expanded_tokens", handle.num_expanded_tokens, int(aligned.sum()), label)
        found += equal(
            "counts by expert", list(handle.num_recv_tokens_per_expert_list), aligned.to(torch.long).tolist(), label
        )
    return found


def _valid(value: Tensor, valid: Tensor) -> Tensor:
    """Rows that hold a token, as bytes: not every dtype can be indexed on every device."""
    return compare.raw(value)[valid] if value.numel() else value


def _known(metadata: Tensor, options: Options) -> Tensor:
    """Column 0, and the rows of the expanded output; column 1 is not specified."""
    import torch

    return torch.cat([metadata[:, :1], metadata[:, 2:]], 1) if options.expand else metadata[:, :1].contiguous()
