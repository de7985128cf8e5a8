"""Compiles ahead of time, on any machine: all kernels of the chosen ops and architectures, the host extensions and the loopback plugin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct, structs
from packaging.version import Version

from epctl.core.errors import EpctlError
from epctl.native import families, host_extension, kernels, loopback_plugin, toolchain
from epctl.native.cache import Cache
from epctl.native.cache_entry import Entry
from epctl.native.compilers import Gxx, Nvcc
from epctl.native.families import BARRIER, Family
from epctl.native.nccl import Nccl
from epctl.native.ptxas import Use
from epctl.native.toolchain import Toolchain


class Request(Struct, frozen=True):
    """What to compile."""

    architectures: tuple[str, ...] = ()
    """As the user writes them; all that the toolkit knows without any."""
    ops: tuple[str, ...] = ()
    """All without any. What every op needs beside its kernels is made in any case."""


class Row(Struct, frozen=True):
    """One compiled thing."""

    name: str
    architecture: str
    """90a; '' for what runs on the host."""
    bytes: int
    built: bool
    """False when the cache had it."""
    path: str
    kernels: tuple[Use, ...] = ()
    kind: str = "kernels"
    """kernels, host extension, RMA plugin"""


class Built(Struct, frozen=True):
    """What was compiled with what."""

    nvcc: Nvcc
    gxx: Gxx
    cache: str
    """Folder of the cache; '' where there is none."""
    rows: tuple[Row, ...]
    notices: tuple[str, ...]


class Cached(Struct, frozen=True):
    """One entry of the cache, as --list shows it."""

    name: str
    architecture: str
    compilers: tuple[str, ...]
    nccl: str
    bytes: int
    made_s: float
    path: str


class Listing(Struct, frozen=True):
    """What is in the cache."""

    cache: str
    entries: tuple[Cached, ...]
    broken: tuple[str, ...]
    """Folders of entries that are not whole; they are made anew when they are needed."""


Step = Callable[[int, int, str], None]
"""Called with (done, all, what is ready)."""


def build(request: Request, step: Step = lambda *_: None, cache: Cache | None = None) -> Built:
    """Compiles what `request` names. Raises EpctlError for the first thing that cannot be compiled."""
    cache = Cache() if cache is None else cache
    chosen = _chosen(request.ops)
    host_extension.requirements()
    names = tuple(dict.fromkeys(map(toolchain.architecture, request.architectures)))
    tools = toolchain.find(names)
    nccl, without = _nccl(chosen)
    tools = structs.replace(tools, nccl=nccl)
    notices: list[str] = [f"passed over {text}" for text in (*tools.nvcc.passed_over, *tools.gxx.passed_over)]
    notices += [without] if without else []
    if not names:
        names = known(tools)
        notices += [
            f"CUDA {tools.nvcc.version} cannot compile for {name}" for name in toolchain.MIN_NVCC if name not in names
        ]
    wanted = kernels.wanted(chosen, names)
    others = _others(cache, tools)
    count, done = len(wanted) + len(others), 0

    def stepped(name: str) -> None:
        nonlocal done
        done += 1
        step(done, count, name)

    made = kernels.compile_all(wanted, tools, cache, lambda one: stepped(one.wanted.name))
    rows = [_row(one) for one in made]
    told = [one.notice for one in made]
    for other in others:
        entry = other.make()
        stepped(other.name)
        path = entry.file(other.file)
        rows.append(Row(other.name, "", path.stat().st_size, entry.built, str(path), kind=other.kind))
        told.append(entry.notice)
    notices += dict.fromkeys(filter(None, told))
    return Built(tools.nvcc, tools.gxx, _folder(cache), tuple(rows), tuple(notices))


def _chosen(ops: tuple[str, ...]) -> tuple[Family, ...]:
    """The families of the ops, and the barrier, which every communicator has. Raises EpctlError."""
    found = families.select(ops)
    return found if BARRIER in found else (*found, BARRIER)


def _nccl(chosen: tuple[Family, ...]) -> tuple[Nccl | None, str]:
    """NCCL, or why what needs it is left out. Raises EpctlError when kernels need it."""
    try:
        return toolchain.find_nccl(with_torch=False), ""
    except EpctlError as error:
        if any(family.with_nccl for family in chosen):
            raise
        return None, f"the extension for communicators is left out: {error.what} ({error.why})"


class _Other(Struct, frozen=True):
    """Something beside kernels."""

    name: str
    kind: str
    file: str
    make: Callable[[], Entry]


def _others(cache: Cache, tools: Toolchain) -> tuple[_Other, ...]:
    """The host extensions, and the plugin for --emulate-nodes."""
    extensions = [(host_extension.HOST, None), *([(host_extension.NCCL, tools.nccl)] if tools.nccl is not None else [])]
    return (
        *(
            _Other(
                one.name,
                "host extension",
                host_extension.file_name(one),
                partial(host_extension.build, cache, tools.gxx, one, nccl),
            )
            for one, nccl in extensions
        ),
        _Other(
            loopback_plugin.NAME,
            "RMA plugin for --emulate-nodes",
            loopback_plugin.FILE,
            partial(loopback_plugin.build, cache, tools.nvcc, tools.gxx),
        ),
    )


def known(tools: Toolchain) -> tuple[str, ...]:
    """The architectures that the toolkit is new enough for. Raises EpctlError when it is too old for all."""
    version = Version(tools.nvcc.version)
    found = tuple(name for name, floor in toolchain.MIN_NVCC.items() if version >= Version(floor))
    if not found:
        toolchain.check_toolkit(tools.nvcc, min(toolchain.MIN_NVCC, key=lambda name: Version(toolchain.MIN_NVCC[name])))
    return found


def listing(cache: Cache | None = None) -> Listing:
    """What the cache holds; no compiler is needed for it."""
    cache = Cache() if cache is None else cache
    found = tuple(_cached(entry) for entry in cache.entries())
    return Listing(_folder(cache), found, tuple(map(str, cache.broken())))


def compilers_line(built: Built) -> str:
    """nvcc 13.0.88 (CUDA_HOME), g++ 13.3.0 (PATH)"""
    return f"nvcc {built.nvcc.version} ({built.nvcc.origin}), g++ {built.gxx.version} ({built.gxx.origin})"


def _folder(cache: Cache) -> str:
    return str(cache.folder) if cache.folder is not None else ""


def _row(one: kernels.Kernels) -> Row:
    size = one.cubin.stat().st_size
    return Row(one.wanted.name, one.wanted.architecture, size, one.built, str(one.cubin), one.uses)


def _cached(entry: Entry) -> Cached:
    manifest = entry.manifest
    return Cached(
        manifest.name,
        manifest.inputs.architecture,
        manifest.inputs.compilers,
        manifest.inputs.nccl,
        sum(file.bytes for file in manifest.files.values()),
        manifest.made_s,
        str(entry.folder),
    )
