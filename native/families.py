"""Kernel families: one file of device code each, and the variants that it is compiled as."""

from __future__ import annotations

from epctl.core.errors import EpctlError
from epctl.native.family import Family, Variant
from epctl.native.gin_family import GIN
from epctl.native.link_args import bulk_shared_bytes

__all__ = ["BARRIER", "EP", "FAMILIES", "GIN", "LINK", "Family", "Variant", "link_variant", "select"]


def link_variant(row_bytes: int, block_threads: int) -> Variant:
    """The link kernels for rows of that size."""
    defines = {
        "EPCTL_ROW_BYTES": row_bytes,
        "EPCTL_BLOCK_THREADS": block_threads,
        "EPCTL_BULK_SHARED_BYTES": bulk_shared_bytes(row_bytes, block_threads),
    }
    return Variant(f"row{row_bytes}-block{block_threads}", tuple(defines.items()))


LINK = Family(
    "link",
    "ops/link.cu",
    (
        "epctl_link_bulk_copy",
        "epctl_link_vector_copy",
        "epctl_link_pull_add",
        "epctl_link_read",
        "epctl_link_write",
        "epctl_link_ping_pong",
    ),
    # Rows of hidden 7168: FP8, FP8 with its scales in the row (no multiple of 128 bytes), BF16.
    tuple(link_variant(row_bytes, block) for row_bytes in (7168, 7392, 14336) for block in (128, 512)),
)
BARRIER = Family("barrier", "ops/barrier.cu", ("epctl_barrier",), (Variant("lsa", ()),))
EP = Family(
    "ep",
    "ops/ep.cu",
    (
        "epctl_ep_dispatch",
        "epctl_ep_dispatch_finish",
        "epctl_ep_expand",
        "epctl_ep_combine",
        "epctl_ep_pull",
        "epctl_ep_small_dispatch",
        "epctl_ep_small_combine",
    ),
    (Variant("any", ()),),
)
FAMILIES = {family.name: family for family in (LINK, BARRIER, GIN, EP)}


def select(ops: tuple[str, ...]) -> tuple[Family, ...]:
    """The families of these ops; all without any. Raises EpctlError for an op without kernels."""
    unknown = [op for op in ops if op not in FAMILIES]
    if unknown:
        raise EpctlError(
            f"--op {unknown[0]!r} is unknown",
            f"there are kernels for {', '.join(FAMILIES)}",
            "give one of these to --op",
        )
    return tuple(family for name, family in FAMILIES.items() if not ops or name in ops)
