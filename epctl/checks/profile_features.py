"""Checks of features that profiles ask for and that one header, build or driver decides."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.views import device_api, libraries
from epctl.core.views.device_api import WARP_GET
from epctl.core.views.needs import GPU, NVML, wants

GENK = "NCCL_SYM_GENK_ENABLE"


@check(
    "PROFILE-ENGRAM-GET",
    area="nccl",
    severity="warn",
    title="NCCL's device headers lack what Engram's kernels ask for",
    why="Engram fetches with GIN's Get; its kernels are compiled at run time against the headers beside NCCL, and fail there when "
    "these do not declare it.",
    fix="Keep NCCL's headers (include/nccl_device) beside its library. Builds that ask for ncclGinOptFlagsWarpGet need an NCCL that "
    "defines it, which the wheels up to 2.32.3 do not; deepinfer-ep 2.5.0 as released goes without.",
    reference="https://pypi.org/project/deepinfer-ep/2.5.0/ https://github.com/deepseek-ai/DeepEP/blob/main/README.md",
    needs=(GPU, wants("engram_get")),
)
def profile_engram_get(context: Context) -> Iterator[Seen]:
    version = libraries.nccl(context)
    if not version:
        return  # NCCL-TOO-OLD
    lacking = device_api.get(context)
    if lacking:
        yield bad(lacking)
        return
    warp = device_api.warp_get(context)
    if warp:
        yield bad(warp)
        return
    for build in known(context.node.software.deep_ep, "installed EP libraries"):
        if isinstance(build.warp_get, Absent) and context.node.software.nccl_gin_warp_get is not True:
            yield unread(f"whether Engram of {build.distribution} {build.version} asks for {WARP_GET}", build.warp_get)
    defined = context.node.software.nccl_gin_warp_get
    words = {True: f"and define {WARP_GET}", False: f"without {WARP_GET}, which no installed library asks for"}
    rest = words[defined] if isinstance(defined, bool) else f"{WARP_GET} not looked for"
    yield good(f"the device headers of NCCL {version} declare get, {rest}")


@check(
    "PROFILE-GENK-BUILD",
    area="nccl",
    severity="fail",
    title="This NCCL was built without the GENK kernels",
    why="They are compiled in with a build switch (SYM_GENK) that released wheels do not have; the setting is then read by nobody, and "
    "collectives run as before.",
    fix="Build NCCL with SYM_GENK and put it first on the loader's path, or unset NCCL_SYM_GENK_ENABLE.",
    reference="https://github.com/NVIDIA/nccl",
    needs=(GPU, wants("genk")),
)
def profile_genk_build(context: Context) -> Iterator[Seen]:
    version = libraries.nccl(context)
    if not version:
        yield bad(f"no NCCL is installed, {libraries.titles(context.wants('genk'))} needs one with SYM_GENK")
        return
    if known(context.node.software.nccl_genk, f"whether NCCL {version} knows {GENK}"):
        yield good(f"NCCL {version} knows {GENK}")
    else:
        yield bad(f"NCCL {version} does not know {GENK} (no such name in the library)")


@check(
    "PROFILE-CFT",
    area="driver",
    severity="fail",
    title="The driver or a setting rules out Compute Fabric Transport",
    why="CFT kernels address logical endpoints of the fabric, which the driver has from CUDA 13.3 on.",
    fix="Drain the node and install a driver of CUDA 13.3 or newer; leave NCCL_CFT_ENABLE unset.",
    reference="https://docs.nvidia.com/deeplearning/nccl/archives/nccl_2323/user-guide/docs/usage/cft.html",
    needs=(NVML, wants("cft")),
)
def profile_cft(context: Context) -> Iterator[Seen]:
    old = device_api.cft_driver(context)
    yield bad(old) if old else good(f"the driver is of CUDA {device_api.CFT_CUDA} or newer (NVML)")
    off = device_api.cft_off(context)
    yield bad(off, fix="Unset NCCL_CFT_ENABLE.") if off else good("NCCL_CFT_ENABLE does not switch CFT off")
