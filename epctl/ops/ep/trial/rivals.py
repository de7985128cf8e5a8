"""What a user without an expert-parallel library would do: permute, exchange counts, all-to-all, index_add; over NCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeAlias

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.op import World
from epctl.ops.ep.trial.contenders import Arrivals, Work

Tensor: TypeAlias = Any
"""torch.Tensor."""
WAIT_S = 120.0
"""For a collective, its first one included, which connects the ranks."""
_groups: dict[int, Any] = {}
"""By the identity of the world's own group: a process has one world, and the group ends with it."""


def nccl_group(world: World) -> Any:  # noqa: ANN401 - ProcessGroup
    """A group of all ranks over NCCL, made once. Collective. Raises EpctlError for one rank alone."""
    if world.group is None:
        raise EpctlError("there is one rank", "a rival needs somebody to send to", "start more ranks", exit_code=4)
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise EpctlError(
            "this PyTorch has no NCCL", "rivals exchange rows over it", "install PyTorch for CUDA", exit_code=4
        )
    key = id(world.group)
    if key not in _groups:
        _groups[key] = dist.new_group(backend="nccl", timeout=timedelta(seconds=WAIT_S))
    return _groups[key]


class Routed(Struct, frozen=True):
    """Where tokens go and come from; known on the host, since all_to_all_single takes sizes from there."""

    tokens: Any
    """int64 [sum of sent]: tokens of this rank by destination."""
    sent: list[int]
    received: list[int]


class Gone(Struct, frozen=True):
    """What a dispatch gave: rows by source, and their details."""

    routed: Routed
    x: Any
    details: Any
    """int32 [N, 2 K + 1 (+ scales)]: indices, weights, token, scales."""


class Nccl:
    """See Contender. As few collectives as there can be: counts, rows, and one for all that goes with them."""

    num_sms = 0
    contract = "NCCL all_to_all_single: outputs of their own; the host waits for the counts"

    def __init__(self, world: World, work: Work) -> None:
        self._world, self._work = world, work
        self._group = nccl_group(world)
        options = work.options
        self._per_rank = options.experts // world.size
        sent = work.turn.sent
        self._x = sent.x.view(world.torch.uint8) if sent.scales is not None else sent.x

    # ---- routing

    def _goes(self) -> Tensor:
        """bool [R, T]."""
        torch, topk_idx = self._world.torch, self._work.turn.sent.topk_idx
        owner = topk_idx.div(self._per_rank, rounding_mode="floor").masked_fill(topk_idx < 0, -1)
        ranks = torch.arange(self._world.size, device=owner.device)
        return (owner[None] == ranks[:, None, None]).any(2)

    def _route(self) -> Routed:
        import torch.distributed as dist

        torch = self._world.torch
        goes = self._goes()
        counts = goes.sum(1)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self._group)
        sent, received = torch.stack([counts, theirs]).tolist()  # the host waits here, once
        flat = torch.nonzero_static(goes.flatten(), size=sum(sent)).flatten()
        return Routed(flat % goes.shape[1], sent, received)

    def _details(self) -> Tensor:
        """int32 [T, …]: everything that goes with a row, made of one piece so that it takes one collective."""
        torch, sent = self._world.torch, self._work.turn.sent
        token = torch.arange(sent.topk_idx.shape[0], dtype=torch.int32, device=self._world.device)[:, None]
        parts = [sent.topk_idx.int(), sent.weights.view(torch.int32), token]
        if sent.scales is not None:
            parts.append(sent.scales.view(torch.int32))
        return torch.cat(parts, 1)

    def _exchange(self, value: Tensor, sizes: list[int], into: list[int]) -> Tensor:
        import torch.distributed as dist

        out = value.new_empty((sum(into), value.shape[1]))
        dist.all_to_all_single(out, value, into, sizes, group=self._group)
        return out

    # ---- calls

    def dispatch(self) -> Gone:
        """See Contender."""
        return self._send(self._route())

    def replay(self, first: Any) -> Gone:  # noqa: ANN401 - Gone
        """Counts and permutation are known; nothing waits."""
        return self._send(first.routed)

    def _send(self, routed: Routed) -> Gone:
        rows = self._x.index_select(0, routed.tokens)
        details = self._details().index_select(0, routed.tokens)
        x = self._exchange(rows, routed.sent, routed.received)
        return Gone(routed, x, self._exchange(details, routed.sent, routed.received))

    def place(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - Gone
        """They are taken from where they are."""
        del first
        return rows

    def combine(self, rows: Tensor, first: Any) -> Tensor:  # noqa: ANN401 - Gone
        """See Contender. Sums in float32, as ours."""
        torch, routed = self._world.torch, first.routed
        back = self._exchange(rows, routed.received, routed.sent)
        num_tokens, hidden = int(self._work.turn.sent.x.shape[0]), int(rows.shape[1])
        sums = torch.zeros((num_tokens, hidden), dtype=torch.float32, device=self._world.device)
        return sums.index_add_(0, routed.tokens, back.float()).bfloat16()

    # ---- what came of it

    def received(self, result: Any) -> Arrivals:  # noqa: ANN401 - Gone
        """See Contender."""
        torch, options = self._world.torch, self._work.options
        counts = torch.tensor(result.routed.received, device=self._world.device)
        ranks = torch.arange(self._world.size, device=self._world.device).repeat_interleave(counts)
        details = result.details
        sources = ranks * options.capacity + details[:, 2 * options.topk].long()
        scales = None
        if self._work.turn.sent.scales is not None:
            scales = details[:, 2 * options.topk + 1 :].contiguous().view(torch.float32)
        return Arrivals(result.x.view(self._work.turn.sent.x.dtype), scales, sources)

    def failure(self) -> str:
        """NCCL raises its own errors."""
        return ""

    def close(self) -> None:
        """The group stays for the next case."""


class Torch(Nccl):
    """See Contender. What is written first: one list entry for each rank, picked by masks, and all_to_all of lists."""

    contract = "torch all_to_all of lists: outputs of their own; the host waits for the counts"

    def _route(self) -> Routed:
        import torch.distributed as dist

        torch = self._world.torch
        chosen = [one.nonzero().flatten() for one in self._goes()]
        sent = [int(one.shape[0]) for one in chosen]
        counts = list(torch.tensor(sent, device=self._world.device).split(1))
        theirs = [torch.empty_like(one) for one in counts]
        dist.all_to_all(theirs, counts, group=self._group)
        return Routed(torch.cat(chosen), sent, [int(one) for one in theirs])

    def _exchange(self, value: Tensor, sizes: list[int], into: list[int]) -> Tensor:
        import torch.distributed as dist

        torch = self._world.torch
        out = [value.new_empty((size, value.shape[1])) for size in into]
        dist.all_to_all(out, [one.contiguous() for one in value.split(sizes)], group=self._group)
        return torch.cat(out)
