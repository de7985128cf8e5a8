"""Two calls that people ask about: one step of decoding, one micro-batch of prefill."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.model.refusal import RefusalError
from epctl.model.timing_types import Dtype


class Preset(Struct, frozen=True):
    """What a preset stands for. Flags given beside it win."""

    name: str
    tokens: int
    """Per rank."""
    dtype: Dtype
    latency: Literal["low-latency", "throughput"]
    prefer_overlap: bool
    """Whether GEMMs run at the same time and want the SMs."""
    source: str


PRESETS: dict[str, Preset] = {
    "decode": Preset(
        "decode",
        128,
        "fp8",
        "low-latency",
        prefer_overlap=False,
        source="DeepEP's low-latency tables: 128 tokens a rank, FP8 dispatch, BF16 combine (deepseek-ai/DeepEP, docs/legacy.md)",
    ),
    "prefill": Preset(
        "prefill",
        4096,
        "fp8",
        "throughput",
        prefer_overlap=True,
        source="DeepEP's normal tables: 4,096 tokens a rank, FP8 dispatch, BF16 combine (deepseek-ai/DeepEP, docs/legacy.md)",
    ),
}
"""By name."""


def preset(name: str) -> Preset:
    """The preset of that name. Raises RefusalError unknown_preset."""
    if name not in PRESETS:
        known = " and ".join(PRESETS)
        raise RefusalError("unknown_preset", f"there is no preset {name!r}", f"there are {known}", "give decode")
    return PRESETS[name]
