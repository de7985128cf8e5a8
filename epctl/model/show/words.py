"""Numbers and names as people read them."""

from __future__ import annotations

from typing import Any

from msgspec import UnsetType

from epctl.core.views.sizes import told as size_told

LINKS = {"nvlink": "NVLink", "rdma": "RDMA", "none": "no link"}
TERMS = {
    "nvlink": "NVLink",
    "rdma": "RDMA",
    "sm_read": "SM reads",
    "sm_write": "SM writes",
    "hbm": "HBM",
    "launch": "launches",
    "hops": "flag hops",
    "kernel": "fixed cost",
    "second_kernel": "second kernel",
    "latency": "latency (launches, flag hops, fixed cost)",
}


def number(value: Any) -> str:  # noqa: ANN401 - any scalar
    """`value` with four digits where it is a fraction; whole numbers whole, - where there is none."""
    if value is None or isinstance(value, UnsetType):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value == int(value) and abs(value) < 1e15:
            return str(int(value))
        return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)


def us(value: Any) -> str:  # noqa: ANN401 - a float or UNSET
    """µs, whole from 100 on."""
    if isinstance(value, UnsetType):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(value: int) -> str:
    """Bytes in binary units."""
    return size_told(value)


def moved(value: float) -> str:
    """Bytes on a link, in decimal units as rates are; '' for none."""
    if not value:
        return ""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def change(ratio: Any) -> str:  # noqa: ANN401 - a float or UNSET
    """How much longer or shorter: +12 %, -3.1 %, no change."""
    if isinstance(ratio, UnsetType):
        return "-"
    percent = (ratio - 1) * 100
    if abs(percent) < 0.05:
        return "same"
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.1f} %"


def plural(count: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
