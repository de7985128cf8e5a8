"""How near kernels come to the limits of a link, and what they cost beside it: one set of constants for all set-ups, each with its source.

Two of them (the staged layout's share of NVLink and its fixed cost) were fitted, once and together, to eleven calls of DeepEP 2.5.0 on two
H200 (128, 4,096 and 8,192 tokens; FP8, BF16 and combine; 64 SMs, FP8 also 24). The fit is within 6 % of each of them, and within 2 % of the
main kernels' own times at 8,192 tokens. RDMA's share is read off
DeepEP V2's multi-node table. All other published rows (V1, V2 over NVLink, the hybrid-ep branch's own kernels) are tests, not inputs.
"""

from __future__ import annotations

from itertools import pairwise

from epctl.model.rules import Layout
from epctl.model.timing_types import Band

_MACHINE = "2 x H200 over 18 NVLinks, both directions loaded"

WRITE_GBS_BY_SMS: tuple[tuple[int, float], ...] = ((8, 339.0), (32, 348.0), (56, 356.0), (96, 362.0))
"""GB/s that so many SMs write to a peer in bulk. Source: measured on 2 x H200, rows of 14 KiB (356 with 48 to 64, 362 with 96 to 132)."""
WRITE_LIMIT_GBS = 356.0
"""What `Node.sm_write_limit_gbs` stands for on that machine: the rate of 48 to 64 SMs."""
BEST_WRITE = 362.0 / WRITE_LIMIT_GBS

NVLINK_SHARE: dict[Layout, Band] = {
    "staged": Band(
        0.80,
        0.925,
        1.0,
        f"fitted to DeepEP 2.5.0's end-to-end times on {_MACHINE}; low: below the slowest row that V2 publishes for 8 GPUs (0.83)",
    ),
    "write_once": Band(
        0.90, 1.0, 1.0, f"floor by what SMs write or pull on {_MACHINE}; low: the least that our kernels aim for"
    ),
}
"""Of what SMs reach on NVLink."""
RDMA_SHARE = Band(
    0.80,
    0.90,
    0.98,
    "DeepEP V2's published rows of EP16 and EP32 on 400 Gb/s: 0.81 to 0.92 of the line rate; high: assumed",
)
"""Of the NIC's line rate, headers included."""
KERNEL_US: dict[Layout, Band] = {
    "staged": Band(
        5.0, 14.5, 25.0, f"fitted to DeepEP 2.5.0's end-to-end times on {_MACHINE}: counting, barriers, draining"
    ),
    "write_once": Band(
        0.0,
        0.0,
        3.0,
        "floor: launch and flag hops are counted apart; high: 10 us in all at 128 tokens, what our kernels aim for",
    ),
}
"""Fixed cost of a call beside launches and flag hops."""

RDMA_MTU_BYTES = 4096
RDMA_PACKET_BYTES = 26
"""LRH 8, BTH 12, ICRC 4, VCRC 2. Header sizes of the InfiniBand Architecture Specification, volume 1 (from memory)."""
RDMA_MESSAGE_BYTES = 16
"""RETH of an RDMA write. Source: the same."""


def write_share(num_sms: int) -> float:
    """What `num_sms` SMs write to a peer, over what 48 to 64 do; linear between the measured points of WRITE_GBS_BY_SMS."""
    points = WRITE_GBS_BY_SMS
    if num_sms <= points[0][0]:
        return points[0][1] / WRITE_LIMIT_GBS
    for (low, low_gbs), (high, high_gbs) in pairwise(points):
        if num_sms <= high:
            return (low_gbs + (high_gbs - low_gbs) * (num_sms - low) / (high - low)) / WRITE_LIMIT_GBS
    return points[-1][1] / WRITE_LIMIT_GBS


def rdma_bytes(messages: float, row_bytes: int) -> float:
    """Bytes on the wire for `messages` writes of one row each, headers included."""
    packets = -(-row_bytes // RDMA_MTU_BYTES)
    return messages * (row_bytes + RDMA_MESSAGE_BYTES + packets * RDMA_PACKET_BYTES)
