"""The host extensions: built with g++ and pybind11 at first use, for the interpreter that runs, and imported from the cache."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.native import cache_key, compilers, toolchain
from epctl.native.cache import Cache
from epctl.native.cache_entry import Entry
from epctl.native.cache_key import Inputs
from epctl.native.compilers import Gxx
from epctl.native.kernels import ROOT
from epctl.native.nccl import Nccl
from epctl.native.processes import run

NAME = "host"
FLAGS = ("-shared", "-fPIC", "-std=c++17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-ldl",)


class Extension(Struct, frozen=True):
    """A module of C++ that Python imports."""

    module: str
    name: str
    """In the cache."""
    sources: tuple[str, ...]
    """Below native/."""


HOST = Extension("epctl_host", NAME, ("host/module.cpp", "host/driver.cpp"))
"""Cubins and kernels; nothing of CUDA or NCCL is needed to build it."""
NCCL = Extension("epctl_nccl", "nccl", ("host/nccl_module.cpp", "host/nccl.cpp", "host/driver.cpp"))
"""Communicators; built against NCCL's headers, which include the toolkit's."""


def pybind11_folders() -> tuple[str, str]:
    """(folder of pybind11's headers, its version). Raises EpctlError where it is not installed."""
    try:
        import pybind11
    except ImportError as error:
        raise EpctlError(
            "pybind11 is not installed",
            f"the host extension is made with it ({error})",
            "pip install 'epctl[gpu]', or pip install pybind11",
            exit_code=4,
        ) from None
    return pybind11.get_include(), pybind11.__version__


def python_include() -> str:
    """Folder of Python.h. Raises EpctlError where the interpreter came without."""
    folder = sysconfig.get_path("include")
    if not Path(folder, "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise EpctlError(
            "Python's headers are not installed",
            f"{folder} has no Python.h",
            f"install them (apt install python{version}-dev, dnf install python{version}-devel)",
            exit_code=4,
        )
    return folder


def requirements() -> None:
    """Raises EpctlError when pybind11 or Python's headers are missing: better before minutes of compiling than after."""
    pybind11_folders()
    python_include()


def file_name(one: Extension = HOST) -> str:
    """epctl_host.cpython-312-x86_64-linux-gnu.so"""
    return one.module + str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def inputs(used: tuple[str, ...], one: Extension = HOST, nccl: Nccl | None = None) -> Inputs:
    """What the extension depends on; `used`: compiler and pybind11 with their versions."""
    found: dict[str, str] = {}
    for source in one.sources:
        found.update(cache_key.sources(ROOT / source, ROOT, ()))
    interpreter = f"{sys.implementation.name} {sys.version.split()[0]} {file_name(one)}"
    versions = f"headers {nccl.headers.version}" if nccl is not None else ""
    return Inputs(tuple(found.items()), (*FLAGS, *LIBRARIES, interpreter), used, versions)


def build(cache: Cache, gxx: Gxx | None = None, one: Extension = HOST, nccl: Nccl | None = None) -> Entry:
    """The extension, out of the cache or compiled now; NCCL's with the headers of `nccl`. Raises EpctlError."""
    gxx = compilers.find_gxx() if gxx is None else gxx
    toolchain.check_gxx(gxx)
    include, version = pybind11_folders()
    used: tuple[str, ...] = (f"g++ {gxx.version}", f"pybind11 {version}")
    headers = [include, python_include()]
    if nccl is not None:
        nvcc = compilers.find_nvcc()
        headers += [nccl.headers.include, compilers.include_folder(nvcc.home)]
        used = (*used, f"cuda {nvcc.version}")
    sources = tuple(str(ROOT / source) for source in one.sources)

    def compile_it(out: Path) -> None:
        folders = tuple(f"-isystem{folder}" for folder in headers)
        run((gxx.path, *FLAGS, *folders, *sources, "-o", str(out / file_name(one)), *LIBRARIES), one.name, out.parent)

    return cache.get(one.name, inputs(used, one, nccl), compile_it)


def obtain(cache: Cache, one: Extension = HOST, nccl: Nccl | None = None) -> Entry:
    """`build`, or what another node has built where the means are missing here. Raises EpctlError when there is neither."""
    try:
        return build(cache, one=one, nccl=nccl)
    except EpctlError:
        entry = cache.like(one.name, inputs((), one, nccl))
        if entry is None:
            raise
        return entry


def load(cache: Cache | None = None, one: Extension = HOST, nccl: Nccl | None = None) -> ModuleType:
    """The extension as a module, built if need be. Raises EpctlError when it cannot be built or imported."""
    if one.module in sys.modules:
        return sys.modules[one.module]
    path = str(obtain(Cache() if cache is None else cache, one, nccl).file(file_name(one)))
    spec = importlib.util.spec_from_file_location(one.module, path, loader=ExtensionFileLoader(one.module, path))
    if spec is None or spec.loader is None:
        raise ImportError(path)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise EpctlError(
            "the host extension cannot be imported",
            f"{path}: {error}",
            "a folder that is mounted noexec, or a newer libstdc++ at compile time; set EPCTL_CACHE_DIR, or use one compiler",
        ) from None
    sys.modules[one.module] = module
    return module
