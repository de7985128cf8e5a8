"""Python, PyTorch, NCCL and its plugins, NVSHMEM, DeepEP, compilers: the documents of the collectors `python` and `toolchain`."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.software import (
    DeepEp,
    Distribution,
    JitCache,
    NetPlugin,
    Root,
    SharedLibrary,
    SoftwareArea,
    Toolchain,
)
from epctl.probes.documents import flag, integer, items, member, name_of, text, texts
from epctl.probes.source import Source

LIMITS_S = {"python": 20.0, "toolchain": 20.0}
"""Collector → seconds: interpreters on a network file system start slowly."""

Origin = Literal["loaded", "package", "loader", "root"]
_ORIGINS = get_args(Origin)


def software(source: Source) -> SoftwareArea:
    """Facts of the examined interpreter and of the compilers."""
    python = source.document("python", LIMITS_S["python"])
    torch, used = member(python, "torch"), member(python, "nccl_effective")
    nccl = items(python, "nccl", _library)
    effective = text(used, "path")
    return SoftwareArea(
        python_version=text(python, "python"),
        python_executable=text(python, "executable"),
        glibc_version=text(python, "glibc"),
        distributions=items(python, "distributions", _distribution),
        torch_version=text(torch, "version"),
        torch_cuda=text(torch, "cuda"),
        torch_nccl_pin=text(torch, "nccl_pin"),
        nccl=nccl,
        nccl_effective=text(used, "version"),
        nccl_effective_path=effective,
        nccl_headers=text(used, "headers"),
        nccl_gin_get=flag(used, "gin_get"),
        nccl_gin_warp_get=flag(used, "gin_warp_get"),
        nccl_genk=flag(used, "genk"),
        nvshmem=items(python, "nvshmem", _library),
        net_plugins=items(python, "net_plugins", _plugin),
        roots=_plain(items(python, "roots", _root)),
        deep_ep=items(python, "deep_ep", _deep_ep),
        toolchain=_toolchain(source.document("toolchain", LIMITS_S["toolchain"])),
        jit_caches=items(python, "jit_caches", _jit_cache),
        notes=_notes(nccl, effective),
    )


def _notes(nccl: Fact[tuple[SharedLibrary, ...]], effective: Fact[str]) -> tuple[str, ...]:
    """The loader's first libnccl is not the one that PyTorch takes."""
    if not isinstance(nccl, tuple) or not isinstance(effective, str):
        return ()
    first = next((entry for entry in nccl if entry.origin == "loader" and entry.first), None)
    if first is None or first.real_path == effective:
        return ()
    return (f"nccl: the loader finds {first.real_path}, PyTorch takes {effective}",)


def _plain(found: Fact[tuple[Root, ...]]) -> tuple[Root, ...]:
    return () if isinstance(found, Absent) else found


def _distribution(entry: Any) -> Distribution | None:  # noqa: ANN401 - JSON
    name, version = name_of(entry, "name"), name_of(entry, "version")
    return Distribution(name, version) if name else None


def _library(entry: Any) -> SharedLibrary | None:  # noqa: ANN401 - JSON
    origin, path = name_of(entry, "origin"), name_of(entry, "path")
    if origin not in _ORIGINS or not path:
        return None
    return SharedLibrary(
        origin=cast(Origin, origin),
        path=path,
        real_path=name_of(entry, "real_path") or path,
        version=text(entry, "version"),
        sha256=text(entry, "sha256"),
        first=flag(entry, "first") is True,
    )


def _plugin(entry: Any) -> NetPlugin | None:  # noqa: ANN401 - JSON
    name, path = name_of(entry, "name"), name_of(entry, "path")
    if not name or not path:
        return None
    return NetPlugin(name, path, text(entry, "version"), texts(entry, "missing"), text(entry, "glibc_needed"))


def _root(entry: Any) -> Root | None:  # noqa: ANN401 - JSON
    variable, path = name_of(entry, "variable"), name_of(entry, "path")
    if not variable or not path:
        return None
    headers = flag(entry, "has_device_headers")
    return Root(variable, path, flag(entry, "has_include"), flag(entry, "has_lib"), headers)


def _deep_ep(entry: Any) -> DeepEp | None:  # noqa: ANN401 - JSON
    distribution = name_of(entry, "distribution")
    if not distribution:
        return None
    return DeepEp(
        distribution=distribution,
        version=name_of(entry, "version"),
        path=text(entry, "path"),
        nccl_built=text(entry, "nccl_built"),
        torch_built=text(entry, "torch_built"),
        undefined_nccl_symbols=texts(entry, "undefined_nccl_symbols"),
        needed_missing=texts(entry, "needed_missing"),
        release=text(entry, "release"),
        warp_get=flag(entry, "warp_get"),
    )


def _jit_cache(entry: Any) -> JitCache | None:  # noqa: ANN401 - JSON
    owner, path = name_of(entry, "owner"), name_of(entry, "path")
    if not owner or not path:
        return None
    return JitCache(
        owner,
        path,
        flag(entry, "exists"),
        text(entry, "filesystem"),
        flag(entry, "writable"),
        integer(entry, "entries"),
    )


def _toolchain(document: Any) -> Toolchain:  # noqa: ANN401 - JSON
    return Toolchain(
        cuda_home=text(document, "cuda_home"),
        cuda_home_origin=name_of(document, "cuda_home_origin"),
        nvcc=text(document, "nvcc"),
        nvcc_version=text(document, "nvcc_version"),
        gxx=text(document, "gxx"),
        gxx_version=text(document, "gxx_version"),
        nvcc_ccbin=text(document, "nvcc_ccbin"),
        cxx_format=flag(document, "cxx_format"),
        libdwfl_header=flag(document, "libdwfl_header"),
        libdw=flag(document, "libdw"),
        has_cuda_runtime_h=flag(document, "has_cuda_runtime_h"),
        has_cccl=flag(document, "has_cccl"),
        usr_local_cuda=text(document, "usr_local_cuda"),
        cpath_cuda_versions=texts(document, "cpath_cuda_versions"),
    )
