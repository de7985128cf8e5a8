"""Which experts tokens select in tests and timing: drawn on the device, the same on every rank for the same generator."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from epctl.core.errors import EpctlError

Tensor: TypeAlias = Any
"""torch.Tensor."""
Generator: TypeAlias = Any
"""torch.Generator."""
BALANCED, SKEW, TRACE, ONE_RANK = "balanced", "skew", "trace", "one-rank"
MAX_SKEW = 8.0
_FORMS = "balanced, skew:1.5 (the exponent), trace:FILE"


class Gate(Struct, frozen=True):
    """`exponent`: of skew; `path`: of a trace."""

    kind: str = BALANCED
    exponent: float = 0.0
    path: str = ""


def parse(text: str) -> Gate:
    """The gate of that name. Raises EpctlError."""
    kind, _, rest = text.partition(":")
    if kind in (BALANCED, ONE_RANK) and not rest:
        return Gate(kind)
    if kind == TRACE and rest:
        return Gate(TRACE, path=rest)
    if kind == SKEW:
        try:
            exponent = float(rest)
        except ValueError:
            exponent = math.nan
        if 0 <= exponent <= MAX_SKEW:
            return Gate(SKEW, exponent)
        why = f"the i-th hottest expert is chosen in proportion to 1 / i^X, and X may be 0 to {MAX_SKEW:g}"
        raise EpctlError(f"--gate {text!r} has no exponent that can be", why, "give --gate skew:1.5")
    raise EpctlError(f"--gate {text!r} is unknown", f"gates are {_FORMS}", "give --gate balanced")


def selections(
    gate: Gate,
    num_tokens: int,
    num_topk: int,
    num_experts: int,
    num_ranks: int,
    generator: Generator,
    *,
    first: int = 0,
) -> Tensor:
    """int64 [tokens, topk] on the generator's device. Every set of topk experts is as likely as any other in a balanced gate; skew
    draws them one after another, with chances in proportion to 1 / i^exponent for the i-th expert (so the first rank is the busiest);
    one-rank prefers the experts of rank 0. Of a trace, the rows from `first` on, in a circle. Raises EpctlError."""
    import torch

    device = generator.device
    if gate.kind == TRACE:
        return _traced(gate.path, num_tokens, num_topk, num_experts, first).to(device)
    if num_tokens == 0:
        return torch.zeros((0, num_topk), dtype=torch.long, device=device)
    scores = torch.rand((num_tokens, num_experts), device=device, generator=generator)
    if gate.kind == SKEW:
        # The largest of log-weights with Gumbel noise are draws without putting back in proportion to the weights.
        weights = -gate.exponent * torch.log(torch.arange(1, num_experts + 1, device=device, dtype=torch.float32))
        scores = weights - torch.log(-torch.log(scores.clamp(1e-7, 1 - 1e-7)))
    elif gate.kind == ONE_RANK:
        scores[:, num_experts // num_ranks :] -= 2.0
    return scores.topk(num_topk, 1).indices.contiguous()


def _traced(path: str, num_tokens: int, num_topk: int, num_experts: int, first: int) -> Tensor:
    import torch

    rows = read_trace(path)
    if len(rows[0]) != num_topk:
        raise EpctlError(
            f"the trace {path} has {len(rows[0])} selections a token, and --topk is {num_topk}",
            "a trace is replayed as it is",
            f"give --topk {len(rows[0])}",
        )
    largest = max(max(row) for row in rows)
    if largest >= num_experts:
        raise EpctlError(
            f"the trace {path} names expert {largest}, and --experts is {num_experts}",
            "experts count from 0",
            f"give --experts {largest + 1} or more",
        )
    return torch.tensor([rows[(first + idx) % len(rows)] for idx in range(num_tokens)], dtype=torch.long).view(
        num_tokens, num_topk
    )


@lru_cache(maxsize=2)
def read_trace(path: str) -> tuple[tuple[int, ...], ...]:
    """Rows of top-k indices, −1 where nothing is selected. Raises EpctlError."""
    from epctl.probes.gate_trace import read_trace as read

    rows = read(Path(path)).rows
    if not rows or len({len(row) for row in rows}) != 1:
        raise EpctlError(f"the trace {path} has no rows of one length", "each row is a token", "give another file")
    for number, row in enumerate(rows):
        chosen = [expert for expert in row if expert >= 0]
        if len(set(chosen)) < len(chosen) or min(row) < -1:
            raise EpctlError(
                f"row {number} of the trace {path} names an expert twice, or a number below -1",
                "a token selects distinct experts",
                "give a trace of top-k indices",
            )
    return rows
