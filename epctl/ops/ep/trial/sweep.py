"""What the self-test of expert parallelism goes through: every mode with every other, edges, many calls in a row, random shapes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from msgspec import structs

from epctl.core.op import Case, Layout, Tier
from epctl.ops.ep.trial.options import (
    ASYNC,
    ASYNC_DEFERRED,
    BF16,
    BURST,
    COPYING,
    DEFERRED,
    DTYPES,
    EXCHANGE,
    FP8,
    GRAPH,
    IN_PLACE,
    PAIR,
    STREAM,
    UE8M0,
    ZERO_COPY,
    Options,
    case_of,
)

WAYS = (STREAM, ASYNC, DEFERRED, ASYNC_DEFERRED)
TOKENS = ((64,), (77, 61), (1, 90), (0, 53), (128, 0, 30))
MANY = 300
"""num_max_tokens_per_rank of calls that go the way of many tokens (more than SMALL_TOKENS), however many there are."""
GATES = ("balanced", "skew:1.2", "one-rank")
MASKED = (0, 30, 0, 90)
LOCAL_EXPERTS = 8
MAX_EXPERTS = 1024
CALLS = 24
REPLAYS = 1000
DECODE_SMS = 16
"""Of each of two buffers at once: the kernels of both are on the GPU together, whatever the other waits for."""
STRESS_HIDDEN = (128, 512, 1408, 2944, 7168)
STRESS_TOPK = (1, 2, 4, 6, 8, 16)
STRESS_TOKENS = 600
STRESS_ROW_TOKENS = 100
"""… where every expanded row travels, which takes room."""


def cases(layout: Layout, seed: int, tier: Tier) -> tuple[Case, ...]:
    """The sweep; none where ranks lie in several load/store domains."""
    if layout.scale_out > 1:
        return ()
    ranks = layout.num_ranks
    found = [structs.replace(one, experts=one.experts * ranks) for one in (*_first(), *_modes(), *_edges())]
    if tier == "gpu":
        found += [structs.replace(one, experts=one.experts * ranks) for one in _repeated()]
    else:
        found = _functional(found)
    signals = tier == "gpu" and ranks > 1
    return _unique(found, seed, signals=signals)


def _unique(found: list[Options], seed: int, *, signals: bool) -> tuple[Case, ...]:
    every = (case_of(one, seed, signals=signals) for one in found if one.topk <= one.experts <= MAX_EXPERTS)
    return tuple({case.name: case for case in every}.values())


def _functional(found: list[Options]) -> list[Options]:
    """The same data without what only kernels have: streams, views, SMs, host waits."""
    plain = {
        "way": STREAM,
        "previous": False,
        "sync": True,
        "place": ZERO_COPY,
        "columns": False,
        "sms": 0,
        "deterministic": False,
    }
    return [
        structs.replace(one, **plain) for one in found if one.hidden * max(one.tokens) <= 200_000 and one.zero_padding
    ]


def _first() -> Iterator[Options]:
    """What damage is tried on: plain rows, then every output that there is."""
    yield Options(experts=LOCAL_EXPERTS)
    yield Options(experts=LOCAL_EXPERTS, most=MANY)
    yield Options(experts=LOCAL_EXPERTS, dtype=FP8, expand=True, alignment=16)


def _modes() -> Iterator[Options]:
    """Layout × alignment × dtype × biases × way of the call × kernels for few and for many tokens: all of them. The rest goes through
    its values meanwhile, in steps that have no factor in common with those, so that each value meets each mode."""
    turns = itertools.count()
    products = itertools.product((False, True), (1, 128), DTYPES, (0, 1, 2), WAYS, (0, MANY))
    for expand, alignment, dtype, biases, way, most in products:
        turn = next(turns)
        mixed = (turn * 7 + turn // 5) % 9973
        gate = GATES[mixed % 3]
        place = (ZERO_COPY, COPYING, IN_PLACE)[mixed // 3 % 3]
        if place == IN_PLACE and (expand or dtype != BF16):
            place = ZERO_COPY
        yield Options(
            experts=LOCAL_EXPERTS,
            expand=expand,
            alignment=alignment,
            dtype=dtype,
            biases=biases,
            way=way,
            sync=mixed // 6 % 2 == 0,
            tokens=TOKENS[mixed % 5],
            most=most,
            gate=gate,
            masked=MASKED[mixed % 4],
            wide=mixed % 7 < 4,
            place=place,
            every_row=expand and mixed % 2 == 1,
            columns=dtype != BF16 and expand and mixed // 2 % 2 == 0,
            previous=way in (ASYNC, ASYNC_DEFERRED) and mixed // 4 % 2 == 0,
            deterministic=mixed % 11 == 0,
            weights=mixed % 13 != 0,
            zero_padding=not expand or mixed % 5 != 0,
        )


def _edges() -> Iterator[Options]:
    """Shapes at their limits, and those of real models."""
    base = Options(experts=LOCAL_EXPERTS)
    real = structs.replace(base, hidden=7168, topk=8, experts=128)
    yield structs.replace(base, tokens=(0,), most=7)
    yield structs.replace(base, tokens=(1, 0), topk=1)
    yield structs.replace(base, tokens=(77, 600), masked=100)
    yield structs.replace(base, tokens=(33,), most=128)
    yield structs.replace(base, tokens=(5, 0), expand=True, alignment=4)
    yield structs.replace(base, tokens=(300, 513), gate="one-rank", topk=3)
    yield structs.replace(base, tokens=(900, 1200), gate="skew:1.5", topk=16, experts=16, masked=30)
    yield structs.replace(base, tokens=(513, 2000), hidden=128, topk=16, experts=512, sms=8)
    yield structs.replace(base, tokens=(40, 50), hidden=16384, topk=2)
    yield structs.replace(base, tokens=(40, 50), hidden=16384, topk=2, dtype=FP8, expand=True, alignment=128)
    yield structs.replace(base, tokens=(64,), topk=1, experts=1)
    for dtype in DTYPES:
        yield structs.replace(real, tokens=(1000, 700), dtype=dtype)
        yield structs.replace(real, tokens=(128,), dtype=dtype, sync=False)
        yield structs.replace(real, tokens=(600, 640), dtype=dtype, expand=True, alignment=128, columns=dtype != BF16)
    yield structs.replace(real, tokens=(130, 60), dtype=UE8M0, hidden=2944, wide=False)
    yield structs.replace(real, tokens=(1000, 700), sms=24, place=COPYING)
    yield structs.replace(real, tokens=(1000, 700), sms=1)
    yield structs.replace(real, tokens=(4096,), deterministic=True)
    yield structs.replace(real, tokens=(4096, 4000), expand=True, alignment=128, sync=False)
    yield structs.replace(real, tokens=(100,), expand=True, alignment=128, every_row=True, biases=2)
    # Padding of more rows than there is room for rows that travel.
    padded = structs.replace(base, experts=MAX_EXPERTS // 2, topk=16, expand=True, alignment=128, every_row=True)
    yield structs.replace(padded, tokens=(5, 0), most=22, sync=False, biases=2)


def _repeated() -> Iterator[Options]:
    base = Options(experts=LOCAL_EXPERTS, sync=False)
    decode = Options(experts=128, topk=8, hidden=7168, tokens=(128,), sync=False)
    for one in (
        structs.replace(base, tokens=(64, 50)),
        structs.replace(base, tokens=(64, 50), most=MANY),
        structs.replace(decode, tokens=(128, 1)),
        structs.replace(base, expand=True, alignment=8),
    ):
        yield structs.replace(one, kind=BURST, repeats=CALLS)
    yield structs.replace(base, kind=BURST, repeats=CALLS, tokens=(600, 64), masked=30, dtype=FP8, way=ASYNC)
    for one in (base, structs.replace(base, most=MANY), structs.replace(decode, dtype=FP8)):
        yield structs.replace(one, kind=PAIR, repeats=CALLS, sms=DECODE_SMS)
    yield structs.replace(base, kind=GRAPH, repeats=REPLAYS, masked=20)
    yield structs.replace(base, kind=GRAPH, repeats=REPLAYS, tokens=(90, 120), most=MANY)
    yield structs.replace(decode, kind=GRAPH, repeats=REPLAYS)
    yield structs.replace(decode, kind=GRAPH, repeats=REPLAYS, tokens=(128, 0, 17), gate="skew:1")


def stress_cases(layout: Layout, seed: int, tier: Tier, count: int) -> tuple[Case, ...]:
    """Random shapes and modes, the same for the same seed; numbered, since two may be alike."""
    if layout.scale_out > 1:
        return ()
    rng = random.Random(seed)  # noqa: S311
    found = []
    for number in range(count):
        one = _random(rng, layout.num_ranks)
        if tier == "cpu":
            plain = structs.replace(one, tokens=tuple(size % 40 for size in one.tokens), most=0, hidden=128)
            one = next(iter(_functional([plain])), plain)
        case = case_of(one, seed * 100_003 + number, signals=False)
        found.append(Case(f"stress{number}/{case.name}", case.params))
    return tuple(found)


def _random(rng: random.Random, num_ranks: int) -> Options:
    topk = rng.choice(STRESS_TOPK)
    most_local = MAX_EXPERTS // num_ranks
    local = min(most_local, max(-(-topk // num_ranks), rng.choice((1, 2, 3, 8, 16, 32, 128, 512))))
    expand, dtype, way = rng.random() < 0.5, rng.choice(DTYPES), rng.choice(WAYS)
    every_row = expand and rng.random() < 0.3
    limit = STRESS_ROW_TOKENS if every_row else STRESS_TOKENS
    tokens = tuple(rng.choice((0, 1, rng.randint(2, limit), rng.randint(2, limit))) for _ in range(num_ranks))
    place = rng.choice((ZERO_COPY, COPYING, IN_PLACE) if dtype == BF16 and not expand else (ZERO_COPY, COPYING))
    return Options(
        kind=EXCHANGE,
        tokens=tokens,
        most=max(*tokens, 1) + rng.choice((0, 0, 1, 17, MANY)),
        hidden=rng.choice(STRESS_HIDDEN[:3] if every_row else STRESS_HIDDEN),
        topk=topk,
        experts=local * num_ranks,
        dtype=dtype,
        expand=expand,
        alignment=rng.choice((1, 1, 2, 8, 16, 64, 128)),
        zero_padding=not expand or rng.random() < 0.7,
        columns=expand and dtype != BF16 and rng.random() < 0.5,
        biases=rng.randint(0, 2),
        way=way,
        previous=way in (ASYNC, ASYNC_DEFERRED) and rng.random() < 0.5,
        sync=rng.random() < 0.6,
        masked=rng.choice((0, 0, 0, 10, 50, 95, 100)),
        gate=rng.choice(("balanced", "skew:0.7", "skew:1.5", "one-rank")),
        wide=rng.random() < 0.5,
        place=place,
        every_row=every_row,
        deterministic=rng.random() < 0.2,
        weights=rng.random() < 0.9,
        sms=rng.choice((0, 0, 1, 3, 8, 24, 64)),
    )
