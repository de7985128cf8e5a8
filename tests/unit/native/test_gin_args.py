"""The GIN kernels' structs: Python packs what the C++ header says, told by a program compiled against NCCL's headers."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.errors import EpctlError
from epctl.native import compilers, nccl
from epctl.native.communicator import GIN_TYPES
from epctl.native.gin_args import FOUND_BYTES, KERNELS, GinArgs, GinBarrier, GinFlag, GinFound, pack_describe
from epctl.native.gin_family import GIN, variant
from epctl.native.kernels import INCLUDE, ROOT
from epctl.native.peers import Limits, Peers

PROGRAM = """
#include <cstdio>
#include <cstring>
#include "epctl/ops/gin_args.h"
using namespace epctl;
template <class T> void tell(T& thing) {
    std::memset(&thing.comm, 0xC5, sizeof thing.comm);
    std::fwrite(&thing, sizeof(T), 1, stdout);
}
template <class T> T* at(unsigned long address) { return reinterpret_cast<T*>(address); }
int main() {
    const unsigned long size = sizeof(ncclDevComm);
    std::fwrite(&size, 8, 1, stdout);
    static GinArgs args{};
    args.window = at<ncclWindow_vidmem>(1); args.source_offset = 2; args.target_offset = 3; args.num_bytes = 4;
    args.slot_bytes = 5; args.num_slots = 6; args.num_messages = 7; args.num_expected = 8; args.begin = 9; args.value = 10;
    args.elapsed_ns = at<uint64_t>(11); args.to = 12; args.from = 13; args.signal = 14;
    args.flags = kGinStrong | kGinServes; args.batch = 15;
    args.limits.record = at<WaitRecord>(16); args.limits.given_up = at<uint32_t>(18); args.limits.timeout_ms = 1500;
    args.limits.rank = 17;
    tell(args);
    static GinBarrierArgs barrier{};
    barrier.peers.base[0] = at<uint8_t>(100); barrier.peers.base[1] = at<uint8_t>(200);
    barrier.peers.num_ranks = 2; barrier.peers.rank = 1; barrier.flags_offset = 64; barrier.round = 5; barrier.signal = 3;
    barrier.num_domains = 4; barrier.limits = args.limits; barrier.limits.rank = 5;
    tell(barrier);
    static GinDescribeArgs describe{};
    describe.found = at<GinFound>(77);
    tell(describe);
    GinFound found{8, 2, {3, 3, 0, 0}, 20, 4, 1, 0};
    std::fwrite(&found, sizeof found, 1, stdout);
    std::printf("%u %u %u %u", kGinStrong, kGinAdd, kGinServes, kGinDrop);
}
"""
LIMITS = Limits(16, 18, 1.5, 17)


def args(**more: int) -> GinArgs:
    return GinArgs(1, 11, 12, LIMITS, **more)  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_bytes(tmp_path: Path) -> None:
    try:
        include, cuda = nccl.find().headers.include, compilers.include_folder(compilers.find_nvcc().home)
    except EpctlError as error:
        pytest.skip(f"{error.what}: {error.why}")
    program = tmp_path / "p"
    folders = [f"-I{INCLUDE}", f"-isystem{include}", f"-isystem{cuda}"]
    argv = ["g++", "-std=c++17", "-Wall", "-Werror", *folders, "-x", "c++", "-", "-o", str(program)]
    subprocess.run(argv, input=PROGRAM.encode(), check=True)
    told = subprocess.run([str(program)], capture_output=True, check=True).stdout
    (size,) = struct.unpack("<Q", told[:8])
    comm = b"\xc5" * size
    flags = GinFlag.STRONG | GinFlag.SERVES
    first = GinArgs(1, 11, 12, LIMITS, 13, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, flags, 15).pack(comm)
    where = GinBarrier(Peers((100, 200), 1), 64, 3, 4)
    second = where.pack(comm, 5, Limits(16, 18, 1.5, 5))
    third = pack_describe(comm, 77)
    assert told[8:].startswith(first + second + third)
    rest = told[8 + len(first + second + third) :]
    assert GinFound.read(rest[:FOUND_BYTES]) == GinFound(8, (3, 3), 20, 4, True)
    assert rest[FOUND_BYTES:] == " ".join(str(flag.value) for flag in GinFlag).encode()


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"num_slots": 0}, {"num_messages": -1}, {"num_slots": 2, "num_bytes": 9, "slot_bytes": 8}],
)
def test_what_would_hang_or_overwrite_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"batch|overlap"):
        args(**wrong)


@pytest.mark.parametrize("comm", [b"", b"123"])
def test_a_device_communicator_is_a_struct_of_words(comm: bytes) -> None:
    with pytest.raises(ValueError, match="no device communicator"):
        args().pack(comm)


@given(
    st.integers(1, 16),
    st.integers(1, 50),
    st.integers(0, 4096),
    st.integers(0, 4096).filter(lambda more: more % 2 == 0),
)
def test_the_last_message_of_the_last_context_ends_the_region(contexts: int, slots: int, size: int, more: int) -> None:
    made = args(num_bytes=size, slot_bytes=size + more, num_slots=slots)
    ends = [
        (context * slots + idx % slots) * (size + more) + size
        for context in range(contexts)
        for idx in range(2 * slots)
    ]
    assert made.num_bytes_of(contexts) == max(ends)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_signals_may_wrap(begin: int, value: int) -> None:
    packed = args(begin=begin + 2**64, value=value).pack(bytes(8))
    assert struct.unpack_from("<QQ", packed, 8 + 64) == (begin, value)


@pytest.mark.parametrize(("rank", "round_idx"), [(4, 1), (8, 1), (-1, 1), (5, 0)])
def test_a_barrier_knows_its_ranks(rank: int, round_idx: int) -> None:
    with pytest.raises(ValueError, match="barrier"):
        GinBarrier(Peers((1, 2), 1), 0, 0, 4).pack(bytes(8), round_idx, Limits(0, 0, 1.0, rank))


def test_kernels_are_those_of_the_source() -> None:
    text = (ROOT / GIN.source).read_text()
    assert all(f"{name}(" in text or f"({name})" in text for name in KERNELS)
    assert text.count("__launch_bounds__") == 1 + 2  # the macro's, the barrier's and the description's


def test_a_variant_for_each_type_that_there_are_kernels_for() -> None:
    assert {name: variant(name).defines for name in GIN_TYPES} == {
        name: (("EPCTL_GIN_TYPE", number),) for name, number in GIN_TYPES.items()
    }
    assert {name for name in GIN_TYPES if variant(name).local_bytes} == {"efa_gda"}  # NCCL's header needs it, no other
    with pytest.raises(EpctlError, match="no kernels for GIN type gpi") as refused:
        variant("gpi")
    assert refused.value.exit_code == 4
