"""What the expert-parallel op times: stages, types, sizes, SMs and ways to hold the data, by epctl and by others."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.op import Case, Layout, Request, Scalar
from epctl.ops.ep.arguments import HIDDEN_STEP, MAX_HIDDEN, MAX_TOKENS
from epctl.ops.ep.trial import gates
from epctl.ops.ep.trial.options import BF16, FP8

DISPATCH, CACHED, COMBINE = "dispatch", "cached", "combine"
STAGES = (DISPATCH, CACHED, COMBINE)
ZERO_COPY, COPYING, GRAPH = "zero-copy", "copying", "graph"
EPCTL, NCCL, TORCH, DEEP_EP = "epctl", "nccl", "torch", "deep-ep"
RIVALS = (NCCL, TORCH, DEEP_EP)
LOW_LATENCY_TOKENS = (128,)
HIGH_THROUGHPUT_TOKENS = (4096, 8192)
GRAPH_TOKENS = 256
"""Up to so many tokens a call is that short that it is timed out of a CUDA graph, too."""
CPU_TOKENS = (16,)
CPU_HIDDEN = 512
DTYPES = (FP8, BF16)
MAX_TOPK, MAX_EXPERTS = 16, 1024
EXPANDED_ALIGNMENT = 128
OPTIONS = ("tokens", "experts", "topk", "hidden", "dtype", "expand", "against", "gate", "waits", "overlap")
"""Names in Request.more."""


class Plan(Struct, frozen=True):
    """A request that was checked."""

    tokens: tuple[int, ...]
    experts: int
    topk: int
    hidden: int
    dtypes: tuple[str, ...]
    sms: tuple[int, ...]
    """0: the buffer's choice."""
    expand: bool
    rivals: tuple[str, ...]
    gate: str
    waits: bool
    overlap: bool


def bench_cases(request: Request, layout: Layout) -> tuple[Case, ...]:
    """What is timed; nothing where ranks lie in several load/store domains. Raises EpctlError for options that cannot be."""
    if layout.scale_out > 1:
        return ()
    plan = checked(request, layout)
    found: list[Case] = []
    for tokens in plan.tokens:
        for stage in STAGES:
            for dtype in plan.dtypes if stage != COMBINE else (BF16,):
                found += _group(plan, layout, stage, dtype, tokens)
    return tuple(found)


def _group(plan: Plan, layout: Layout, stage: str, dtype: str, tokens: int) -> Iterator[Case]:
    """All ways to do one thing; others' before ours, so that their ratio is known at once."""
    for rival in plan.rivals:
        for sms in plan.sms if rival == DEEP_EP else (None,):
            yield _case(plan, stage, dtype, tokens, sms, by=rival)
    for sms in plan.sms:
        yield _case(plan, stage, dtype, tokens, sms)
        if layout.tier == "cpu":
            continue
        if not plan.expand and stage != COMBINE:
            yield _case(plan, stage, dtype, tokens, sms, place=COPYING)
        if tokens <= GRAPH_TOKENS:
            yield _case(plan, stage, dtype, tokens, sms, place=GRAPH)
        if plan.overlap:
            yield _case(plan, stage, dtype, tokens, sms, overlap=True)


def _case(
    plan: Plan,
    stage: str,
    dtype: str,
    tokens: int,
    sms: int | None,
    *,
    by: str = EPCTL,
    place: str = ZERO_COPY,
    overlap: bool = False,
) -> Case:
    work = f"{stage}/{dtype}/{tokens}"
    parts = [work]
    if by != EPCTL:
        parts.append(by)
    if sms:
        parts.append(f"{sms}-sms")
    if overlap:
        parts.append("overlap")
    elif place != ZERO_COPY:
        parts.append(place)
    params: dict[str, Scalar] = {
        "kind": stage,
        "stage": stage,
        "work": work,
        "by": by,
        "dtype": dtype,
        "tokens": tokens,
        "hidden": plan.hidden,
        "topk": plan.topk,
        "experts": plan.experts,
        "expand": plan.expand,
        "gate": plan.gate,
        "place": place,
        "waits": plan.waits and by == EPCTL and place == ZERO_COPY and not overlap,
        "overlap": overlap,
    }
    if sms is not None:
        params["sms"] = sms
    return Case("/".join(parts), params)


def checked(request: Request, layout: Layout) -> Plan:
    """The request with what it leaves open. Raises EpctlError that names the option."""
    given = request.more
    experts = _number(given, "experts", 256, 1, MAX_EXPERTS)
    topk = _number(given, "topk", 8, 1, MAX_TOPK)
    hidden = _number(given, "hidden", 7168 if layout.tier == "gpu" else CPU_HIDDEN, HIDDEN_STEP, MAX_HIDDEN)
    if hidden % HIDDEN_STEP:
        raise _refused("hidden", str(hidden), f"it is a multiple of {HIDDEN_STEP}", "7168")
    if experts % layout.num_ranks:
        raise _refused(
            "experts", str(experts), f"each of {layout.num_ranks} ranks has as many", str(8 * layout.num_ranks)
        )
    if topk > experts:
        raise _refused("topk", str(topk), f"there are {experts} experts", str(experts))
    rivals = _chosen(given, "against", RIVALS, ())
    dtypes = _chosen(given, "dtype", DTYPES, DTYPES)
    expand = given.get("expand") == "yes"
    if layout.tier == "cpu" and set(rivals) - {TORCH}:
        raise _refused("against", ",".join(rivals), "only torch runs without GPUs", TORCH)
    for name in ("waits", "overlap") if layout.tier == "cpu" else ():
        if name in given:
            raise EpctlError(f"--{name} needs kernels", "none run on the CPU", f"leave --{name} out, or run on GPUs")
    if expand and set(rivals) - {DEEP_EP}:
        why = "nccl and torch leave rows as they came, one for each token"
        raise _refused("against", ",".join(rivals), f"{why}; with --expand only deep-ep compares", DEEP_EP)
    gate = given.get("gate", gates.BALANCED)
    if gates.parse(gate).kind == gates.TRACE:
        gates.read_trace(gates.parse(gate).path)
    return Plan(
        _tokens(request, layout),
        experts,
        topk,
        hidden,
        dtypes,
        request.sms or (0,),
        expand,
        rivals,
        gate,
        given.get("waits") == "yes",
        given.get("overlap") == "yes",
    )


def _tokens(request: Request, layout: Layout) -> tuple[int, ...]:
    if "tokens" in request.more:
        words = [word.strip() for word in request.more["tokens"].split(",")]
        return tuple(dict.fromkeys(_number({"tokens": word}, "tokens", 0, 1, MAX_TOKENS) for word in words))
    if layout.tier == "cpu":
        return CPU_TOKENS
    low = LOW_LATENCY_TOKENS if request.mode != "high-throughput" else ()
    return (*low, *(HIGH_THROUGHPUT_TOKENS if request.mode != "low-latency" else ()))


def _number(given: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    word = given.get(name, str(default))
    if not (word.isascii() and word.isdigit()) or len(word) > 9 or not low <= int(word) <= high:
        raise _refused(name, word, f"it is a whole number from {low} to {high}", str(default or low))
    return int(word)


def _chosen(given: dict[str, str], name: str, known: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in given.get(name, "").split(",") if word.strip()))
    for word in words:
        if word not in known:
            raise _refused(name, word, f"there are {', '.join(known)}", known[0])
    return words or default


def _refused(name: str, value: str, why: str, example: str) -> EpctlError:
    return EpctlError(f"--{name} {value} cannot be", why, f"give --{name} {example}")
