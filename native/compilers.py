"""nvcc and the host's g++: where they are, which versions, and what made the choice."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.standalone import cuda_home

ASK_S = 20.0
"""Seconds for a compiler to tell its version."""
_RELEASE = re.compile(r"release (\d{1,2}\.\d{1,2})(?:, V(\d{1,2}\.\d{1,2}\.\d{1,4}))?")
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.M)
_DOTTED = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,3}")
_NEWEST_GXX = re.compile(r"^\s*#\s*if\s+__GNUC__\s*>\s*(\d{1,3})\s*$", re.M)
_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")


class Nvcc(Struct, frozen=True):
    """The CUDA compiler that will be used."""

    path: str
    home: str
    """Toolkit that it takes its headers from; another one than the folder above where `path` is a wrapper."""
    version: str
    """13.0.88"""
    origin: str
    """CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda, pip packages, or the folder below /usr/local."""
    max_gxx: int = 0
    """Newest major version of g++ that its headers accept (crt/host_config.h); 0 where they name none."""
    passed_over: tuple[str, ...] = ()
    """Places that come first and have no compiler that works."""


class Gxx(Struct, frozen=True):
    """The host compiler that will be used, by nvcc too."""

    path: str
    version: str
    origin: str
    """NVCC_CCBIN, CXX, or g++ on PATH."""
    passed_over: tuple[str, ...] = ()


def find_nvcc() -> Nvcc:
    """The first nvcc that tells its version and has CUDA's headers. Raises EpctlError that lists where it was looked for."""
    passed_over: list[str] = []
    for folder, origin in _toolkits():
        path = os.path.join(folder, "bin", "nvcc")  # noqa: PTH118
        if not os.access(path, os.X_OK):
            passed_over.append(f"{origin}: no executable {path}")
            continue
        told = _ask([path, "--version"])
        version = _RELEASE.search(told)
        if version is None:
            passed_over.append(f"{origin}: {path} tells no version")
            continue
        home = _home(path)
        include = include_folder(home)
        if not include:
            passed_over.append(f"{origin}: no cuda_runtime.h in the toolkit {home}")
            continue
        return Nvcc(
            path, home, version.group(2) or version.group(1), origin, newest_gxx(Path(include)), tuple(passed_over)
        )
    looked = "; ".join(passed_over) or "CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*, and pip packages have none"
    raise EpctlError(
        "there is no CUDA compiler",
        looked,
        "install a CUDA toolkit and set CUDA_HOME, or: pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl",
        exit_code=4,
    )


def _toolkits() -> Iterator[tuple[str, str]]:
    """(folder, origin): those that other builds look at, then the versioned ones, newest first."""
    yield from cuda_home.places()
    versioned = glob.glob("/usr/local/cuda-*")  # noqa: PTH207
    for folder in sorted(versioned, key=lambda one: [int(part) for part in re.findall(r"\d+", one)], reverse=True):
        yield folder, folder


def _home(nvcc: str) -> str:
    """nvcc itself says which toolkit it belongs to; the folder of a wrapper script would mislead."""
    told = _TOP.search(_ask([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], with_errors=True))
    return os.path.realpath(told.group(1) if told else Path(nvcc).resolve().parent.parent)


def include_folder(home: str) -> str:
    """Folder of the toolkit at `home` that has cuda_runtime.h; '' without one (a package of the bare compiler)."""
    targets = sorted(glob.glob(f"{glob.escape(home)}/targets/*/include"))  # noqa: PTH207
    places = [f"{home}/include", *targets]
    return next((place for place in places if Path(place, "cuda_runtime.h").is_file()), "")


def newest_gxx(include: Path) -> int:
    """Newest major version of g++ that CUDA's headers accept; 0 where they name none."""
    try:
        found = _NEWEST_GXX.search((include / "crt" / "host_config.h").read_text("utf-8", "replace"))
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


def find_gxx() -> Gxx:
    """The first g++ of NVCC_CCBIN, CXX and PATH. Raises EpctlError without one."""
    passed_over: list[str] = []
    for named, origin in _host_compilers():
        path = shutil.which(named)
        if path is None:
            passed_over.append(f"{origin}: {named} is no program")
            continue
        if "Free Software Foundation" not in _ask([path, "--version"]):
            passed_over.append(f"{origin}: {path} is not g++")
            continue
        # One number alone comes from -dumpversion on some systems; -dumpfullversion came with GCC 7.
        version = _ask([path, "-dumpfullversion", "-dumpversion"]).strip()
        if _DOTTED.fullmatch(version):
            return Gxx(path, version, origin, tuple(passed_over))
        passed_over.append(f"{origin}: {path} tells no version")
    raise EpctlError(
        "there is no host compiler",
        "; ".join(passed_over),
        "install g++ (apt install g++, dnf install gcc-c++), or name one in NVCC_CCBIN",
        exit_code=4,
    )


def _host_compilers() -> Iterator[tuple[str, str]]:
    """(program, origin). NVCC_CCBIN may be a folder; CXX may begin with a compiler launcher and end with options."""
    ccbin = os.environ.get("NVCC_CCBIN", "")
    if ccbin:
        yield os.path.join(ccbin, "g++") if Path(ccbin).is_dir() else ccbin, "NVCC_CCBIN"  # noqa: PTH118
    try:
        words = shlex.split(os.environ.get("CXX", ""))
    except ValueError:
        words = []
    words = [word for word in words if Path(word).name not in _LAUNCHERS]
    if words:
        yield words[0], "CXX"
    yield "g++", "PATH"


def _ask(argv: list[str], *, with_errors: bool = False) -> str:
    """What a compiler prints; '' when it cannot be run or fails."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=ASK_S, check=False, stdin=subprocess.DEVNULL, env=environ
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    if done.returncode != 0 and not with_errors:
        return ""
    return (done.stdout + (done.stderr if with_errors else b"")).decode("utf-8", "replace")
