"""Compiles kernels to cubins, one for each variant and architecture, and keeps them in the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from epctl.core.errors import EpctlError
from epctl.native import cache_key, processes, ptxas, toolchain
from epctl.native.cache import Cache
from epctl.native.cache_entry import Entry
from epctl.native.cache_key import Inputs
from epctl.native.families import Family, Variant
from epctl.native.nccl import Nccl
from epctl.native.ptxas import Use
from epctl.native.toolchain import Toolchain

ROOT = Path(__file__).resolve().parent
INCLUDE = ROOT / "include"
CUBIN = "kernels.cubin"
REPORT = "ptxas.json"
_LOOK_S = 0.02
FLAGS = ("-cubin", "-std=c++17", "-O3", "-lineinfo", "--ptxas-options=-v", "-Werror=all-warnings")


class Wanted(Struct, frozen=True):
    """One file to compile."""

    family: Family
    variant: Variant
    architecture: str
    """90a"""

    @property
    def name(self) -> str:
        """link-row7168-block128-90a"""
        return f"{self.family.name}-{self.variant.name}-{self.architecture}"


class Kernels(Struct, frozen=True):
    """A compiled file."""

    wanted: Wanted
    cubin: Path
    uses: tuple[Use, ...]
    built: bool
    """Compiled just now; False when it came out of the cache."""
    notice: str


def wanted(families: tuple[Family, ...], architectures: tuple[str, ...]) -> tuple[Wanted, ...]:
    """All variants of the families for all architectures."""
    return tuple(
        Wanted(family, variant, name) for family in families for variant in family.variants for name in architectures
    )


def inputs(one: Wanted, found: Nccl | None, used: tuple[str, ...]) -> Inputs:
    """What the cubin depends on; `used`: compilers with their versions."""
    sources = cache_key.sources(ROOT / one.family.source, ROOT, (INCLUDE,))
    return Inputs(sources, (*FLAGS, *_defines(one.variant)), used, _nccl(one.family, found), one.architecture)


def _defines(variant: Variant) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in variant.defines)


def _nccl(family: Family, found: Nccl | None) -> str:
    if not family.with_nccl:
        return ""
    if found is None:
        raise ValueError(f"{family.name} needs a toolchain with NCCL")
    return f"headers {found.headers.version}, library {found.library.version}"


def obtain(one: Wanted, cache: Cache, *, with_torch: bool = False) -> Kernels:
    """The cubin at first use: compiled, or out of a cache that was filled by another node when there is no compiler here. Raises
    EpctlError when there is neither, or when NCCL does not fit. `with_torch`: PyTorch shares the process."""
    found = toolchain.find_nccl(with_torch=with_torch) if one.family.with_nccl else None
    try:
        tools = structs.replace(toolchain.find((one.architecture,)), nccl=found)
    except EpctlError:
        entry = cache.like(one.name, inputs(one, found, ()))
        if entry is None:
            raise
        return _kernels(one, entry)
    return compile_one(one, tools, cache)


def compile_one(one: Wanted, tools: Toolchain, cache: Cache) -> Kernels:
    """The cubin, out of the cache or compiled now. Raises EpctlError when it does not compile, or uses local memory."""
    used = (f"nvcc {tools.nvcc.version}", f"g++ {tools.gxx.version}")
    entry = cache.get(one.name, inputs(one, tools.nccl, used), lambda out: _compile(one, tools, out))
    return _kernels(one, entry)


def _kernels(one: Wanted, entry: Entry) -> Kernels:
    uses = msgspec.json.decode(entry.file(REPORT).read_bytes(), type=tuple[Use, ...])
    return Kernels(one, entry.file(CUBIN), uses, entry.built, entry.notice)


def command(one: Wanted, tools: Toolchain, target: Path) -> tuple[str, ...]:
    """The call of nvcc."""
    nccl = (f"-I{tools.nccl.headers.include}",) if one.family.with_nccl and tools.nccl is not None else ()
    head = (tools.nvcc.path, *FLAGS, f"-arch=sm_{one.architecture}", "-ccbin", tools.gxx.path, f"-I{INCLUDE}", *nccl)
    return (*head, *_defines(one.variant), str(ROOT / one.family.source), "-o", str(target))


def _compile(one: Wanted, tools: Toolchain, out: Path) -> None:
    toolchain.check_toolkit(tools.nvcc, one.architecture)
    told = processes.run(command(one, tools, out / CUBIN), one.name, out.parent)
    uses = ptxas.parse(told)
    ptxas.check(uses, one.family.kernels, one.name, one.variant.local_bytes)
    (out / REPORT).write_bytes(msgspec.json.encode(uses))


def compile_all(
    every: tuple[Wanted, ...], tools: Toolchain, cache: Cache, step: Callable[[Kernels], None] = lambda _: None
) -> tuple[Kernels, ...]:
    """`compile_one` of each on all CPU cores; `step` is told of each that is ready. The first error, or an
    interruption, ends those that still run."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        running = {pool.submit(compile_one, one, tools, cache): one.name for one in every}
        found = {}
        try:
            for done in as_completed(running):
                found[running[done]] = done.result()
                step(found[running[done]])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(one.done() for one in running):
                processes.end_all()
                time.sleep(_LOOK_S)
            raise
    return tuple(found[one.name] for one in every)
