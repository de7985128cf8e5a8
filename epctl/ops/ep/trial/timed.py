"""One stage that is timed: by epctl's kernels or another way, always with the same routing and data, and compared before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from epctl.core.op import Case, Corruption, Outcome, Running, Told, World
from epctl.ops.ep.reference import goes_to
from epctl.ops.ep.trial import cases, compare, verify
from epctl.ops.ep.trial.contenders import Contender, Work
from epctl.ops.ep.trial.figures import bytes_moved, row_bytes
from epctl.ops.ep.trial.inputs import seed_of, setting_of, turn_of
from epctl.ops.ep.trial.options import Options

Tensor: TypeAlias = Any
"""torch.Tensor."""
CONTRACTS = {
    cases.ZERO_COPY: "what dispatch gives are views of the buffer, valid until the next dispatch but one; combine takes rows of any memory",
    cases.COPYING: "what dispatch gives is copied into memory of the caller's",
    cases.GRAPH: "the zero-copy call, replayed out of a CUDA graph",
}


def options_for(case: Case) -> Options:
    """Shape and data of the case, the same for all who do its work."""
    expand = bool(case.params["expand"])
    return Options(
        tokens=(case.whole("tokens"),),
        hidden=case.whole("hidden"),
        topk=case.whole("topk"),
        experts=case.whole("experts"),
        dtype=case.word("dtype"),
        expand=expand,
        alignment=cases.EXPANDED_ALIGNMENT if expand else 1,
        gate=case.word("gate"),
        sync=False,
        sms=int(case.params.get("sms", 0)),
    )


def work_for(case: Case, world: World) -> Work:
    """Inputs of this rank, and what must come of them. Routing and data are drawn for each work anew."""
    options = options_for(case)
    seed = seed_of(case.word("work"), options.gate, options.hidden, options.topk, options.experts)
    turn = turn_of(options, world.rank, world.size, world.generator, seed, 0)
    return Work(options, setting_of(options, world.size), turn)


def make(case: Case, world: World) -> Running:
    """The case on this rank. Raises EpctlError, also for a rival that is not installed."""
    if case.params["overlap"]:
        from epctl.ops.ep.trial.overlap import Overlap

        return Overlap(case, world)
    return Timed(case, world)


def contender_for(case: Case, world: World, work: Work) -> Contender:
    """Who does the work. Raises EpctlError."""
    by = case.word("by")
    if world.tier == "cpu":
        from epctl.ops.ep.trial import plain

        return plain.Loops(world, work) if by == cases.EPCTL else plain.Torch(world, work)
    if by == cases.EPCTL:
        from epctl.ops.ep.trial.ours import Ours

        return Ours(world, work, copying=case.word("place") == cases.COPYING)
    if by == cases.DEEP_EP:
        from epctl.ops.ep.trial.peer import DeepEp

        return DeepEp(world, work)
    from epctl.ops.ep.trial import rivals

    return rivals.Nccl(world, work) if by == cases.NCCL else rivals.Torch(world, work)


class Timed:
    """See Running and Tells of epctl.core.op."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self._world = case, world
        self._stage = case.word("stage")
        self._work = work_for(case, world)
        self._contender = contender_for(case, world, self._work)
        self._result: Any = None
        self._call = self._prepared()
        if case.word("place") == cases.GRAPH:
            self._call = captured(world, self._call)

    def _prepared(self) -> Callable[[], Any]:
        """The call that is timed; what must come before it is done."""
        one = self._contender
        if self._stage == cases.DISPATCH:
            return one.dispatch
        self._first = one.dispatch()
        if self._stage == cases.CACHED:
            return lambda: one.replay(self._first)
        self._rows = one.place(verify.in_order_of(one.received(self._first), self._work), self._first)
        return lambda: one.combine(self._rows, self._first)

    def run(self) -> None:
        """One call."""
        self._result = self._call()

    def check(self) -> Outcome:
        """Against the reference; rows of others in whatever order they came, and their sums to one rounding."""
        timeout = self._contender.failure()
        if timeout:
            return Outcome(ok=False, message=timeout)
        if self._result is None:
            return Outcome(ok=False, message="the case has not run")
        exact = self._case.word("by") == cases.EPCTL
        if self._stage == cases.COMBINE:
            found = verify.home(self._result, self._work, exact=exact)
        else:
            found = verify.arrived(self._contender.received(self._result), self._work, exact=exact)
        return compare.outcome(found)

    def told(self) -> Told:
        """Bytes by the routing as it was, SMs, and waits where they were asked for."""
        options, world = self._work.options, self._world
        received = self._work.turn.received
        num_received = int(received.metadata.shape[0])
        sources = received.metadata[:, 0].div(options.capacity, rounding_mode="floor")
        from_others = int((sources != world.rank).sum())
        topk_idx, setting = self._work.turn.sent.topk_idx, self._work.setting
        to_others = sum(
            int(goes_to(topk_idx, setting, rank).any(1).sum()) for rank in range(world.size) if rank != world.rank
        )
        one_row = row_bytes(self._stage, options.dtype, options.hidden)
        ours = self._case.word("by") == cases.EPCTL and world.tier == "gpu"
        return Told(
            traffic=bytes_moved(self._stage, to_others, from_others, one_row),
            logical_bytes=num_received * one_row,
            num_sms=self._contender.num_sms,
            waited_us=self._waited() if self._case.params["waits"] else (),
            note=CONTRACTS[self._case.word("place")] if ours else self._contender.contract,
        )

    def _waited(self) -> tuple[float, ...]:
        """Only epctl's kernels tell it, and only their cases are asked."""
        from epctl.ops.ep.trial.waits import measured

        one: Any = self._contender
        if self._stage == cases.DISPATCH:
            return measured(self._world, one.dispatch)
        if self._stage == cases.CACHED:
            return measured(self._world, lambda **more: one.replay(self._first, **more))
        return measured(self._world, lambda **more: one.combine(self._rows, self._first, **more))

    def corrupt(self, kind: Corruption) -> None:
        """Timed cases are not damaged."""
        raise ValueError(kind)

    def measured_us(self) -> float | None:
        """The time around the call is meant."""
        return None

    def close(self) -> None:
        """Gives everything back."""
        self._result = self._first = self._rows = None
        self._call = lambda: None
        self._contender.close()


def captured(world: World, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a graph that is replayed; its result is always the same memory."""
    torch = world.torch
    side, current = torch.cuda.Stream(world.device), torch.cuda.current_stream(world.device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        call()
    current.wait_stream(side)
    torch.cuda.synchronize(world.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = call()

    def replay() -> Any:  # noqa: ANN401 - as the call's
        graph.replay()
        return result

    return replay
