"""What the NVLinks of each GPU can do, as `nvidia-smi nvlink -c` lists it: `Link N, P2P is supported: true`."""

from __future__ import annotations

import re

from msgspec import Struct, field

from epctl.probes.readers._listing import Damage, conclude, listing_text
from epctl.probes.readers._nvlink import GpuText, gpu_texts, mark_cut, mark_gaps
from epctl.probes.reading import Reading

_KEYS = {
    "p2p": "p2p",
    "access to system memory": "sysmem_access",
    "p2p atomics": "p2p_atomics",
    "system memory atomics": "sysmem_atomics",
    "sli": "sli",
    "link": "link_supported",
}
_SUPPORTED = re.compile(
    r"(.{1,80}?)(?: is| are)?(?: supported)?\s{0,8}:\s{0,8}(true|false|yes|no|N/A)\Z", re.IGNORECASE
)
_NOT_A_WORD = re.compile(r"[^a-z0-9]+")
_VALUES = {"true": True, "yes": True, "false": False, "no": False}


class Gpu(Struct, frozen=True):
    index: int | None
    """None for links that stand above the first header."""
    name: str | None
    uuid: str | None
    condition: str | None
    """`all_inactive` or `unsupported` where a message stands in place of the links."""
    links_listed: int
    links: dict[int, dict[str, bool | None]] = field(default_factory=dict)
    """Link number → `p2p`, `sysmem_access`, `p2p_atomics`, `sysmem_atomics`, `sli`, `link_supported`, where listed."""
    complete: bool = True
    """False when the text is cut inside this GPU."""


class Facts(Struct, frozen=True):
    gpus: list[Gpu] = field(default_factory=list)


def read(raw: bytes) -> Reading[Facts]:
    """What `nvidia-smi nvlink -c` says."""
    text = listing_text(raw)
    damage, nothing = Damage(text), Facts()
    texts = gpu_texts(text, damage)
    links = [_links(gpu, damage, gpu is texts[-1]) for gpu in texts]
    mark_cut(texts, links, damage)
    mark_gaps(texts, links, damage)
    gpus = [
        Gpu(gpu.index, gpu.name, gpu.uuid, gpu.condition, len(each), each, complete=not gpu.cut)
        for gpu, each in zip(texts, links, strict=True)
        if each or gpu.says_something
    ]
    return conclude(raw, text, Facts(gpus) if gpus else nothing, nothing, damage)


def _links(gpu: GpuText, damage: Damage, is_last: bool) -> dict[int, dict[str, bool | None]]:
    links: dict[int, dict[str, bool | None]] = {}
    for link in gpu.links:
        found = _SUPPORTED.match(link.text)
        if found is not None:
            subject = found[1].strip().lower()
            key = _KEYS.get(subject) or _NOT_A_WORD.sub("_", subject).strip("_") or "unnamed"
            links.setdefault(link.number, {})[key] = _VALUES.get(found[2].lower())
        elif is_last and link is gpu.links[-1]:
            gpu.cut = True
            damage.add("truncated", gpu.link_where(link.number), link.line)
        else:
            damage.foreign(link.line, gpu.link_where(link.number))
    return links
