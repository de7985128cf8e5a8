"""What the link op runs: ways to move rows between two GPUs or within one, and how each is called."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from epctl.core.errors import EpctlError
from epctl.core.op import Case, Layout, Request, Scalar, Tier

WRITES = ("copy-engine", "bulk-write", "vector-write")
"""Run by the rank whose data it is."""
READS = ("bulk-read", "vector-read", "pull-add")
"""Run by the rank that gets the data."""
LOCAL = ("hbm-copy", "sm-read", "sm-write")
ROUND_TRIP = "round-trip"
KINDS = (*WRITES, *READS, *LOCAL, ROUND_TRIP)
BY_SMS = ("bulk-write", "bulk-read", "vector-write", "vector-read", "pull-add", "sm-read", "sm-write")
ALL_SMS = 0
"""As many SMs as the GPU has."""
ROW_BYTES = 14336
"""A token of hidden 7168 in BF16."""
BLOCK_THREADS = 512
LARGE_BYTES = 256 << 20
"""Five times the L2 cache of an H200, and long enough for launches not to count."""
SMALL_BYTES = (16 << 10, 256 << 10)
NUM_ROUNDS = 1000
CPU_BYTES = (1 << 20,)
CPU_ROUNDS = 20
SMS = (8, 24, 64, ALL_SMS)
LOCAL_SMS = (1, 8, 24, ALL_SMS)
MAX_BYTES = 8 << 30
MAX_PAIRED_RANKS = 16
"""Matrices of larger domains show the first ranks only: they grow with the square."""


def bench_cases(request: Request, layout: Layout) -> tuple[Case, ...]:
    """What is timed. Raises EpctlError for sizes and SMs that make no sense."""
    _sound(request)
    found: list[Case] = []
    if layout.tier == "cpu":
        request = _functional(request)
    if request.mode != "high-throughput":
        found += _latency(request, layout)
    if request.mode != "low-latency":
        found += _bandwidth(request, layout)
    return _unique(found)


def _functional(request: Request) -> Request:
    """Sizes that plain PyTorch gets through; SMs do not exist there, but the names of cases have them."""
    return structs.replace(request, sizes=request.sizes or CPU_BYTES, sms=request.sms or (ALL_SMS,))


def _unique(found: list[Case], **more: Scalar) -> tuple[Case, ...]:
    return tuple({case.name: Case(case.name, {**case.params, **more}) for case in found}.values())


def _sound(request: Request) -> None:
    for size in request.sizes:
        if not ROW_BYTES <= size <= MAX_BYTES:
            why = f"a transfer has {ROW_BYTES} (a row) to {MAX_BYTES} bytes"
            raise EpctlError(f"--sizes {size} is out of range", why, "give sizes in that range")
    for count in request.sms:
        if not 1 <= count <= 1024:
            raise EpctlError(
                f"--sms {count} is out of range", "no GPU has so many SMs", "give numbers from 1 to the GPU's count"
            )


def _latency(request: Request, layout: Layout) -> Iterator[Case]:
    if layout.scale_up < 2:
        return
    yield _round_trip(NUM_ROUNDS if layout.tier == "gpu" else CPU_ROUNDS)
    for size in request.sizes or SMALL_BYTES:
        for kind in ("copy-engine", "vector-write", "vector-read"):
            yield move(kind, size, one_way=(0, 1), sms=24 if kind in BY_SMS else ALL_SMS)


def _bandwidth(request: Request, layout: Layout) -> Iterator[Case]:
    sms = request.sms or SMS
    for size in request.sizes or (LARGE_BYTES,):
        if layout.scale_up > 1:
            yield from _links(size, sms, layout)
        yield local("hbm-copy", size)
        for count in request.sms or LOCAL_SMS:
            yield local("sm-read", size, count)
            yield local("sm-write", size, count)


def _links(size: int, sms: tuple[int, ...], layout: Layout) -> Iterator[Case]:
    yield move("copy-engine", size)
    yield move("copy-engine", size, one_way=(0, 1))
    for kind in ("bulk-write", "bulk-read"):
        for count in sms:
            yield move(kind, size, sms=count)
        yield move(kind, size, one_way=(0, 1), sms=max(sms) if ALL_SMS not in sms else ALL_SMS)
    for kind in ("vector-write", "vector-read", "pull-add"):
        for count in sms if ALL_SMS not in sms else (ALL_SMS,):
            yield move(kind, size, sms=count)
    yield move("pull-add", size, sms=ALL_SMS, blocks_per_sm=4)
    shown = range(min(layout.scale_up, MAX_PAIRED_RANKS))
    for source in shown:
        for target in shown:
            if source != target:
                yield move("bulk-write", size, one_way=(source, target), sms=ALL_SMS)


def move(
    kind: str,
    num_bytes: int,
    *,
    one_way: tuple[int, int] | None = None,
    sms: int = ALL_SMS,
    row_bytes: int = ROW_BYTES,
    block_threads: int = BLOCK_THREADS,
    blocks_per_sm: int = 1,
) -> Case:
    """Rows to or from the next rank; of all ranks at once, or from one rank to another."""
    rows = rows_of(num_bytes, row_bytes)
    way = "both" if one_way is None else f"{one_way[0]}-to-{one_way[1]}"
    params: dict[str, Scalar] = {"kind": kind, "way": way, "bytes": rows[0] * rows[1], "row_bytes": rows[1]}
    name = f"{kind}/{way}/{rows[0] * rows[1]}"
    if one_way is not None:
        params |= {"source": one_way[0], "target": one_way[1]}
    if kind in BY_SMS:
        params |= {"sms": sms, "block_threads": block_threads, "blocks_per_sm": blocks_per_sm}
        name += f"/{_sms(sms, blocks_per_sm)}"
    if rows[1] != ROW_BYTES or block_threads != BLOCK_THREADS:
        name += f"/row{rows[1]}-block{block_threads}"
    return Case(name, params)


def local(kind: str, num_bytes: int, sms: int = ALL_SMS) -> Case:
    """Within the memory of each GPU."""
    num_rows, row_bytes = rows_of(num_bytes, ROW_BYTES)
    params: dict[str, Scalar] = {"kind": kind, "way": "local", "bytes": num_rows * row_bytes, "row_bytes": row_bytes}
    name = f"{kind}/local/{num_rows * row_bytes}"
    if kind in BY_SMS:
        params |= {"sms": sms, "block_threads": BLOCK_THREADS, "blocks_per_sm": 1}
        name += f"/{_sms(sms, 1)}"
    return Case(name, params)


def _round_trip(num_rounds: int) -> Case:
    return Case(
        f"{ROUND_TRIP}/0-to-1/{num_rounds}",
        {"kind": ROUND_TRIP, "way": "0-to-1", "bytes": 0, "rounds": num_rounds, "source": 0, "target": 1},
    )


def _sms(count: int, blocks_per_sm: int) -> str:
    told = "all-sms" if count == ALL_SMS else f"{count}-sms"
    return told if blocks_per_sm == 1 else f"{told}-x{blocks_per_sm}"


def rows_of(num_bytes: int, row_bytes: int) -> tuple[int, int]:
    """(rows, bytes of a row): whole rows of that size, as many as fit and one at least."""
    return (0 if num_bytes == 0 else max(1, num_bytes // row_bytes)), row_bytes


SELFTEST_SHAPES = ((0, 7168, 128, 1), (1, 14336, 512, 1), (131, 7392, 128, 7), (1021, 7168, 512, ALL_SMS))
"""Rows, bytes of a row, threads of a block, SMs: nothing, one, rows that are no multiple of 128 bytes, many."""


def selftest_cases(layout: Layout, seed: int, tier: Tier) -> tuple[Case, ...]:
    """What is checked, the same on both tiers."""
    found: list[Case] = []
    if layout.scale_up > 1:
        for kind in (*WRITES, *READS):
            for num_rows, row_bytes, block_threads, sms in SELFTEST_SHAPES:
                found.append(
                    move(kind, num_rows * row_bytes, sms=sms, row_bytes=row_bytes, block_threads=block_threads)
                )
            found.append(move(kind, 40 * ROW_BYTES, one_way=(1, 0), sms=3))
        found += [
            move("bulk-write", 17 * ROW_BYTES, one_way=(source, target), sms=2)
            for source in range(layout.scale_up)
            for target in range(layout.scale_up)
            if source != target and layout.scale_up <= MAX_PAIRED_RANKS
        ]
        found.append(_round_trip(CPU_ROUNDS if tier == "cpu" else NUM_ROUNDS))
    for kind in LOCAL:
        found += [local(kind, num_rows * ROW_BYTES, sms) for num_rows, sms in ((1, 1), (131, 7), (1021, ALL_SMS))]
    return _unique(found, seed=seed)
