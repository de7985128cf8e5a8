"""Compilers and headers that just-in-time compilation of the EP libraries needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.profile import Profile
from epctl.core.views import libraries, needs, toolkit, versions
from epctl.core.views.installing import packages
from epctl.core.views.needs import GPU
from epctl.core.views.settings import setting, told

NONE_THERE = ("not_found", "tool_missing")
"""Reasons that say: looked for in every usual place, and not there."""

HOST_COMPILER = re.compile(r"cc1plus|host compiler|unsupported (?:GNU|clang) version|\bg\+\+|\bgcc\b|ccbin", re.I)
ARCHITECTURE_ERROR = re.compile(r"unsupported gpu architecture|is not defined for option 'gpu-", re.I)


def _jit(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if context.wants("jit") else "no library in use here compiles at run time"


def _nvcc(context: Context) -> str:
    """The toolkit's headers and versions are looked at where there is a toolkit; JIT-NVCC-MISSING tells when there is none."""
    fact = context.node.software.toolchain.nvcc
    return "no nvcc (see JIT-NVCC-MISSING)" if isinstance(fact, Absent) and fact.absent in NONE_THERE else ""


JIT, NVCC = Need("jit", _jit), Need("nvcc", _nvcc)


def _other_nvcc(context: Context, profile: Profile) -> str:
    """DeepEP compiles with EP_JIT_NVCC_COMPILER instead of the toolkit's nvcc; '' when it does not."""
    chosen = setting(context, "EP_JIT_NVCC_COMPILER") if profile.id.startswith("deepep-2") else None
    return told(context, "EP_JIT_NVCC_COMPILER") if chosen and chosen != context.node.software.toolchain.nvcc else ""


def at_build(context: Context, profiles: tuple[Profile, ...]) -> Severity | None:
    """What only a build needs is no more than a remark where the library is installed already."""
    return "info" if any(libraries.installed(context, profile) for profile in profiles) else None


@check(
    "JIT-NVCC-MISSING",
    area="jit",
    severity="fail",
    title="nvcc is missing where it is looked for",
    why="The library compiles its kernels on this node with $CUDA_HOME/bin/nvcc; the first dispatch fails without it.",
    fix="Use a devel image, or install a toolkit of PyTorch's CUDA major from NVIDIA's package repository, and set CUDA_HOME to it.",
    reference="https://github.com/NVIDIA-NeMo/labs-molt/issues/129 https://github.com/EleutherAI/gpt-neox/issues/1021 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/csrc/jit/compiler.hpp",
    needs=(JIT,),
)
def jit_nvcc_missing(context: Context) -> Iterator[Seen]:
    chain = context.node.software.toolchain
    for profile in context.wants("jit"):
        other = _other_nvcc(context, profile)
        if isinstance(chain.nvcc, str):
            yield good(f"{chain.nvcc}, for {profile.title}")
        elif chain.nvcc.absent not in NONE_THERE:
            yield unread("nvcc", chain.nvcc)
        elif other:
            yield unread(f"{profile.title}: {other}", Absent("not_read", "only the toolkit's nvcc is looked at"))
        else:
            where = f"{chain.cuda_home} (from {chain.cuda_home_origin})" if isinstance(chain.cuda_home, str) else ""
            text = (
                f"{f'no nvcc in {where}' if where else 'no CUDA toolkit was found'}; {profile.title} compiles with it"
            )
            yield bad(text, fix=toolkit.other_major(context), commands=toolkit.install(context))


@check(
    "JIT-NVCC-OLD",
    area="jit",
    severity="fail",
    title="nvcc is too old for the library or for the GPU",
    why="The library asserts a release of nvcc, or ptxas does not know the GPU's architecture.",
    fix="Install a newer toolkit of PyTorch's CUDA major from NVIDIA's package repository, beside the old one, and point CUDA_HOME at "
    "it; DeepEP takes its nvcc from EP_JIT_NVCC_COMPILER, too.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/csrc/jit/compiler.hpp https://pypi.org/project/deepinfer-ep/2.5.0/ "
    "https://github.com/NVIDIA/cuda-samples/issues/367",
    needs=(GPU, NVCC),
)
def jit_nvcc_old(context: Context) -> Iterator[Seen]:
    chain, active = context.node.software.toolchain, context.node.active
    for profile, floor in toolkit.nvcc_floors(context):
        severity = None if "jit" in profile.requires else at_build(context, (profile,))
        yield _against(context, profile, floor, f"{profile.title} needs {toolkit.asked(profile, floor)}", severity)
    for profile in context.wants("jit")[:1]:
        for capability, floor in toolkit.architectures(context):
            yield _against(context, profile, floor, f"compute capability {capability} needs {floor}")
        if active.nvcc_compile is False and ARCHITECTURE_ERROR.search(active.nvcc_compile_message):
            yield bad(
                f"{value_or(chain.nvcc, 'nvcc')} does not know the architecture: {active.nvcc_compile_message}",
                fix=toolkit.other_major(context),
                commands=toolkit.install(context),
            )


def _against(context: Context, profile: Profile, floor: str, asks: str, severity: Severity | None = None) -> Seen:
    chain = context.node.software.toolchain
    other = _other_nvcc(context, profile)
    if other:
        return unread(f"version of {other}", Absent("not_read", "only the toolkit's nvcc is looked at"))
    found = known(chain.nvcc_version, "version of nvcc")
    old = versions.below(found, floor)
    if old is None:
        return unread("version of nvcc", Absent("unparsable", line=found))
    nvcc = f"{value_or(chain.nvcc, 'nvcc')} is {found}"
    if not old and versions.below(found, toolkit.asked(profile, floor)):
        return good(f"{nvcc}, the sources of {profile.title} take {floor}; PROFILE-CUDA-TOOLKIT tells what it asks for")
    if not old:
        return good(f"{nvcc}, {asks}")
    return bad(
        f"{nvcc}, {asks}", severity=severity, fix=toolkit.other_major(context), commands=toolkit.install(context)
    )


@check(
    "JIT-HOSTCXX-MISSING",
    area="jit",
    severity="fail",
    title="nvcc has no C++ compiler to work with",
    why="nvcc hands the host part of each source to g++; slim images have gcc alone, or no compiler, and the compile stops.",
    fix="Install g++ (in containers: in the image) of a version that this nvcc supports, or point NVCC_CCBIN at one.",
    reference="https://github.com/vllm-project/vllm/issues/29270 https://github.com/criticalml-uw/TamperBench/issues/71",
    needs=(GPU,),
)
def jit_hostcxx_missing(context: Context) -> Iterator[Seen]:
    who = context.wants("host_compiler")
    if not who:
        return
    chain, active = context.node.software.toolchain, context.node.active
    names = libraries.titles(who)
    lines = packages(context.node, deb="g++", rpm="gcc-c++")
    chosen = setting(context, "NVCC_CCBIN")
    what, fact = (f"{told(context, 'NVCC_CCBIN')}", chain.nvcc_ccbin) if chosen else ("g++ on PATH", chain.gxx)
    if isinstance(fact, str):
        yield good(f"{what}: {fact}")
    elif fact.absent in NONE_THERE:
        text = f"{what} names no compiler" if chosen else "no g++ on PATH"
        yield bad(f"{text}; {names} needs one", commands=() if chosen else lines)
    else:
        yield unread(what, fact)
    front = chain.cxx_format
    if isinstance(front, Absent) and "cc1plus" in f"{front.detail} {front.line}":
        yield bad(f"{value_or(fact, 'g++')} cannot compile C++: {front.line or front.detail}", commands=lines)
    if active.nvcc_compile is False and HOST_COMPILER.search(active.nvcc_compile_message):
        yield bad(f"a compile of three lines with nvcc ends with: {active.nvcc_compile_message}")


@check(
    "JIT-CXX-FORMAT",
    area="jit",
    severity="fail",
    title="The C++ compiler is older than a library in use needs",
    why="The library's sources use C++20, with the header <format> that came with GCC 13's library.",
    fix="Install GCC 13 or newer beside the system's (Ubuntu 22.04 and Debian 12 have none: use a newer image), and make it g++ on "
    "PATH and nvcc's host compiler; CUDA takes GCC 13 from 12.4 on.",
    reference="https://pypi.org/project/deepinfer-ep/2.5.0/ https://gcc.gnu.org/gcc-13/changes.html",
    needs=(GPU,),
)
def jit_cxx_format(context: Context) -> Iterator[Seen]:
    chain = context.node.software.toolchain
    if isinstance(chain.gxx, Absent) and chain.gxx.absent in NONE_THERE and isinstance(chain.nvcc_ccbin, Absent):
        return  # no compiler at all: JIT-HOSTCXX-MISSING
    compiler = value_or(chain.nvcc_ccbin, value_or(chain.gxx, "g++"))
    asking = context.wants("cxx_format")
    if asking and isinstance(chain.cxx_format, bool):
        text = f"{compiler} compiles three lines with <format> (C++20)"
        wrong = f"{compiler} ({value_or(chain.gxx_version, 'version not known')}) has no <format>; {libraries.titles(asking)} needs it"
        yield good(text) if chain.cxx_format else bad(wrong, commands=toolkit.newer_gxx(context.node))
    for profile, floor in context.floors("gxx"):
        if profile in asking and isinstance(chain.cxx_format, bool):
            continue  # the compile says more than the version
        if isinstance(chain.nvcc_ccbin, str):
            yield unread(f"version of {chain.nvcc_ccbin}", Absent("not_read", "only g++ on PATH is asked"))
            continue
        found = known(chain.gxx_version, "version of g++")
        text = f"{compiler} is {found}, {profile.title} needs {floor}"
        yield bad(text, commands=toolkit.newer_gxx(context.node)) if versions.below(found, floor) else good(text)
