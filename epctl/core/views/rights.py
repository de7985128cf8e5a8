"""Capabilities of the process that ran the probes, from its CapEff mask (bit numbers: capabilities(7), linux/capability.h)."""

from __future__ import annotations

from typing import Literal

from epctl.core.fact import known
from epctl.core.snapshot import Snapshot

Right = Literal["IPC_LOCK", "SYS_RAWIO", "SYS_PTRACE", "SYS_ADMIN"]
BITS: dict[Right, int] = {"IPC_LOCK": 14, "SYS_RAWIO": 17, "SYS_PTRACE": 19, "SYS_ADMIN": 21}


def has(node: Snapshot, right: Right) -> bool:
    """The process holds this capability; raises Unreadable."""
    return bool(known(node.host.cap_effective, "capabilities (CapEff)") >> BITS[right] & 1)


def told(node: Snapshot, right: Right) -> str:
    """`CapEff 0xa80425fb without IPC_LOCK (bit 14)`, for evidence; raises Unreadable."""
    word = "with" if has(node, right) else "without"
    return f"CapEff {known(node.host.cap_effective):#x} {word} {right} (bit {BITS[right]})"
