"""Sizes in bytes, as people read them."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30


def told(num_bytes: int) -> str:
    """`64 MiB`, `1.5 GiB`, `64 KiB`; `unlimited` for a negative number (a limit that is not set)."""
    if num_bytes < 0:
        return "unlimited"
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (MIB, "MiB") if num_bytes >= MIB else (1024, "KiB")
    size = num_bytes / unit
    return f"{size:.0f} {name}" if size >= 100 or size == int(size) else f"{size:.3g} {name}"
