"""Checks of what the profiles in force ask for as data: settings, toolkit, tools, a network."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.profile import Profile
from epctl.core.views import gin, installing, nics, toolkit, versions
from epctl.core.views.needs import GPU
from epctl.core.views.settings import is_on, same, setting, told
from epctl.core.wording import counted

NETWORK = ("rdma", "gin", "gin_gdaki", "gin_efa_gda", "ibgda")
"""Features of profiles that need a network between nodes."""
_MISSING = ("not_found", "tool_missing")
_ANSWERLESS = ("timed_out", "failed", "unparsable")
"""The tool is there and was run, what it told is another check's matter."""


@check(
    "PROFILE-FORBIDS",
    area="env",
    severity="fail",
    title="A setting rules out a library in use",
    why="The library cannot work with this setting; the evidence says why.",
    fix="Remove the setting for processes that use this library.",
    reference="https://github.com/NVIDIA/nccl/blob/master/src/init.cc "
    "https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md",
    needs=(GPU,),
)
def profile_forbids(context: Context) -> Iterator[Seen]:
    for profile in context.profiles:
        for entry, why in profile.forbids.items():
            name, _, value = entry.partition("=")
            found = setting(context, name)
            if found is not None and (value == "*" or same(found, value)):
                yield _ruled_out(context, profile, name, why)
            else:
                yield good(f"{entry} is not set ({profile.id})")


def _ruled_out(context: Context, profile: Profile, name: str, why: str) -> Seen:
    text = f"{told(context, name)}: {profile.title} rules it out, {why}"
    if gin.is_meant(context, profile):
        return bad(text, fix=f"Unset {name}.")
    return bad(
        f"{text}; it is not installed here", severity="info", fix=f"Unset {name} before {profile.title} runs here."
    )


@check(
    "PROFILE-NEEDS-ENV",
    area="env",
    severity="warn",
    title="A library in use lacks a setting that it needs",
    why="The library's documentation asks for this setting; the evidence says why.",
    fix="Set it for all ranks.",
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md",
    needs=(GPU,),
)
def profile_needs_env(context: Context) -> Iterator[Seen]:
    for profile in context.profiles:
        for entry, why in profile.needs_env.items():
            name, _, value = entry.partition("=")
            found = setting(context, name)
            if found is not None and (value == "*" or same(found, value)):
                yield good(f"{told(context, name)} ({profile.id})")
            else:
                yield bad(f"{name} is {found or 'unset'}; {profile.title} needs {entry}: {why}", fix=f"Set {entry}.")


@check(
    "PROFILE-CUDA-TOOLKIT",
    area="jit",
    severity="fail",
    title="The CUDA toolkit is older than a library in use needs",
    why="Its kernels are compiled on this node, with features of a newer toolkit.",
    fix="Install the toolkit that is named in the evidence beside the old one (NVIDIA's package repository, or a newer devel image) and "
    "point CUDA_HOME at it.",
    reference="https://pypi.org/project/deepinfer-ep/2.5.0/ https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
    needs=(GPU,),
)
def profile_cuda_toolkit(context: Context) -> Iterator[Seen]:
    chain = context.node.software.toolchain
    for profile, floor in context.floors("cuda_toolkit"):
        found = chain.nvcc_version
        asks = f"{profile.title} needs CUDA toolkit {floor}"
        if isinstance(found, Absent):
            if found.absent in _MISSING:  # looked for in every usual place
                yield _newer(context, f"no nvcc was found; {asks}")
            else:
                yield unread("nvcc version", found)
            continue
        old = versions.below(found, floor)
        if old is None:
            yield unread("nvcc version", Absent("unparsable", found))
        else:
            text = f"nvcc {found} ({chain.nvcc if isinstance(chain.nvcc, str) else 'path not known'}); {asks}"
            yield _newer(context, text) if old else good(text)


def _newer(context: Context, text: str) -> Seen:
    return bad(text, fix=toolkit.other_major(context), commands=toolkit.install(context))


def _names(profiles: tuple[Profile, ...]) -> str:
    return ", ".join(profile.title for profile in profiles)


@check(
    "PROFILE-TOOLS",
    area="env",
    severity="warn",
    title="A tool that a library calls is not installed",
    why="The library runs nvidia-smi and ibstat to learn link rates; without them it chooses odd numbers of SMs or stops.",
    fix="Install the tools in the image: nvidia-smi comes with the driver capability `utility`, ibstat with infiniband-diags.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/deep_ep/utils/envs.py",
    needs=(GPU,),
)
def profile_tools(context: Context) -> Iterator[Seen]:
    callers = context.wants("nvidia_smi")
    if callers:
        yield _tool("nvidia-smi", context.node.gpu.driver.nvidia_smi, callers, ("which nvidia-smi",))
    callers = context.wants("ibstat")
    if callers and any(gin.driver(device) != "efa" for device in nics.devices(context.node)):
        lines = installing.packages(context.node, deb="infiniband-diags", rpm="infiniband-diags")
        yield _tool("ibstat", context.node.rdma.ibstat, callers, lines)


def _tool(name: str, fact: str | Absent, callers: tuple[Profile, ...], commands: tuple[str, ...]) -> Seen:
    if not isinstance(fact, Absent):
        return good(f"{name} is installed")
    if fact.absent in _MISSING:
        return bad(f"{name} is not on PATH; {_names(callers)} calls it", commands=commands)
    if fact.absent in _ANSWERLESS:
        return good(f"{name} is installed ({fact})")
    return unread(name, fact)


@check(
    "PROFILE-NO-RDMA",
    area="nccl",
    severity="fail",
    title="The planned job spans nodes and this one has no RDMA port",
    why="The library moves tokens between nodes over RDMA; without an active port it cannot start on several nodes.",
    fix="Bring an RDMA port up, pass the RDMA devices into the container, or keep the job inside one NVLink domain.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/README.md "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    needs=(GPU,),
)
def profile_no_rdma(context: Context) -> Iterator[Seen]:
    asking = tuple(profile for profile in context.profiles if set(NETWORK) & set(profile.requires))
    if not asking:
        return
    if context.num_nodes == 1:
        yield good("the planned job has one node")
        return
    if is_on(context, "EP_DISABLE_GIN") and gin.one_nvlink_domain(context):
        yield good(f"{told(context, 'EP_DISABLE_GIN')}, the planned job stays in one NVLink domain")
        return
    ports = nics.ports(context.node)
    active = [nic.label for nic in ports if nic.active]
    if active:
        yield good(f"{len(active)} of {counted(len(ports), 'RDMA port')} {'is' if len(ports) == 1 else 'are'} active")
        return
    for nic in ports:
        known(nic.port.state, f"state of {nic.label}")
    what = f"{counted(len(ports), 'RDMA port')}, none active" if ports else "no RDMA device"
    yield bad(f"{what}; {_names(asking)} needs one on {context.num_nodes} nodes")
