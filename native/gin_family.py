"""The GIN kernels: one variant for each type of GIN, since NCCL's device code for all of them at once does not fit in registers."""

from __future__ import annotations

from epctl.core.errors import EpctlError
from epctl.native.family import Family, Variant
from epctl.native.gin_args import KERNELS

COMPILED = {"proxy": 2, "gdaki": 3}
"""Name → ncclGinType_t, as in communicator.GIN_TYPES (that module imports what this one is imported by). NCCL's header for EFA keeps
each work request on the stack, 128 bytes, which the check of ptxas refuses."""
GIN = Family(
    "gin",
    "ops/gin.cu",
    KERNELS,
    tuple(Variant(name, (("EPCTL_GIN_TYPE", number),)) for name, number in COMPILED.items()),
    with_nccl=True,
)


def variant(gin_type: str) -> Variant:
    """The variant for proxy or gdaki. Raises EpctlError for a type that there are no kernels for."""
    for one in GIN.variants:
        if one.name == gin_type:
            return one
    raise EpctlError(
        f"there are no kernels for GIN type {gin_type}",
        f"epctl compiles them for {' and '.join(COMPILED)}",
        f"set NCCL_GIN_TYPE={COMPILED['proxy']} to go over the proxy",
        exit_code=4,
    )
