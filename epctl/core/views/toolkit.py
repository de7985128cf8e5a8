"""The CUDA toolkit and host compiler that this node should have: what the libraries and GPUs ask for, within PyTorch's CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.context import Context
from epctl.core.fact import value_or
from epctl.core.profile import Profile
from epctl.core.snapshot import Snapshot
from epctl.core.views import installing, versions

ASSERTED_NVCC = {"deepep-2.5": "12.9"}
"""nvcc that the sources assert, where the profile has no floor for it (deepinfer-ep 2.5.0, deep_jit)."""
ARCHITECTURE_NVCC = (("11.0", "13.0"), ("10.0", "12.9"))
"""(compute capability from, nvcc from), newest first: family targets of Blackwell came with 12.9, Thor's 11.0 with 13.0 (CUDA
release notes)."""
_GXX = "13"
_UBUNTU = re.compile(r"ubuntu (\d{2}\.\d{2})", re.I | re.ASCII)
_UBUNTU_WITH_GXX = "24.04"
"""First Ubuntu LTS with g++-13 (packages.ubuntu.com)."""
_TOOLSET = re.compile(
    r"(?:red hat enterprise linux|rocky linux|almalinux|oracle linux server|centos stream) (?:release )?[89]\b", re.I
)
"""Systems whose repositories have gcc-toolset-13."""


def nvcc_floors(context: Context) -> Iterator[tuple[Profile, str]]:
    """(profile, lowest nvcc) of the profiles in force."""
    yield from context.floors("nvcc")
    for profile in context.profiles:
        if profile.id in ASSERTED_NVCC and "nvcc" not in profile.floors:
            yield profile, ASSERTED_NVCC[profile.id]


def asked(profile: Profile, floor: str) -> str:
    """What to tell people to install where `floor` is what the sources assert: the stricter one of it and the profile's toolkit."""
    highest = profile.floors.get("cuda_toolkit", floor)
    return floor if versions.below(highest, floor) else highest


def architectures(context: Context) -> Iterator[tuple[str, str]]:
    """(compute capability, nvcc from) of the newest GPU, where it asks for more than Hopper does."""
    found = {value_or(gpu.compute_capability, "") for gpu in value_or(context.node.gpu.gpus, ())}
    parsed = [(version, text) for text in found if text and (version := versions.parse(text)) is not None]
    if parsed:
        newest = max(parsed)[1]
        floor = next((floor for begin, floor in ARCHITECTURE_NVCC if versions.below(newest, begin) is False), "")
        if floor:
            yield newest, floor


def floor(context: Context) -> str:
    """Highest of all floors: nvcc, toolkit, architecture; '' without any."""
    asked = [low for _, low in (*nvcc_floors(context), *context.floors("cuda_toolkit"), *architectures(context))]
    highest = ""
    for one in asked:
        if not highest or versions.below(highest, one):
            highest = one
    return highest


def fitting(context: Context) -> str:
    """Release (`12.8`) that meets the floors within PyTorch's CUDA major: PyTorch's own where it is new enough. '' when there is
    none, or nothing tells."""
    lowest, torch = _release(floor(context)), _release(value_or(context.node.software.torch_cuda, ""))
    if not torch:
        return lowest
    if not lowest or versions.below(lowest, torch):
        return torch
    return lowest if versions.major(lowest) == versions.major(torch) else ""


def other_major(context: Context) -> str:
    """What to do where the floors lie beyond PyTorch's CUDA major; '' elsewhere."""
    torch = value_or(context.node.software.torch_cuda, "")
    if not torch or fitting(context):
        return ""
    return (
        f"A toolkit {floor(context)} is asked for, and PyTorch is built for CUDA {torch}: change PyTorch and the NVIDIA wheels to "
        "that CUDA major first; a toolkit of another major mixes them."
    )


def install(context: Context) -> tuple[str, ...]:
    """Lines that install that toolkit beside others and point CUDA_HOME at it. The package brings no driver."""
    release = fitting(context)
    if not release:
        return ()
    name = f"cuda-toolkit-{release.replace('.', '-')}"
    return (
        *installing.packages(context.node, deb=name, rpm=name),
        f"export CUDA_HOME=/usr/local/cuda-{release}",
    )


def _release(text: str) -> str:
    """Major and minor."""
    found = versions.parse(text) if text else None
    return f"{found.major}.{found.minor}" if found is not None else ""


def newer_gxx(node: Snapshot) -> tuple[str, ...]:
    """Lines that install GCC 13 beside the system's, where the distribution has it."""
    name = value_or(node.host.os, "")
    ubuntu = _UBUNTU.search(name)
    if ubuntu and versions.below(ubuntu.group(1), _UBUNTU_WITH_GXX) is False:
        return (*installing.packages(node, deb=f"g++-{_GXX}"), f"export NVCC_CCBIN=/usr/bin/g++-{_GXX}")
    if _TOOLSET.search(name):
        return (
            *installing.packages(node, rpm=f"gcc-toolset-{_GXX}-gcc-c++"),
            f"export NVCC_CCBIN=/opt/rh/gcc-toolset-{_GXX}/root/usr/bin/g++",
        )
    return ()
