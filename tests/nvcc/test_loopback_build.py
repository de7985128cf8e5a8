"""The loopback plugin is built with its kernel, agrees with cuda.h, and shows NCCL its one symbol."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.native import compilers, loopback_plugin
from epctl.native.cache import Cache
from epctl.native.compilers import Nvcc
from epctl.native.toolchain import Toolchain

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

# cuda.h and the plugin's own declarations in one file: each constant is the same, and each entry of the table can be assigned from the
# driver's function with its own types.
COMPARISON = """
#include <cuda.h>
#include <type_traits>
#include "driver.hpp"
namespace mine = epctl::loopback;
static_assert(sizeof(mine::CUmemAccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(mine::CUmemAccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(offsetof(mine::CUmemAccessDesc, location_id) == offsetof(CUmemLocation, id));
static_assert(mine::kCudaSuccess == CUDA_SUCCESS && mine::kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(mine::kAttribute64BitMemOps == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
static_assert(mine::kPosixFileDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(mine::kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(mine::kReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(mine::kStreamNonBlocking == CU_STREAM_NON_BLOCKING && mine::kEventNoTiming == CU_EVENT_DISABLE_TIMING);
static_assert(mine::kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(mine::kHostPortable == CU_MEMHOSTALLOC_PORTABLE && mine::kHostMapped == CU_MEMHOSTALLOC_DEVICEMAP);
template <class A, class B> constexpr bool alike() {
    if constexpr (std::is_enum_v<A> || std::is_enum_v<B>) return sizeof(A) == sizeof(B) && sizeof(A) == sizeof(int);
    else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
        return std::is_const_v<std::remove_pointer_t<A>> == std::is_const_v<std::remove_pointer_t<B>>;
    else return std::is_integral_v<A> && std::is_integral_v<B> && sizeof(A) == sizeof(B);
}
template <class Mine, class Theirs> struct Same : std::false_type {};
template <class R, class... A, class S, class... B>
struct Same<R (*)(A...), S (*)(B...)> {
    static constexpr bool arity = sizeof...(A) == sizeof...(B);
    static constexpr bool compare() { if constexpr (arity) return alike<R, S>() && (alike<A, B>() && ...); else return false; }
    static constexpr bool value = compare();
};
#define EPCTL_COMPARE(name, parameters) static_assert(Same<decltype(mine::Driver::name), decltype(&::name)>::value, #name);
EPCTL_LOOPBACK_DRIVER(EPCTL_COMPARE)
"""


def test_the_plugin_is_built_once_and_shows_one_symbol(tools: Toolchain, cache_folder: Path) -> None:
    entry = loopback_plugin.build(Cache(cache_folder), tools.nvcc, tools.gxx)
    library = entry.file(loopback_plugin.FILE)
    assert loopback_plugin.obtain(Cache(cache_folder)) == library
    assert not loopback_plugin.build(Cache(cache_folder), tools.nvcc, tools.gxx).built
    shown = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\b(\S+)$", shown, re.M) == ["ncclRmaPlugin_v14"]
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "cudart" not in needed
    assert "libcuda" not in needed
    assert "nccl" not in needed


def test_the_kernel_is_in_it_for_each_architecture(tools: Toolchain, cache_folder: Path, tmp_path: Path) -> None:
    assert loopback_plugin.architectures(tools.nvcc) == ("90", "100")
    image = tmp_path / "image"
    subprocess.run(loopback_plugin.kernel_command(tools.nvcc, tools.gxx, image), capture_output=True, check=True)
    library = loopback_plugin.obtain(Cache(cache_folder)).read_bytes()
    assert image.stat().st_size > 1000
    magic = image.read_bytes()[:4]  # of a fat binary; the images of two calls of nvcc differ in their temporary names
    assert magic in library
    assert b"epctl_loopback_add" in library


def test_what_the_plugin_declares_of_the_driver_is_what_cuda_h_says(tools: Toolchain, tmp_path: Path) -> None:
    source = tmp_path / "comparison.cpp"
    # The headers give some functions another name by a macro, which would change the plugin's list as well.
    names = re.findall(r"X\((\w+),", (loopback_plugin.FOLDER / "driver.hpp").read_text())
    plain = "".join(f"#undef {name.removesuffix('_v2')}\n" for name in names)
    assert len(names) > 30
    before, after = COMPARISON.split('#include "driver.hpp"\n')
    source.write_text(before + plain + '#include "driver.hpp"\n' + after)
    include = compilers.include_folder(tools.nvcc.home)
    command = [
        tools.gxx.path,
        "-std=c++17",
        "-fsyntax-only",
        f"-I{include}",
        f"-I{loopback_plugin.FOLDER}",
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_toolkit_that_knows_one_architecture_alone_and_one_that_knows_none() -> None:
    assert loopback_plugin.architectures(Nvcc("/n", "/h", "12.4.1", "CUDA_HOME")) == ("90",)
    with pytest.raises(EpctlError, match="too old"):
        loopback_plugin.architectures(Nvcc("/n", "/h", "11.8", "CUDA_HOME"))


def test_a_node_without_a_compiler_takes_what_another_one_built(
    tools: Toolchain, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = loopback_plugin.build(Cache(cache_folder), tools.nvcc, tools.gxx).file(loopback_plugin.FILE)
    monkeypatch.setattr(compilers, "_toolkits", lambda: iter(()))
    assert loopback_plugin.obtain(Cache(cache_folder)) == made
    with pytest.raises(EpctlError, match="no CUDA compiler"):
        loopback_plugin.obtain(Cache(tmp_path))
