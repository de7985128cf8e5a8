"""What the GIN op runs: puts, gets and signals between ranks of different domains, and how each is called."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.errors import EpctlError
from epctl.core.op import Case, Layout, Request, Scalar, Tier

PUT, PUT_SIGNAL, GET, SIGNAL, ROUND_TRIP = "put", "put-signal", "get", "signal", "round-trip"
KINDS = (PUT, PUT_SIGNAL, GET, SIGNAL, ROUND_TRIP)
WITH_DATA = (PUT, PUT_SIGNAL, GET, ROUND_TRIP)
MAX_CONTEXTS = 16
LATENCY_BYTES = (0, 8, 64, 512, 4096, 7168, 65536, 1 << 20, 8 << 20, 64 << 20)
"""0: the signal alone. 7168: a token of FP8."""
BANDWIDTH_BYTES = (7168, 65536, 1 << 20, 16 << 20)
CONTEXTS = (1, 4, MAX_CONTEXTS)
MAX_BYTES = 1 << 30
MAX_REGION_BYTES = 512 << 20
"""Of what one rank sends in a run; messages take turns in it when there are more."""
NUM_ROUNDS, NUM_ROUNDS_LARGE, NUM_ROUNDS_EMULATED, NUM_ROUNDS_CPU = 500, 20, 20, 5
LARGE = 1 << 20
TOTAL_BYTES = 256 << 20
"""About as much is moved by a bandwidth case, in 4 messages of a context at least."""
NUM_SMALL = 4096
"""Messages of a context when their rate is measured."""
BATCH = 32
"""Under way at once; less than any queue is deep."""
ADDED = (1 << 33) + 7
"""What a signal adds: more than 32 bits."""
_SLOT_ALIGN = 128


def bench_cases(request: Request, layout: Layout) -> tuple[Case, ...]:
    """What is timed; nothing where there is no GIN. Raises EpctlError for sizes that make no sense."""
    for size in request.sizes:
        if not 0 <= size <= MAX_BYTES:
            raise EpctlError(
                f"--sizes {size} is out of range", f"a message has 0 to {MAX_BYTES} bytes", "give sizes in that range"
            )
    if not is_possible(layout):
        return ()
    found: list[Case] = []
    if request.mode != "high-throughput":
        found += _latency(request, layout)
    if request.mode != "low-latency":
        found += _bandwidth(request, layout)
    return _unique(found)


def is_possible(layout: Layout) -> bool:
    """Two ranks, and GIN between them; on the CPU, PyTorch stands for it."""
    return layout.num_ranks > 1 and (layout.tier == "cpu" or bool(layout.gin_type))


def _unique(found: list[Case], **more: Scalar) -> tuple[Case, ...]:
    return tuple({case.name: Case(case.name, {**case.params, **more}) for case in found}.values())


def rounds(num_bytes: int, layout: Layout) -> int:
    """How often a message goes forth and back in one run."""
    if layout.tier == "cpu":
        return NUM_ROUNDS_CPU
    if layout.emulated:
        return NUM_ROUNDS_EMULATED
    return NUM_ROUNDS_LARGE if num_bytes >= LARGE else NUM_ROUNDS


def _latency(request: Request, layout: Layout) -> Iterator[Case]:
    sizes = request.sizes or (LATENCY_BYTES if layout.tier == "gpu" else (0, 8, 65536))
    for size in sizes:
        for strong in (True, False) if size in (8, 7168) else (True,):
            yield make(ROUND_TRIP, size, messages=rounds(size, layout), strong=strong)
        if size:
            yield make(GET, size)
            yield make(PUT_SIGNAL, size)


def _bandwidth(request: Request, layout: Layout) -> Iterator[Case]:
    sizes = [size for size in request.sizes if size] or list(BANDWIDTH_BYTES if layout.tier == "gpu" else (65536,))
    few = layout.tier == "cpu" or layout.emulated
    for size in sizes:
        for contexts in CONTEXTS:
            messages = 4 if few else min(max(4, TOTAL_BYTES // size // contexts), NUM_SMALL)
            yield make(PUT, size, messages=messages, contexts=contexts)
            yield make(GET, size, messages=messages, contexts=contexts)
            if contexts != MAX_CONTEXTS:
                yield make(PUT_SIGNAL, size, messages=messages, contexts=contexts)
    for contexts in CONTEXTS:
        messages = 64 if few else NUM_SMALL
        yield make(PUT, 8, messages=messages, contexts=contexts)
        yield make(PUT_SIGNAL, 8, messages=messages, contexts=contexts, strong=False)
        for strong in (True, False):
            yield make(SIGNAL, 0, messages=messages, contexts=contexts, strong=strong)


def make(
    kind: str,
    num_bytes: int,
    *,
    messages: int = 1,
    contexts: int = 1,
    strong: bool = True,
    adds: bool = False,
) -> Case:
    """`messages` of each context, one behind the other; round trips go over one context."""
    params: dict[str, Scalar] = {"kind": kind, "bytes": num_bytes, "messages": messages, "contexts": contexts}
    name = f"{kind}/{num_bytes}/{messages}-x{contexts}"
    if kind in (PUT_SIGNAL, SIGNAL, ROUND_TRIP):
        params |= {"strong": strong, "adds": adds}
        name += f"/{'strong' if strong else 'weak'}{'-add' if adds else ''}"
    return Case(name, params)


SELFTEST_BYTES = (8, 1000, 7168, (1 << 16) + 16)
"""One word, no multiple of 16, a token, more than a page of the host."""
SELFTEST_LARGE_BYTES = (1 << 22) + 16
"""More than a page of the GPU; for kernels alone."""


def selftest_cases(layout: Layout, seed: int, tier: Tier) -> tuple[Case, ...]:
    """What is checked bit by bit, nearly the same on both tiers."""
    if not is_possible(layout):
        return ()
    found: list[Case] = []
    for size in SELFTEST_BYTES if tier == "cpu" else (*SELFTEST_BYTES, SELFTEST_LARGE_BYTES):
        for messages, contexts in ((1, 1), (3, 4)):
            found += [
                make(PUT, size, messages=messages, contexts=contexts),
                make(GET, size, messages=messages, contexts=contexts),
                make(PUT_SIGNAL, size, messages=messages, contexts=contexts),
                make(PUT_SIGNAL, size, messages=messages, contexts=contexts, strong=False),
            ]
        found.append(make(ROUND_TRIP, size, messages=5))
    found.append(make(PUT, 64, messages=3 * BATCH + 1, contexts=2))  # more than are under way at once
    found.append(make(ROUND_TRIP, 0, messages=5))
    found.append(make(ROUND_TRIP, 7168, messages=5, strong=False))
    found += [
        make(SIGNAL, 0, messages=messages, contexts=contexts, strong=strong, adds=adds)
        for messages, contexts in ((1, 1), (7, 4))
        for strong in (True, False)
        for adds in (True, False)
    ]
    return _unique(found, seed=seed)


def slot_bytes(case: Case) -> int:
    """From one message to the next."""
    return -(-case.whole("bytes") // _SLOT_ALIGN) * _SLOT_ALIGN


def num_slots(case: Case) -> int:
    """Places for messages of one context: as many as there are messages, while they fit."""
    if not case.whole("bytes"):
        return 1
    fitting = MAX_REGION_BYTES // (slot_bytes(case) * case.whole("contexts"))
    return max(1, min(case.whole("messages"), fitting))


def region_bytes(case: Case) -> int:
    """Of all slots of all contexts."""
    return slot_bytes(case) * num_slots(case) * case.whole("contexts")
