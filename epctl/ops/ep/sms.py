"""How many SMs the expert-parallel kernels are given."""

from __future__ import annotations

LINK_SMS = 64
"""From so many SMs on, bulk writes over NVLink gain next to nothing (2 × H200: 356 GB/s with 48 to 64, 362 with 96 to 132)."""


def theoretical_num_sms(num_ranks: int, num_experts: int, num_topk: int, device_sms: int) -> int:
    """SMs that fill the link: fewer only where the GPU has fewer."""
    del num_ranks, num_experts, num_topk
    return min(device_sms, LINK_SMS)


def theoretical_num_qps(num_sms: int) -> int:
    """Queue pairs for a load/store domain: none."""
    del num_sms
    return 0
