"""NCCL's device API as its headers and its driver have it: Get, what Engram asks of it, and Compute Fabric Transport."""

from __future__ import annotations

from epctl.core.context import Context
from epctl.core.distributions import release
from epctl.core.fact import known
from epctl.core.views import libraries, versions
from epctl.core.views.settings import is_off, told

WARP_GET = "ncclGinOptFlagsWarpGet"
CFT_NCCL, CFT_CUDA, CFT_CAPABILITY = "2.31.0", "13.3", "10.0"
"""First NCCL with CFT in its device API, and CUDA (toolkit and driver) and compute capability that it asks for (NCCL user guide,
Compute Fabric Transport)."""


def get(context: Context) -> str:
    """Why kernels cannot be compiled with GIN's Get here; '' when the headers declare it. Raises Unreadable."""
    software = context.node.software
    if not known(software.nccl_gin_get, "GIN's get in NCCL's device headers"):
        return f"the device headers of NCCL {libraries.nccl(context)} declare no get"
    return ""


def warp_get(context: Context) -> str:
    """Why the Engram kernels of an installed DeepEP do not compile here. The README of 2.5.0 names this flag; the sources of that
    release do without, those of earlier builds of the branch do not. Raises Unreadable."""
    software = context.node.software
    for build in known(software.deep_ep, "installed EP libraries"):
        asks = build.warp_get is True
        if asks and not known(software.nccl_gin_warp_get, f"{WARP_GET} in NCCL's device headers"):
            name = f"{build.distribution} {build.version or release(build)}"
            return f"Engram of {name} asks for {WARP_GET}, which the headers of NCCL {libraries.nccl(context)} lack"
    return ""


def cft_driver(context: Context) -> str:
    """Why the driver has no fabric logical endpoints: they came with CUDA 13.3."""
    code = known(context.node.gpu.driver.cuda_version, "CUDA version of the driver")
    found = f"{code // 1000}.{code // 10 % 100}"
    return f"the driver is of CUDA {found}, CFT needs {CFT_CUDA}" if versions.below(found, CFT_CUDA) else ""


def cft_off(context: Context) -> str:
    """Why NCCL offers no CFT although it could."""
    return f"{told(context, 'NCCL_CFT_ENABLE')} is set" if is_off(context, "NCCL_CFT_ENABLE") else ""
