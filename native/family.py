"""What a family of kernels is: a file of device code, and the variants that it is compiled as."""

from __future__ import annotations

from msgspec import Struct


class Variant(Struct, frozen=True):
    """One way to compile a file."""

    name: str
    """Lower case, digits and hyphens; unique in its family."""
    defines: tuple[tuple[str, int], ...]
    """Macros and their values."""
    local_bytes: int = 0
    """Stack that a thread may use, in bytes, with the spills in it: more than 0 only where a library's header puts objects there."""


class Family(Struct, frozen=True):
    """A file of device code."""

    name: str
    """Name of the op that it belongs to (--op)."""
    source: str
    """Below native/."""
    kernels: tuple[str, ...]
    """Entry functions that each variant must have."""
    variants: tuple[Variant, ...]
    with_nccl: bool = False
    """It includes NCCL's device headers."""
