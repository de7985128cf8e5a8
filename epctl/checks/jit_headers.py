"""Headers that compiles of the EP libraries need, when they are built and when they run."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks.jit import ARCHITECTURE_ERROR, HOST_COMPILER, JIT, NVCC, at_build
from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.profile import Profile
from epctl.core.views import libraries, versions
from epctl.core.views.installing import packages
from epctl.core.views.needs import GPU

CCCL_MAJOR = 13
"""From this CUDA on the CCCL headers stand in include/cccl (CUDA 13 release notes)."""


def _deepep(context: Context) -> str:
    wanted = any(profile.id.startswith("deepep") for profile in context.profiles)
    return "" if wanted else "no DeepEP is in use or planned here"


DEEPEP = Need("deepep", _deepep)


@check(
    "JIT-LIBDW",
    area="jit",
    severity="fail",
    title="elfutils (libdw) is missing",
    why="DeepJIT includes elfutils/libdwfl.h for its stack traces, so a build stops without the header; without the library traces "
    "have no lines.",
    fix="Install the development package of elfutils (in containers: in the image): libdw-dev (apt) or elfutils-devel (dnf).",
    reference="https://github.com/sgl-project/sglang/issues/39152 https://github.com/local-inference-lab/vllm/issues/796",
    needs=(GPU,),
)
def jit_libdw(context: Context) -> Iterator[Seen]:
    asking = context.wants("libdwfl")
    if not asking:
        return
    chain = context.node.software.toolchain
    lines = packages(context.node, deb="libdw-dev", rpm="elfutils-devel")
    yield _present("header elfutils/libdwfl.h", chain.libdwfl_header, asking, at_build(context, asking), lines)
    yield _present("library libdw.so.1", chain.libdw, asking, "info", lines)


def _present(
    what: str, fact: Fact[bool], asking: tuple[Profile, ...], severity: Severity | None, lines: tuple[str, ...]
) -> Seen:
    if isinstance(fact, Absent):
        return unread(what, fact)
    if fact:
        return good(f"{what} is found")
    return bad(f"{what} is not found; {libraries.titles(asking)} asks for it", severity=severity, commands=lines)


@check(
    "JIT-CCCL-PATH",
    area="jit",
    severity="fail",
    title="DeepEP's build does not find the CCCL headers of CUDA 13",
    why="CUDA 13 moved them to include/cccl, and DeepEP's build adds that folder of /usr/local/cuda alone.",
    fix="Add include/cccl of that toolkit to CPLUS_INCLUDE_PATH for the build; or, for everybody on this system, let "
    "/usr/local/cuda point to it.",
    commands=('export CPLUS_INCLUDE_PATH="${CUDA_HOME:?}/include/cccl${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"',),
    reference="https://github.com/deepseek-ai/DeepEP/issues/476 https://github.com/deepseek-ai/DeepEP/issues/568 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/setup.py",
    needs=(GPU, DEEPEP, NVCC),
)
def jit_cccl_path(context: Context) -> Iterator[Seen]:
    chain = context.node.software.toolchain
    version = known(chain.nvcc_version, "version of nvcc")
    if (versions.major(version) or 0) < CCCL_MAJOR:
        yield good(f"CUDA {version} has its CCCL headers in include")
        return
    severity = at_build(context, tuple(profile for profile in context.profiles if profile.id.startswith("deepep")))
    home, default = known(chain.cuda_home, "CUDA_HOME"), value_or(chain.usr_local_cuda, "")
    listed = [
        folder
        for name in ("CPATH", "CPLUS_INCLUDE_PATH")
        for folder in context.env.get(name, "").split(":")
        if folder.rstrip("/").endswith("/cccl")
    ]
    if listed:
        yield good(f"{listed[0]} is on the include path")
    elif not known(chain.has_cccl, "include/cccl of CUDA_HOME"):
        yield bad(
            f"{home} (CUDA {version}) has no include/cccl", severity=severity, fix="Install cuda-cccl of this toolkit."
        )
    elif home == default:
        yield good(f"/usr/local/cuda is {home}, with include/cccl")
    else:
        yield bad(
            f"CUDA_HOME is {home}, /usr/local/cuda {f'is {default}' if default else 'is not there'}", severity=severity
        )


@check(
    "JIT-CPATH",
    area="jit",
    severity="fail",
    title="nvcc does not find its own headers",
    why="In a trimmed image, or with CPATH pointing to another toolkit, a compile misses headers or takes those of another CUDA.",
    fix="Set CUDA_HOME to one complete toolkit, and take the include folders of other ones out of CPATH and CPLUS_INCLUDE_PATH; "
    "unset these where nothing else stands in them.",
    commands=("env | grep -E '^(CUDA_HOME|CPATH|CPLUS_INCLUDE_PATH)='",),
    reference="https://github.com/ai-dynamo/dynamo/issues/2937",
    needs=(JIT, NVCC),
)
def jit_cpath(context: Context) -> Iterator[Seen]:
    chain, active = context.node.software.toolchain, context.node.active
    compiles = active.nvcc_compile
    if compiles is False:
        message = active.nvcc_compile_message
        if not (HOST_COMPILER.search(message) or ARCHITECTURE_ERROR.search(message)):
            yield bad(f"a compile of three lines with cuda_runtime.h and cuda/std ends with: {message or 'no message'}")
    elif compiles is True:
        yield good("three lines with cuda_runtime.h and cuda/std compile")
    if compiles is not True:
        there = known(chain.has_cuda_runtime_h, "include/cuda_runtime.h of CUDA_HOME")
        home = value_or(chain.cuda_home, "CUDA_HOME")
        yield good(f"{home} has cuda_runtime.h") if there else bad(f"{home} has no include/cuda_runtime.h")
    named = known(chain.cpath_cuda_versions, "CUDA folders in CPATH")
    if not named:
        return
    release = known(chain.nvcc_version, "version of nvcc")
    other = [version for version in named if not _same_release(version, release)]
    text = f"CPATH or CPLUS_INCLUDE_PATH holds headers of CUDA {', '.join(other or named)}, nvcc is {release}"
    yield bad(text, severity="warn" if compiles is True else None) if other else good(text)


def _same_release(one: str, other: str) -> bool:
    """Major and minor agree; CUDA's headers refuse a compiler of another minor release (CCCL, cuda_toolkit.h)."""
    first, second = versions.parse(one), versions.parse(other)
    return first is not None and second is not None and first.release[:2] == second.release[:2]
