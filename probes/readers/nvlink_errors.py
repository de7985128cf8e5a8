"""Error counters of the NVLinks of each GPU, as `nvidia-smi nvlink -e` lists them: Replay, Recovery and CRC up to the
fourth generation (`legacy`), traffic, errors, bit error rates and an FEC histogram since the fifth (`nvlink5`)."""

from __future__ import annotations

import re

from msgspec import Struct, field

from epctl.probes.readers._listing import Damage, conclude, listing_text
from epctl.probes.readers._nvlink import GpuText, gpu_texts, mark_cut, mark_gaps
from epctl.probes.reading import Reading

Value = int | str | None

_COUNT = re.compile(r"\d{1,20}\Z", re.ASCII)
_BER = re.compile(r"\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,5})?\Z", re.ASCII | re.IGNORECASE)
_LEGACY = re.compile(r"(?:replay|recovery|crc\b.*|ecc|data [tr]x) errors?\Z", re.IGNORECASE)
_INACTIVE = re.compile(r"<[^<>]{1,40}>\Z|inactive\Z|N/A\Z", re.IGNORECASE)
_TRAFFIC = re.compile(r"(?:[tr]x (?:packets|bytes))\Z", re.IGNORECASE)
_HISTOGRAM = re.compile(r"fec errors\s*-", re.IGNORECASE)
"""Code words by number of corrected symbols: the first bins are never zero on a link that carries traffic."""
_RECOVERED = ("link recovery successful events", "total link recovery events")
"""A link that came back by itself counts here; one that did not counts under the failed events."""
BER_FLOOR = 15e-255
"""What a link without any bit error reports."""


class Gpu(Struct, frozen=True):
    index: int | None
    """None for links that stand above the first header."""
    name: str | None
    uuid: str | None
    condition: str | None
    """`all_inactive` or `unsupported` where a message stands in place of the links."""
    links_listed: int
    links: dict[int, dict[str, int | str | None]] = field(default_factory=dict)
    """Link number → counter, named as printed → value. Bit error rates stay strings, None where the tool prints N/A."""
    nonzero: dict[int, dict[str, int]] = field(default_factory=dict)
    """Counters of errors that are not 0."""
    hard_nonzero: dict[int, dict[str, int]] = field(default_factory=dict)
    """Those of them that mean trouble: neither traffic, nor corrected symbols, nor recoveries that succeeded."""
    ber_not_floor: dict[int, dict[str, str]] = field(default_factory=dict)
    """Bit error rates above the floor `15e-255`, as printed."""
    complete: bool = True
    """False when the text is cut inside this GPU."""


class Facts(Struct, frozen=True):
    counter_style: str | None = None
    """`legacy` or `nvlink5`."""
    gpus: list[Gpu] = field(default_factory=list)


def read(raw: bytes) -> Reading[Facts]:
    """What `nvidia-smi nvlink -e` says."""
    text = listing_text(raw)
    damage, nothing = Damage(text), Facts()
    texts = gpu_texts(text, damage)
    links = [_links(gpu, damage, gpu is texts[-1]) for gpu in texts]
    mark_cut(texts, links, damage)
    mark_gaps(texts, links, damage)
    if texts and texts[-1].cut and not text.endswith("\n"):
        _drop_last(texts[-1], links[-1])
    gpus = [_gpu(gpu, each) for gpu, each in zip(texts, links, strict=True) if each or gpu.says_something]
    return conclude(raw, text, Facts(_style(gpus), gpus) if gpus else nothing, nothing, damage)


def _links(gpu: GpuText, damage: Damage, is_last: bool) -> dict[int, dict[str, Value]]:
    links: dict[int, dict[str, Value]] = {}
    for link in gpu.links:
        name, colon, value = (part.strip() for part in link.text.rpartition(":"))
        if colon and name and _is_value(name, value):
            links.setdefault(link.number, {})[name] = _value(name, value)
        elif not colon and _INACTIVE.match(value):
            links.setdefault(link.number, {})
        elif is_last and link is gpu.links[-1]:
            gpu.cut = True
            damage.add("truncated", gpu.link_where(link.number), link.line)
        else:
            damage.foreign(link.line, gpu.link_where(link.number))
    return links


def _is_ber(name: str) -> bool:
    return name.upper().endswith("BER")


def _is_value(name: str, value: str) -> bool:
    form = _BER if _is_ber(name) else _COUNT
    if form.match(value) is None:
        return value.upper() == "N/A"
    return form is _BER or int(value) < 2**64


def _value(name: str, value: str) -> Value:
    if value.upper() == "N/A":
        return None
    return value if _is_ber(name) else int(value)


def _drop_last(gpu: GpuText, links: dict[int, dict[str, Value]]) -> None:
    """Without a line end, the last number of a text that was cut may lack digits."""
    if gpu.links:
        name = gpu.links[-1].text.rpartition(":")[0].strip()
        links.get(gpu.links[-1].number, {}).pop(name, None)


def _style(gpus: list[Gpu]) -> str | None:
    names = {name for gpu in gpus for counters in gpu.links.values() for name in counters}
    if not names:
        return None
    return "legacy" if all(_LEGACY.match(name) for name in names) else "nvlink5"


def _gpu(gpu: GpuText, links: dict[int, dict[str, Value]]) -> Gpu:
    nonzero = _chosen(links, hard=False)
    return Gpu(
        index=gpu.index,
        name=gpu.name,
        uuid=gpu.uuid,
        condition=gpu.condition,
        links_listed=len(links),
        links=links,
        nonzero=nonzero,
        hard_nonzero=_chosen(links, hard=True),
        ber_not_floor=_above_floor(links),
        complete=not gpu.cut,
    )


def _chosen(links: dict[int, dict[str, Value]], *, hard: bool) -> dict[int, dict[str, int]]:
    chosen: dict[int, dict[str, int]] = {}
    for number, counters in links.items():
        for name, value in counters.items():
            soft = _HISTOGRAM.match(name) or name.lower() in _RECOVERED
            if isinstance(value, int) and value and not _TRAFFIC.match(name) and not (hard and soft):
                chosen.setdefault(number, {})[name] = value
    return chosen


def _above_floor(links: dict[int, dict[str, Value]]) -> dict[int, dict[str, str]]:
    above: dict[int, dict[str, str]] = {}
    for number, counters in links.items():
        for name, value in counters.items():
            if isinstance(value, str) and float(value) > BER_FLOOR * 1.000001:
                above.setdefault(number, {})[name] = value
    return above
