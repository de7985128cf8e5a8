"""Arguments of the calls against the buffer that they are made on."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.ops.ep import arguments
from epctl.ops.ep.arguments import refuse
from epctl.ops.ep.engine import Engine
from epctl.ops.ep.handle import EPHandle

Tensor: TypeAlias = Any
"""torch.Tensor."""


def max_tokens_of(engine: Engine, num_max_tokens: int | None, num_tokens: int) -> int:
    """num_max_tokens_per_rank of a call. Raises EpctlError."""
    most = engine.layout.rows.max_tokens
    chosen = most if num_max_tokens is None else arguments.between("num_max_tokens_per_rank", num_max_tokens, 1, most)
    if num_tokens > chosen:
        raise refuse("x", num_tokens, f"at most num_max_tokens_per_rank = {chosen} tokens")
    return chosen


def check_details(engine: Engine, handle: EPHandle, weights: Tensor, statistics: Tensor) -> None:
    """Of a dispatch: weights and statistics. Raises EpctlError."""
    import torch

    device, shape = engine.device, (handle.num_tokens, handle.num_topk)
    if weights is not None:
        arguments.tensor("topk_weights", weights, shape, (torch.float32,), device, align_bytes=4)
    if statistics is not None:
        local = (handle.num_experts // engine.domain.num_ranks,)
        name = "cumulative_local_expert_recv_stats"
        arguments.tensor(name, statistics, local, (torch.int32,), device, align_bytes=4)


def check_waits(engine: Engine, waited_ns: Tensor) -> None:
    """Where waits are told. Raises EpctlError."""
    import torch

    if waited_ns is not None:
        arguments.tensor(
            "waited_ns", waited_ns, (engine.domain.num_ranks,), (torch.int64,), engine.device, align_bytes=8
        )


def check_handle(handle: object) -> None:
    """Raises EpctlError for anything but what a dispatch gave."""
    if not isinstance(handle, EPHandle):
        raise refuse("handle", handle, "the handle that a dispatch on this buffer gave")


def check_replay(
    handle: EPHandle, num_experts: int | None, max_tokens: int | None, alignment: int | None, do_expand: bool
) -> None:
    """What is told together with a handle is what the handle says. Raises EpctlError."""
    for name, told, known in (
        ("num_experts", num_experts, handle.num_experts),
        ("num_max_tokens_per_rank", max_tokens, handle.num_max_tokens_per_rank),
        ("expert_alignment", alignment, handle.expert_alignment),
        ("do_expand", do_expand or None, handle.do_expand),
    ):
        if told is not None and told != known:
            raise refuse(name, told, f"{known}, as in the dispatch that made the handle, or nothing")


def check_blocks(engine: Engine, row_bytes: int, max_tokens: int, num_blocks: int) -> None:
    """Counts of a block's tokens and a row lie in shared memory. By the most tokens of any rank, so that all ranks find the same.
    Raises EpctlError."""
    try:
        engine.ring(row_bytes, max_tokens, num_blocks)
    except ValueError as error:
        expected = (
            f"more, for {max_tokens} tokens of each of {engine.domain.num_ranks} ranks (counts fill the shared memory)"
        )
        raise refuse("num_sms", num_blocks, expected) from error


def check_combined(engine: Engine, x: Tensor, handle: EPHandle, weights: Tensor) -> None:
    """Rows and weights of a combine. Raises EpctlError."""
    import torch

    device = engine.device
    rows = handle.num_expanded_tokens if handle.do_expand else handle.num_recv_tokens
    arguments.tensor("x", x, (rows, engine.layout.rows.hidden), (torch.bfloat16,), device)
    if not handle.do_expand and x.shape[0] > engine.layout.rows.capacity:
        raise refuse("x", x, f"at most {engine.layout.rows.capacity} rows, as many as dispatch can give")
    if weights is not None:
        shape = (int(x.shape[0]),) if handle.do_expand else (int(x.shape[0]), handle.num_topk)
        arguments.tensor("topk_weights", weights, shape, (torch.float32,), device, align_bytes=4)


def biases_of(engine: Engine, bias: Any, handle: EPHandle) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - None, a tensor, or two
    """Two of them, None where one is not given. Raises EpctlError."""
    import torch

    given = () if bias is None else tuple(bias) if isinstance(bias, tuple | list) else (bias,)
    if len(given) > 2:
        raise refuse("bias", bias, "None, one tensor, or two")
    for number, one in enumerate(given):
        shape = (handle.num_tokens, engine.layout.rows.hidden)
        arguments.tensor(f"bias[{number}]" if len(given) > 1 else "bias", one, shape, (torch.bfloat16,), engine.device)
    padded = (*given, None, None)
    return padded[0], padded[1]
