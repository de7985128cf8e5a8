"""What the link kernels do on two real GPUs, bit by bit against PyTorch, and how fast they were (shown with -s)."""

from __future__ import annotations

import faulthandler
import itertools
import os
import time
import zlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from epctl.native.families import LINK, Variant
from tests.support.gpus import Tensor
from tests.support.link_rig import (
    ALIGNED_GUARD_BYTES,
    GUARD_BYTES,
    PingPong,
    Rig,
    Rows,
    block_threads,
    link_bytes,
    rig_or_skip,
    row_bytes,
)

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
TEST_S = 60.0
BUILD_S = 150.0
SPEED_BYTES = 1 << 29
"""Ten times the L2 cache of an H200."""
VARIANTS = pytest.mark.parametrize("variant", LINK.variants, ids=[one.name for one in LINK.variants])
# GPU that runs, GPU of the target, GPU of the source.
PLACES = {"local": (0, 0, 0), "write": (0, 1, 0), "read": (0, 0, 1), "write-back": (1, 0, 1), "read-back": (1, 1, 0)}
WHERE = pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
SHAPES = ((1, 1), (40, 1), (131, 7), (5003, 0))
"""Rows and blocks; 0: as many blocks as the GPU runs at once."""


@pytest.fixture(scope="module")
def stderr(pytestconfig: pytest.Config) -> Iterator[int]:
    """Standard error as it is outside of pytest's capture: a process that ends itself shows nothing of what is captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        copy = os.dup(2)
    yield copy
    os.close(copy)


@pytest.fixture(scope="module")
def rig(stderr: int) -> Rig:
    faulthandler.dump_traceback_later(BUILD_S, exit=True, file=stderr)
    try:
        return rig_or_skip()
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def limit(rig: Rig, stderr: int) -> Iterator[None]:
    """A kernel that hangs would hang all that follows: the process ends and tells where it was."""
    faulthandler.dump_traceback_later(TEST_S, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Iterator[int]:
    """Other data for each test and buffer, the same in each run."""
    return itertools.count(zlib.crc32(request.node.name.encode()))


def run(rig: Rig, function: str, variant: Variant, device_idx: int, grid: int, arguments: bytes) -> None:
    rig.settle()
    rig.launch(function, variant, device_idx, grid or rig.full_grid(function, variant), arguments)
    rig.settle()


@VARIANTS
@WHERE
@pytest.mark.parametrize("function", ["bulk_copy", "vector_copy"])
def test_copies(rig: Rig, seeds: Iterator[int], function: str, where: tuple[int, int, int], variant: Variant) -> None:
    runs, to, of = where
    for num_rows, grid in SHAPES:
        size = num_rows * row_bytes(variant)
        source, target = Rows(rig, of, size, next(seeds)), Rows(rig, to, size, next(seeds))
        wanted = source.body.clone()
        args = link_bytes(num_rows, target=target.address, source=source.address)
        run(rig, function, variant, runs, grid, args)
        target.expect(wanted)
        source.expect(wanted)


@VARIANTS
@WHERE
def test_pull_and_add(rig: Rig, seeds: Iterator[int], where: tuple[int, int, int], variant: Variant) -> None:
    """All bit patterns of BF16: with infinities, NaNs and subnormal numbers."""
    torch = rig.torch
    runs, to, of = where
    for num_rows, grid in SHAPES:
        size = num_rows * row_bytes(variant)
        remote, local = Rows(rig, of, size, next(seeds)), Rows(rig, runs, size, next(seeds))
        target = Rows(rig, to, size, next(seeds))
        one, other = (rows.body.to(f"cuda:{to}").view(torch.bfloat16) for rows in (remote, local))
        wanted = (one.float() + other.float()).bfloat16()
        args = link_bytes(num_rows, target=target.address, source=remote.address, addend=local.address)
        run(rig, "pull_add", variant, runs, grid, args)
        nan = wanted.isnan()
        found = target.body.view(torch.bfloat16)
        assert torch.equal(found.isnan(), nan)
        target.expect(torch.where(nan, found, wanted).view(torch.uint8))
        assert num_rows < 100 or bool(nan.any())


def expected_sums(torch: ModuleType, body: Tensor, num_threads: int) -> Tensor:
    """Vector i is read by thread i modulo their number; each adds up its words modulo 2³²."""
    vectors = body.view(torch.int32).to(torch.int64).view(-1, 4).sum(1)
    vectors = torch.nn.functional.pad(vectors, (0, -vectors.numel() % num_threads))
    return vectors.view(-1, num_threads).sum(0) & 0xFFFFFFFF


@VARIANTS
@pytest.mark.parametrize("of", [0, 1], ids=["local", "peer"])
def test_reads(rig: Rig, seeds: Iterator[int], of: int, variant: Variant) -> None:
    torch = rig.torch
    for num_rows, grid in SHAPES:
        grid = grid or rig.full_grid("read", variant)
        num_threads = grid * block_threads(variant)
        source = Rows(rig, of, num_rows * row_bytes(variant), next(seeds))
        sums = Rows(rig, 0, num_threads * 4, next(seeds))
        args = link_bytes(num_rows, source=source.address, sums=sums.address)
        run(rig, "read", variant, 0, grid, args)
        wanted = expected_sums(torch, source.body, num_threads).to(torch.int32)
        sums.expect(wanted.view(torch.uint8))


@VARIANTS
@pytest.mark.parametrize("to", [0, 1], ids=["local", "peer"])
def test_writes(rig: Rig, seeds: Iterator[int], to: int, variant: Variant) -> None:
    torch = rig.torch
    for num_rows, grid in SHAPES:
        pattern = next(seeds) | 0xFFFF0000  # wraps around within the rows
        target = Rows(rig, to, num_rows * row_bytes(variant), next(seeds))
        run(rig, "write", variant, 0, grid, link_bytes(num_rows, target=target.address, pattern=pattern & 0xFFFFFFFF))
        words = torch.arange(target.body.numel() // 4, dtype=torch.int64, device=f"cuda:{to}") + pattern
        target.expect(words.to(torch.int32).view(torch.uint8))


@pytest.mark.parametrize("begin", [0, (1 << 63) - 300, (1 << 64) - 300], ids=["new", "signed-wrap", "wrap"])
@pytest.mark.parametrize("num_rounds", [0, 1, 1000])
def test_ping_pong(rig: Rig, begin: int, num_rounds: int) -> None:
    game = PingPong(rig, LINK.variants[0], begin)
    for rank in (1, 0):
        game.start(rank, num_rounds, timeout_s=5.0)
    rig.settle()
    assert [game.timeout(rank) for rank in range(2)] == [None, None]
    assert [game.flag(rank) for rank in range(2)] == [(begin + num_rounds) % (1 << 64)] * 2
    assert game.elapsed_ns(0) >= 0
    assert game.elapsed_ns(1) >= 0
    if num_rounds == 1000:
        print(f"\nping-pong: {game.elapsed_ns(0) / num_rounds:.0f} ns for a round, {num_rounds} rounds")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_peer_that_never_answers(rig: Rig, rank: int) -> None:
    game = PingPong(rig, LINK.variants[0], 7)
    begin = time.monotonic()
    game.start(rank, 20, timeout_s=0.5)
    rig.settle(2.0)
    assert 0.5 <= time.monotonic() - begin < 1.0
    told = game.timeout(rank)
    assert told is not None
    assert 0.5 <= told.waited_s < 0.6
    signal = ("pong", "ping")[rank]
    assert str(told) == (
        f"rank {rank} waited {told.waited_s:.3g} s for rank {1 - rank}'s {signal} signal in link latency, after 0 rounds: "
        "it stood at 7 and should have reached 8"
    )
    assert (told.block_idx, told.thread_idx) == (0, 0)
    assert game.timeout(1 - rank) is None
    assert game.elapsed_ns(rank) == -1
    assert game.flag(1 - rank) == (8, 7)[rank]


def test_a_peer_that_falls_silent(rig: Rig) -> None:
    game = PingPong(rig, LINK.variants[0], 100)
    game.start(1, 10, timeout_s=2.0)
    game.start(0, 20, timeout_s=0.3)
    rig.settle(4.0)
    told = game.timeout(0)
    assert told is not None
    assert (told.progress, told.seen, told.expected) == (10, 110, 111)
    assert game.timeout(1) is None
    assert (game.elapsed_ns(0), game.elapsed_ns(1) > 0) == (-1, True)


def test_a_rank_that_has_given_up_waits_for_nothing_more(rig: Rig) -> None:
    game = PingPong(rig, LINK.variants[0], 0)
    game.start(0, 1, timeout_s=0.05)
    rig.settle(2.0)
    first = game.timeout(0)
    game.start(0, 1, timeout_s=10.0)
    assert rig.settle(5.0) < 1.0
    assert first is not None
    assert game.timeout(0) == first


def speeds(variant: Variant, local: Rows, peer: Rows, spare: Rows, sums: int) -> Iterator[tuple[str, str, bytes]]:
    """(what, kernel, arguments). The last one leaves a copy of `local` in `peer`."""
    num_rows = SPEED_BYTES // row_bytes(variant)
    mine, theirs = local.address, peer.address
    yield "write", "write", link_bytes(num_rows, target=theirs, pattern=1)
    yield "read", "read", link_bytes(num_rows, source=theirs, sums=sums)
    yield "pull and add", "pull_add", link_bytes(num_rows, target=spare.address, source=theirs, addend=mine)
    for kernel in ("bulk_copy", "vector_copy"):
        yield "copy from peer", kernel, link_bytes(num_rows, target=spare.address, source=theirs)
        yield "copy to peer", kernel, link_bytes(num_rows, target=theirs, source=mine)


@VARIANTS
@pytest.mark.parametrize("guard_bytes", [ALIGNED_GUARD_BYTES, GUARD_BYTES], ids=["aligned128", "aligned16"])
def test_speed_is_told(rig: Rig, variant: Variant, guard_bytes: int) -> None:
    torch = rig.torch
    local, peer, spare = (
        Rows(rig, device_idx, SPEED_BYTES, seed, guard_bytes) for seed, device_idx in enumerate((0, 1, 0))
    )
    sums = torch.empty(1 << 20, dtype=torch.int32, device="cuda:0")
    num_bytes = SPEED_BYTES // row_bytes(variant) * row_bytes(variant)
    told = []
    for what, kernel, arguments in speeds(variant, local, peer, spare, sums.data_ptr()):
        rig.settle()
        full = rig.full_grid(kernel, variant)
        rates = [
            f"{num_bytes / rig.median_ms(kernel, variant, grid, arguments) / 1e6:.0f} ({grid} blocks)"
            for grid in (full, full // rig.num_sms * 24)
        ]
        told.append(f"  {variant.name} {what}, {kernel}: {', '.join(rates)} GB/s")
    assert torch.equal(peer.body[:num_bytes].to("cuda:0"), local.body[:num_bytes])
    print(f"\nat {local.address % 128} bytes modulo 128, {num_bytes} bytes:", *told, sep="\n")
