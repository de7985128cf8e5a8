"""Rates of the NVLinks of each GPU, as `nvidia-smi nvlink -s` lists them: `Link N: 26.562 GB/s` or `<inactive>`."""

from __future__ import annotations

import math
import re

from msgspec import Struct, field

from epctl.probes.readers._listing import Damage, conclude, listing_text
from epctl.probes.readers._nvlink import GpuText, gpu_texts, mark_cut
from epctl.probes.reading import Reading

_RATE = re.compile(r"(\d{1,9}(?:[.,]\d{1,9})?)\s{0,8}GB/s\Z", re.ASCII | re.IGNORECASE)
_INACTIVE = re.compile(r"<[^<>]{1,40}>\Z|(?:inactive|disabled|down|off|N/A)\Z", re.IGNORECASE)


class Gpu(Struct, frozen=True):
    index: int | None
    """None for links that stand above the first header."""
    name: str | None
    uuid: str | None
    condition: str | None
    """`ok`, `some_inactive`, `all_inactive` or `unsupported` (no link listed); None when the text does not say."""
    links_listed: int
    links_active: int
    links_inactive: int
    sum_active_gbytes_per_s: float
    """GB/s per direction: plain sum of the rates as printed."""
    links: dict[int, float | None] = field(default_factory=dict)
    """Link number → GB/s, None for an inactive link."""
    complete: bool = True
    """False when the text is cut inside this GPU."""


class Facts(Struct, frozen=True):
    gpus: list[Gpu] = field(default_factory=list)
    mig_devices: dict[int, int] = field(default_factory=dict)
    """GPU index → number of MIG devices, where a MIG listing stands in the text."""


def read(raw: bytes) -> Reading[Facts]:
    """What `nvidia-smi nvlink -s` says."""
    text = listing_text(raw)
    damage, nothing = Damage(text), Facts()
    texts = gpu_texts(text, damage)
    links = [_links(gpu, damage, gpu is texts[-1]) for gpu in texts]
    mark_cut(texts, [dict.fromkeys((link.number for link in gpu.links), ("rate",)) for gpu in texts], damage)
    gpus = [_gpu(gpu, each) for gpu, each in zip(texts, links, strict=True) if each or gpu.says_something]
    mig = {gpu.index: gpu.mig_devices for gpu in texts if gpu.mig_devices and gpu.index is not None}
    return conclude(raw, text, Facts(gpus, mig) if gpus else nothing, nothing, damage)


def _links(gpu: GpuText, damage: Damage, is_last: bool) -> dict[int, float | None]:
    links: dict[int, float | None] = {}
    for link in gpu.links:
        rate = _RATE.match(link.text)
        if rate is not None:
            links[link.number] = float(rate[1].replace(",", "."))
        elif _INACTIVE.match(link.text):
            links[link.number] = None
        elif is_last and link is gpu.links[-1]:
            gpu.cut = True
            damage.add("truncated", gpu.link_where(link.number), link.line)
        else:
            damage.foreign(link.line, gpu.link_where(link.number))
    return links


def _gpu(gpu: GpuText, links: dict[int, float | None]) -> Gpu:
    active = [rate for rate in links.values() if rate is not None]
    return Gpu(
        index=gpu.index,
        name=gpu.name,
        uuid=gpu.uuid,
        condition=_condition(gpu, len(links), len(active)),
        links_listed=len(links),
        links_active=len(active),
        links_inactive=len(links) - len(active),
        sum_active_gbytes_per_s=round(math.fsum(active), 6),
        links=links,
        complete=not gpu.cut,
    )


def _condition(gpu: GpuText, listed: int, active: int) -> str | None:
    if listed:
        return "ok" if active == listed else "some_inactive" if active else "all_inactive"
    if gpu.condition is not None:
        return gpu.condition
    return None if gpu.cut or gpu.failed or gpu.links else "unsupported"
