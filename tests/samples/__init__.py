"""Generator of the composed samples in epctl/data/samples. The identifiers in them (serials, GUIDs, addresses) are made up."""

from __future__ import annotations

from tests.samples import gb200_nvl, hgx_h100_ib, hgx_h200_roce, laptop, p5_efa
from tests.samples.parts import Sample

COMPOSED: dict[str, Sample] = {
    "hgx-h100-ib": hgx_h100_ib.SAMPLE,
    "hgx-h200-roce-degraded": hgx_h200_roce.SAMPLE,
    "p5-efa": p5_efa.SAMPLE,
    "gb200-nvl": gb200_nvl.SAMPLE,
    "laptop": laptop.SAMPLE,
}
"""Name → sample. Recorded samples (manifest with hand_made false) are none of these."""
