"""Bandwidths of links, one direction, 1e9 bytes/s."""

from __future__ import annotations

_ENCODING: dict[float, float] = {
    2.5: 8 / 10,
    5.0: 8 / 10,
    8.0: 128 / 130,
    16.0: 128 / 130,
    32.0: 128 / 130,
    64.0: 242 / 256,
}
"""Transfers of one lane, GT/s → share of them that carries packets: 8b/10b, 128b/130b, and 242 of the 256 bytes of a flit (PCI Express
Base Specification 1.0, 3.0 and 6.0)."""
GENERATION_GTS: dict[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""PCIe generation → GT/s of one lane."""
NVLINK_GBS: dict[int, float] = {60: 20.0, 70: 25.0, 72: 25.0, 80: 25.0, 90: 25.0, 100: 50.0, 103: 50.0, 107: 50.0}
"""Compute capability without the dot → nominal rate of one NVLink. From the totals of both directions in NVIDIA's data sheets: P100 160
GB/s over 4 links, V100 300 over 6, A100 600 over 12, H100 900 over 18, B200 1800 over 18."""
MOST_NVLINKS = 36
"""No GPU has more: 18 from Hopper to Blackwell, 36 where Vera Rubin counts each direction's half links (its `nvidia-smi topo -m` says
NV36)."""


def pcie_gbs(gts: float, width: int) -> float | None:
    """Rate of `width` lanes at `gts` GT/s, after encoding, before packet headers; None for a speed that PCIe does not have."""
    share = _ENCODING.get(gts)
    return None if share is None or width < 1 else round(gts * width * share / 8, 3)


def gbps_to_gbs(gbps: float) -> float:
    """Network rates are told in bits: 400 Gb/s are 50 GB/s."""
    return round(gbps / 8, 3)
