"""Dispatch and combine of an EPBuffer, as they are timed."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.core.op import World
from epctl.ops.ep.trial.contenders import Arrivals, Work
from epctl.ops.ep.trial.exchange import input_of
from epctl.ops.ep.trial.guard import Guard
from epctl.ops.ep.trial.pool import key_for, pool_of

Tensor: TypeAlias = Any
"""torch.Tensor."""


class Ours:
    """See Contender. Host and GPU wait for nothing but the peers' kernels: do_cpu_sync is off in what is timed."""

    contract = "epctl"

    def __init__(self, world: World, work: Work, *, copying: bool) -> None:
        self._work, self._copying = work, copying
        self._guard = Guard(world)
        options = work.options
        self._buffer = pool_of(world).get(key_for(options.capacity, options.hidden, options.topk))
        self._buffer.zero_copy = not copying
        self.num_sms = 0
        # With the host's knowledge of the counts, so that what is placed for combine has its real size.
        self._counted = self._dispatched(do_cpu_sync=True)
        self.num_sms = int(self._counted[3].num_sms)
        self._num_rows = int(work.turn.received.x.shape[0])

    def _dispatched(self, **more: Any) -> Any:  # noqa: ANN401 - a tuple
        sent, options = self._work.turn.sent, self._work.options
        return self._buffer.dispatch(
            input_of(self._work.turn),
            sent.topk_idx,
            sent.weights,
            num_experts=options.experts,
            num_max_tokens_per_rank=options.capacity,
            expert_alignment=options.alignment,
            do_expand=options.expand,
            num_sms=options.sms,
            **more,
        )

    def dispatch(self, **more: Any) -> Any:  # noqa: ANN401 - a tuple
        """See Contender. `more`: waited_ns."""
        return self._dispatched(do_cpu_sync=False, **more)

    def replay(self, first: Any, **more: Any) -> Any:  # noqa: ANN401 - a tuple
        """See Contender."""
        del first
        sent = self._work.turn.sent
        return self._buffer.dispatch(
            input_of(self._work.turn),
            None,
            sent.weights,
            handle=self._counted[3],
            num_sms=self._work.options.sms,
            **more,
        )

    def place(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - a tuple
        """Where they are: combine takes rows of any memory."""
        del first
        return rows[: self._num_rows]

    def combine(self, rows: Tensor, first: Any, **more: Any) -> Tensor:  # noqa: ANN401 - a tuple
        """See Contender."""
        del first
        return self._buffer.combine(rows, self._counted[3], num_sms=self._work.options.sms, **more)[0]

    def received(self, result: Any) -> Arrivals:  # noqa: ANN401 - a tuple
        """See Contender. Capacity-sized outputs are cut to what is valid."""
        x, topk_idx, weights, handle, _ = result
        num_tokens = int(self._work.turn.received.metadata.shape[0])
        data, scales = x if isinstance(x, tuple) else (x, None)
        metadata = handle.recv_src_metadata[:num_tokens]
        return Arrivals(
            data[: self._num_rows],
            None if scales is None else scales[: self._num_rows],
            metadata[:, 0],
            metadata[:, 2:] if self._work.options.expand else None,
            None if topk_idx is None else topk_idx[: self._num_rows],
            weights[: self._num_rows],
        )

    def failure(self) -> str:
        """The wait that gave up."""
        told = self._guard.timeout()
        return "" if told is None else str(told)

    def close(self) -> None:
        """The buffer stays in the pool."""
        self._buffer.zero_copy = True
        self._guard.close()
