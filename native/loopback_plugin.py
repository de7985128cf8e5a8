"""The RMA plugin that carries NCCL's GIN between processes of one machine: built at first use, kept in the cache.

Its host part is made with g++ and declares what it uses of NCCL and the CUDA driver itself; nvcc makes the one kernel, which the
assembler puts into the library. So one file runs with every NCCL that knows version 14 of the interface (2.30.7 to 2.32)."""

from __future__ import annotations

from pathlib import Path

from epctl.core.errors import EpctlError
from epctl.native import cache_key, compilers, ptxas, toolchain
from epctl.native.cache import Cache
from epctl.native.cache_entry import Entry
from epctl.native.cache_key import Inputs
from epctl.native.compilers import Gxx, Nvcc
from epctl.native.kernels import ROOT
from epctl.native.processes import run

NAME = "loopback"
FILE = "libepctl-loopback.so"
FOLDER = ROOT / "loopback"
KERNEL_SOURCE = FOLDER / "signals.cu"
EXPORTS = FOLDER / "exports.map"
KERNELS = ("epctl_loopback_add",)
IMAGE = "signals.fatbin"
KERNEL_FLAGS = ("-fatbin", "-std=c++17", "-O3", "--ptxas-options=-v", "-Werror=all-warnings")
FLAGS = ("-shared", "-fPIC", "-std=c++17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
LINK_FLAGS = ("-Wl,-soname," + FILE, "-Wl,-z,defs", "-pthread", "-ldl")


def sources() -> tuple[Path, ...]:
    """The files for g++, by name."""
    return tuple(sorted(FOLDER.glob("*.cpp")))


def architectures(nvcc: Nvcc) -> tuple[str, ...]:
    """`90`, `100`: what the kernel is compiled for, as far as the toolkit knows it. Raises EpctlError when it knows none."""
    found: list[str] = []
    refused: EpctlError | None = None
    for name in toolchain.MIN_NVCC:
        try:
            toolchain.check_toolkit(nvcc, name)
        except EpctlError as error:
            refused = error
            continue
        found.append(name.rstrip("a"))  # nothing in it is specific to one GPU
    if not found and refused is not None:
        raise refused
    return tuple(found)


def kernel_command(nvcc: Nvcc, gxx: Gxx, target: Path) -> tuple[str, ...]:
    """The call of nvcc for the kernel."""
    codes = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures(nvcc)]
    return (nvcc.path, *KERNEL_FLAGS, *codes, "-ccbin", gxx.path, str(KERNEL_SOURCE), "-o", str(target))


def host_command(gxx: Gxx, image: Path, target: Path) -> tuple[str, ...]:
    """The call of g++ for the library; `image`: the kernel, compiled."""
    define = f'-DEPCTL_LOOPBACK_IMAGE="{image}"'
    files = tuple(str(source) for source in sources())
    return (gxx.path, *FLAGS, define, *files, "-o", str(target), f"-Wl,--version-script={EXPORTS}", *LINK_FLAGS)


def inputs(used: tuple[str, ...], architecture: str) -> Inputs:
    """What the library depends on; `used`: compilers with their versions."""
    found = dict(cache_key.sources(KERNEL_SOURCE, ROOT, ()))
    for source in (*sources(), EXPORTS):
        found.update(cache_key.sources(source, ROOT, ()))
    return Inputs(tuple(found.items()), (*KERNEL_FLAGS, *FLAGS, *LINK_FLAGS), used, architecture=architecture)


def build(cache: Cache, nvcc: Nvcc | None = None, gxx: Gxx | None = None) -> Entry:
    """The plugin, out of the cache or compiled now. Raises EpctlError."""
    nvcc = compilers.find_nvcc() if nvcc is None else nvcc
    gxx = compilers.find_gxx() if gxx is None else gxx
    toolchain.check_host(nvcc, gxx)

    def compile_it(out: Path) -> None:
        image = out.parent / IMAGE
        told = run(kernel_command(nvcc, gxx, image), NAME, out.parent)
        ptxas.check(ptxas.parse(told), KERNELS, NAME)
        run(host_command(gxx, image, out / FILE), NAME, out.parent)

    used = (f"nvcc {nvcc.version}", f"g++ {gxx.version}")
    return cache.get(NAME, inputs(used, ",".join(architectures(nvcc))), compile_it)


def obtain(cache: Cache | None = None) -> Path:
    """Path of the plugin: built, or what another node has built where there is no compiler here. Raises EpctlError when there is
    neither."""
    cache = Cache() if cache is None else cache
    try:
        entry = build(cache)
    except EpctlError:
        everything = ",".join(name.rstrip("a") for name in toolchain.MIN_NVCC)
        found = cache.like(NAME, inputs((), everything))
        if found is None:
            raise
        entry = found
    return entry.file(FILE)
