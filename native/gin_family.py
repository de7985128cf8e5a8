"""The GIN kernels: one variant for each type of GIN, since NCCL's device code for all of them at once does not fit in registers."""

from __future__ import annotations

from epctl.core.errors import EpctlError
from epctl.native.family import Family, Variant
from epctl.native.gin_args import KERNELS

COMPILED = {"proxy": 2, "gdaki": 3, "efa_gda": 5}
"""Name → ncclGinType_t, as in communicator.GIN_TYPES (that module imports what this one is imported by)."""
EFA_STACK_BYTES = 136
"""NCCL's header for EFA (2.32.3) builds each work request of 128 bytes on the stack; the barrier spills one register beside it, around
the call that records a time-out."""
GIN = Family(
    "gin",
    "ops/gin.cu",
    KERNELS,
    tuple(
        Variant(name.replace("_", "-"), (("EPCTL_GIN_TYPE", number),), EFA_STACK_BYTES if name == "efa_gda" else 0)
        for name, number in COMPILED.items()
    ),
    with_nccl=True,
)


def variant(gin_type: str) -> Variant:
    """The variant for proxy, gdaki or efa_gda. Raises EpctlError for a type that there are no kernels for."""
    for name, one in zip(COMPILED, GIN.variants, strict=True):
        if name == gin_type:
            return one
    raise EpctlError(
        f"there are no kernels for GIN type {gin_type}",
        f"epctl compiles them for {', '.join(COMPILED)}",
        f"set NCCL_GIN_TYPE={COMPILED['proxy']} to go over the proxy",
        exit_code=4,
    )
