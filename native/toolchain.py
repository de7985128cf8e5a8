"""What compiles epctl's native code, checked against each other before any GPU call."""

from __future__ import annotations

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from epctl.core.errors import EpctlError
from epctl.native import compilers, nccl
from epctl.native.compilers import Gxx, Nvcc
from epctl.native.nccl import Nccl

MIN_NVCC = {"90a": "12.0", "100a": "12.8"}
"""Architecture → first CUDA toolkit whose compiler knows it (CUDA release notes, "New features" of 12.0 and 12.8)."""
COMPUTE_CAPABILITIES = {"9.0": "90a", "10.0": "100a"}
"""Compute capability → the only architecture whose code epctl runs on it: code of an `a` target runs on exactly that one (CUDA
programming guide, architecture-specific features)."""
MIN_GXX = 9
"""First g++ with a complete C++17 library (gcc.gnu.org/projects/cxx-status.html)."""
_REFUSED = {
    "90": "epctl builds the architecture-specific target of each GPU alone: 90a",
    "100": "epctl builds the architecture-specific target of each GPU alone: 100a",
    "100f": "epctl builds for exactly one GPU at a time; family targets are not tested",
    "103a": "B300 and GB300 are not tested with epctl, and code for 100a does not run on them",
    "103": "B300 and GB300 are not tested with epctl, and code for 100a does not run on them",
    "120a": "GPUs of compute capability 12.0 have no NVLink; expert parallelism over them is not tested",
    "120": "GPUs of compute capability 12.0 have no NVLink; expert parallelism over them is not tested",
}


class Toolchain(Struct, frozen=True):
    """Compilers and, for device code over NCCL, its headers and library."""

    nvcc: Nvcc
    gxx: Gxx
    nccl: Nccl | None = None


def find(architectures: tuple[str, ...], *, with_nccl: bool = False, with_torch: bool = False) -> Toolchain:
    """A checked toolchain for these architectures (`90a`). `with_torch`: PyTorch shares the process. Raises EpctlError."""
    nvcc, gxx = compilers.find_nvcc(), compilers.find_gxx()
    for name in architectures:
        check_toolkit(nvcc, architecture(name))
    check_host(nvcc, gxx)
    return Toolchain(nvcc, gxx, find_nccl(with_torch=with_torch) if with_nccl else None)


def find_nccl(*, with_torch: bool) -> Nccl:
    """Checked headers and library. `with_torch`: PyTorch shares the process. Raises EpctlError."""
    found = nccl.find()
    check_headers(found)
    check_one_library(found, with_torch=with_torch)
    return found


def architecture(text: str) -> str:
    """`90a`, `sm_90a`, `SM90a` → `90a`. Raises EpctlError with the reason for any that epctl does not build for."""
    name = text.strip().lower().removeprefix("sm").removeprefix("_")
    if name in MIN_NVCC:
        return name
    digits = name.rstrip("abcdefghijklmnopqrstuvwxyz")
    if name in _REFUSED:
        why = _REFUSED[name]
    elif digits.isdecimal() and int(digits) < 90:
        why = "GPUs before Hopper have no bulk copies (TMA), which the kernels are made of"
    else:
        why = "it is no architecture that epctl knows"
    raise EpctlError(
        f"architecture {text!r} is not supported", why, f"use {' or '.join(MIN_NVCC)} (H100, H200, GH200; B200, GB200)"
    )


def architecture_of(compute_capability: str) -> str:
    """`9.0` → `90a`, for a GPU of this machine. Raises EpctlError with the reason for one that epctl has no code for."""
    if compute_capability in COMPUTE_CAPABILITIES:
        return COMPUTE_CAPABILITIES[compute_capability]
    return architecture(compute_capability.replace(".", ""))


def check_toolkit(nvcc: Nvcc, name: str) -> None:
    """Raises EpctlError when the toolkit is older than the architecture."""
    if _older(nvcc.version, MIN_NVCC[name], f"the CUDA compiler {nvcc.path}"):
        raise EpctlError(
            f"CUDA {nvcc.version} is too old for sm_{name}",
            f"{nvcc.path} (from {nvcc.origin}); sm_{name} came with CUDA {MIN_NVCC[name]}",
            f"install CUDA {MIN_NVCC[name]} or newer and set CUDA_HOME to it, or leave {name} out of --arch",
        )


def check_gxx(gxx: Gxx) -> None:
    """Raises EpctlError when g++ is too old for C++17."""
    if int(gxx.version.split(".")[0]) < MIN_GXX:
        raise EpctlError(
            f"g++ {gxx.version} is too old",
            f"{gxx.path} (from {gxx.origin}); C++17 is whole from g++ {MIN_GXX} on, and epctl is tested from 12 on",
            "install a newer g++ and name it in NVCC_CCBIN",
        )


def check_host(nvcc: Nvcc, gxx: Gxx) -> None:
    """Raises EpctlError when g++ is too old for C++17 or newer than nvcc's headers accept."""
    check_gxx(gxx)
    major = int(gxx.version.split(".")[0])
    if nvcc.max_gxx and major > nvcc.max_gxx:
        raise EpctlError(
            f"g++ {gxx.version} is too new for CUDA {nvcc.version}",
            f"{gxx.path} (from {gxx.origin}); the headers of {nvcc.home} accept g++ up to {nvcc.max_gxx}",
            f"install g++-{nvcc.max_gxx} and set NVCC_CCBIN=g++-{nvcc.max_gxx}, or a newer CUDA toolkit",
        )


def check_headers(found: Nccl) -> None:
    """Raises EpctlError when device code would be compiled against a newer NCCL than will be loaded, or nobody can tell."""
    library, headers = found.library, found.headers
    if not library.version:
        raise EpctlError(
            "the version of NCCL cannot be read",
            f"{library.path} (from {library.origin}) does not tell it",
            f"install a whole NCCL, for example nvidia-nccl-cu13, or name one in {nccl.ROOT}",
            exit_code=4,
        )
    if _older(library.version, headers.version, f"the NCCL library {library.path}"):
        raise EpctlError(
            f"NCCL's headers ({headers.version}) are newer than its library ({library.version})",
            f"{headers.include} (from {headers.origin}) against {library.path} (from {library.origin}): device code would use "
            "structs that the library does not know",
            f"install one NCCL of version {headers.version} or newer, and point {nccl.ROOT} at it",
        )


def check_one_library(found: Nccl, *, with_torch: bool) -> None:
    """Raises EpctlError when two different files of NCCL would meet in this process: each has communicators of its own."""
    library = found.library
    if library.path in found.preloaded:
        # PyTorch maps its own copy as well, by its path; nothing is bound to that one.
        return
    other = next((one for one in found.loaded if one.path != library.path), None)
    if other is not None:
        raise EpctlError(
            "two different libraries of NCCL meet in this process",
            f"{other.path} ({other.version or 'unknown version'}) is loaded, {library.path} ({library.version}, from "
            f"{library.origin}) would come to it",
            f"unset {nccl.ROOT} to use the loaded one, or start with LD_PRELOAD={library.path}",
        )
    torch = found.torch
    if not with_torch or torch is None or torch.path == library.path:
        return
    if found.in_torch:
        raise EpctlError(
            "PyTorch brings an NCCL of its own",
            f"NCCL {torch.version} is linked into {torch.path}, beside {library.path} ({library.version})",
            "install a PyTorch that loads NCCL as a library (the wheels of pytorch.org do)",
        )
    if library.path not in [one.path for one in found.loaded]:
        raise EpctlError(
            "PyTorch would load another NCCL",
            f"{torch.path} ({torch.version or 'unknown version'}) for PyTorch, {library.path} ({library.version}, from "
            f"{library.origin}) for epctl; the one that is loaded first wins",
            f"start with LD_PRELOAD={library.path}, or pip install 'nvidia-nccl-cu13=={library.version}'",
        )


def _older(version: str, floor: str, what: str) -> bool:
    try:
        return Version(version) < Version(floor)
    except InvalidVersion:
        raise EpctlError(
            f"{what} has a version that cannot be compared",
            f"{version!r} against {floor!r}",
            "install a release instead",
            exit_code=4,
        ) from None
