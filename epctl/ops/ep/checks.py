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
        arguments.tensor("topk_weights", weights, shape, (torch.float32,), device)
    if statistics is not None:
        local = (handle.num_experts // engine.domain.num_ranks,)
        arguments.tensor("cumulative_local_expert_recv_stats", statistics, local, (torch.int32,), device)


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
        arguments.tensor("topk_weights", weights, shape, (torch.float32,), device)


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
