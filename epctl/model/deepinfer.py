"""DeepInfer's layout arithmetic: how ranks and experts are laid out, and what its decode throughput counts, step by step.

Source: DeepInfer's rules as the requirements of `epctl plan` give them; its code was not read. The one published example, 64 requests
and draft length 5 credited as 384 tokens a step (articles of October 2026, in published_results.json), is a test of this module.
"""

from __future__ import annotations

import math

from msgspec import Struct

from epctl.model.gate import MAX_EXPERTS
from epctl.model.refusal import RefusalError

REDUNDANT_EXPERTS = 32
"""Lower bound where none is given. Source: DeepInfer's default."""
MAX_RANKS, MAX_REQUESTS, MAX_DRAFT, MAX_STEPS = 1 << 16, 1 << 20, 1 << 10, 1e6


class Step(Struct, frozen=True):
    """One line of the accounting."""

    name: str
    formula: str
    value: float | int


class LayoutRequest(Struct, frozen=True, kw_only=True):
    """What is to be laid out. `redundant_experts` is a lower bound."""

    nodes: int
    visible_devices: int
    """GPUs of a node that the process sees (CUDA_VISIBLE_DEVICES)."""
    experts: int
    """Routed experts of the model."""
    cp: int = 1
    """Ranks that share the context of one request."""
    redundant_experts: int = REDUNDANT_EXPERTS


class Layout(Struct, frozen=True, kw_only=True):
    """The layout. attention_groups: groups of cp ranks, each with its own requests."""

    ep_size: int
    attention_groups: int
    redundant_experts: int
    total_experts: int
    experts_per_rank: int
    steps: tuple[Step, ...]


def plan_layout(request: LayoutRequest) -> Layout:
    """Ranks and experts. Raises RefusalError non_positive_argument, absurd_argument or cp_not_divisor.

    ep_size = nodes x visible devices; cp divides it; the redundant experts are raised until experts + redundant divide by ep_size.
    """
    _count("the number of nodes", request.nodes, 1, MAX_RANKS, "--nodes 1")
    _count("the number of visible devices a node", request.visible_devices, 1, MAX_RANKS, "--gpus-per-node 8")
    _count("the number of experts", request.experts, 1, MAX_EXPERTS, "--experts 256")
    _count("cp", request.cp, 1, MAX_RANKS, "--cp 1")
    _count("the number of redundant experts", request.redundant_experts, 0, MAX_EXPERTS, "--redundant-experts 32")
    ep_size = request.nodes * request.visible_devices
    if ep_size > MAX_RANKS:
        what = f"{request.nodes} nodes of {request.visible_devices} devices are {ep_size} ranks"
        nodes = MAX_RANKS // request.visible_devices
        why = f"at most {MAX_RANKS} are planned for"
        raise RefusalError("absurd_argument", what, why, f"give --nodes {nodes} or less")
    if ep_size % request.cp:
        near = min(_divisors(ep_size), key=lambda divisor: (abs(divisor - request.cp), divisor))
        what = f"cp is {request.cp}, but there are {ep_size} ranks ({request.nodes} x {request.visible_devices})"
        why = "ranks are split into equal groups of cp"
        raise RefusalError("cp_not_divisor", what, why, f"give --cp {near}")
    total = -(-(request.experts + request.redundant_experts) // ep_size) * ep_size
    redundant = total - request.experts
    steps = (
        Step("ep_size", f"{request.nodes} nodes x {request.visible_devices} visible devices", ep_size),
        Step("attention groups", f"{ep_size} / cp {request.cp}", ep_size // request.cp),
        Step("redundant experts asked for", "lower bound", request.redundant_experts),
        Step(
            "total experts",
            f"{request.experts} + {request.redundant_experts}, rounded up to a multiple of {ep_size}",
            total,
        ),
        Step("redundant experts", f"{total} - {request.experts}", redundant),
        Step("experts per rank", f"{total} / {ep_size}", total // ep_size),
    )
    return Layout(
        ep_size=ep_size,
        attention_groups=ep_size // request.cp,
        redundant_experts=redundant,
        total_experts=total,
        experts_per_rank=total // ep_size,
        steps=steps,
    )


class DecodeRequest(Struct, frozen=True, kw_only=True):
    """What a decode run did. `acceptance` is the measured share of draft tokens that were accepted; None credits all of them."""

    steps_per_second: float
    requests: int
    """In flight for each attention group (each GPU where cp is 1)."""
    draft_length: int = 0
    cp: int = 1
    acceptance: float | None = None


class DecodeRate(Struct, frozen=True, kw_only=True):
    """Throughput. tokens_per_step is what one group's step counts for; full_credit says that every draft token was counted."""

    tokens_per_step: float
    tokens_per_second_per_gpu: float
    per_request_tokens_per_second: float
    full_credit: bool
    steps: tuple[Step, ...]


def decode_rate(request: DecodeRequest) -> DecodeRate:
    """tokens/s/GPU = steps/s x requests x (1 + draft length x acceptance) / cp.

    Raises RefusalError non_positive_argument, absurd_argument or acceptance_out_of_range.
    """
    if not math.isfinite(request.steps_per_second) or request.steps_per_second <= 0:
        what = f"the number of steps per second is {request.steps_per_second}"
        raise RefusalError("non_positive_argument", what, "throughput is counted in steps", "give steps/s such as 50")
    if request.steps_per_second > MAX_STEPS:
        what = f"the number of steps per second is {request.steps_per_second}"
        why = "a step takes more than a microsecond"
        raise RefusalError("absurd_argument", what, why, "give steps/s such as 50")
    _count("the number of requests", request.requests, 1, MAX_REQUESTS, "requests 64")
    _count("the draft length", request.draft_length, 0, MAX_DRAFT, "a draft length of 5, or 0 without drafts")
    _count("cp", request.cp, 1, MAX_RANKS, "--cp 1")
    full = request.acceptance is None
    acceptance = 1.0 if request.acceptance is None else request.acceptance
    if not 0 <= acceptance <= 1:
        why = "it is the share of draft tokens that were accepted"
        what = f"the acceptance is {acceptance}"
        raise RefusalError("acceptance_out_of_range", what, why, "give 0 to 1, such as 0.7")
    credited = 1 + request.draft_length * acceptance
    tokens = request.requests * credited
    rate = request.steps_per_second * tokens / request.cp
    how = "full credit: every draft token counts as accepted" if full else f"measured acceptance {acceptance:g}"
    steps = (
        Step("acceptance", how, acceptance),
        Step("tokens a request and step", f"1 + {request.draft_length} x {acceptance:g}", credited),
        Step("tokens a step", f"{request.requests} requests x {credited:g}", tokens),
        Step("tokens/s of a group", f"{request.steps_per_second:g} steps/s x {tokens:g}", rate * request.cp),
        Step("tokens/s/GPU", f"{rate * request.cp:g} / cp {request.cp}", rate),
    )
    return DecodeRate(
        tokens_per_step=tokens,
        tokens_per_second_per_gpu=rate,
        per_request_tokens_per_second=request.steps_per_second * credited,
        full_credit=full,
        steps=steps,
    )


def _count(name: str, value: int, least: int, most: int, example: str) -> None:
    if value < least:
        what, why = f"{name} is {value}", f"it is at least {least}"
        raise RefusalError("non_positive_argument", what, why, f"give {example}")
    if value > most:
        what, why = f"{name} is {value}", f"at most {most} are taken"
        raise RefusalError("absurd_argument", what, why, f"give {example}")


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
