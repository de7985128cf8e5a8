"""DeepEP 2.5 as a rival, where it is installed."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, TypeAlias

from epctl.core.errors import EpctlError
from epctl.core.op import World
from epctl.ops.ep.trial.contenders import Arrivals, Work
from epctl.ops.ep.trial.exchange import input_of
from epctl.ops.ep.trial.rivals import nccl_group

Tensor: TypeAlias = Any
"""torch.Tensor."""
WITHOUT_NETWORK = {"EP_DISABLE_GIN": "1"}
"""DeepEP asks for GIN unless it is told not to; without an adapter there is none."""


def _module(world: World) -> ModuleType:
    if not world.layout.adapters:
        for name, value in WITHOUT_NETWORK.items():
            os.environ.setdefault(name, value)
    try:
        import deep_ep
    except ImportError as error:
        raise EpctlError(
            "the rival deep-ep cannot be used",
            f"deep_ep cannot be imported: {error}",
            "install DeepEP 2.5, or leave deep-ep out of --against",
            exit_code=4,
        ) from None
    if not hasattr(deep_ep, "EPBuffer"):
        raise EpctlError(
            "the rival deep-ep cannot be used",
            "the installed deep_ep has no EPBuffer, which came with version 2.5",
            "install DeepEP 2.5",
            exit_code=4,
        )
    module: ModuleType = deep_ep
    return module


class DeepEp:
    """See Contender. Its own numbers of SMs with 0; no CPU sync, as with ours."""

    contract = "deep_ep.EPBuffer: outputs of their own, copied out of its staging buffer; no CPU sync"

    def __init__(self, world: World, work: Work) -> None:
        self._world, self._work = world, work
        module = _module(world)
        options = work.options
        self._buffer = module.EPBuffer(
            nccl_group(world),
            num_max_tokens_per_rank=options.capacity,
            hidden=options.hidden,
            num_topk=options.topk,
            explicitly_destroy=True,
        )
        self.num_sms = options.sms or int(self._buffer.get_theoretical_num_sms(options.experts, options.topk))

    def dispatch(self) -> Any:  # noqa: ANN401 - a tuple
        """See Contender."""
        sent, options = self._work.turn.sent, self._work.options
        more = {"do_expand": True, "expert_alignment": options.alignment} if options.expand else {}
        return self._buffer.dispatch(
            input_of(self._work.turn),
            topk_idx=sent.topk_idx,
            topk_weights=sent.weights,
            num_experts=options.experts,
            num_max_tokens_per_rank=options.capacity,
            num_sms=options.sms,
            do_cpu_sync=False,
            **more,
        )

    def replay(self, first: Any) -> Any:  # noqa: ANN401 - a tuple
        """See Contender."""
        more = {"do_expand": True} if self._work.options.expand else {}
        return self._buffer.dispatch(
            input_of(self._work.turn),
            topk_weights=self._work.turn.sent.weights,
            handle=first[3],
            num_sms=self._work.options.sms,
            do_cpu_sync=False,
            **more,
        )

    def place(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - a tuple
        """As many rows as its dispatch gave."""
        data = first[0][0] if isinstance(first[0], tuple) else first[0]
        whole = rows.new_zeros((data.shape[0], rows.shape[1]))
        whole[: rows.shape[0]] = rows[: data.shape[0]]
        return whole

    def combine(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - a tuple
        """See Contender."""
        return self._buffer.combine(rows, first[3], num_sms=self._work.options.sms)[0]

    def received(self, result: Any) -> Arrivals:  # noqa: ANN401 - a tuple
        """See Contender. Of capacity-sized outputs, what is valid."""
        x, _, _, handle, _ = result
        num_tokens = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        data, scales = x if isinstance(x, tuple) else (x, None)
        metadata = handle.recv_src_metadata[:num_tokens]
        if self._work.options.expand:
            return Arrivals(data, scales, metadata[:, 0], metadata[:, 2:])
        return Arrivals(data[:num_tokens], None if scales is None else scales[:num_tokens], metadata[:, 0])

    def failure(self) -> str:
        """It raises its own errors."""
        return ""

    def close(self) -> None:
        """Its buffer is made for each case anew: nobody else would give it back."""
        self._world.torch.cuda.synchronize(self._world.device)
        self._buffer.destroy()
