"""The form that the listings of `nvidia-smi nvlink` share: one header per GPU, its links' lines below it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from epctl.probes.readers._listing import Damage, error_kind

_HEADER = re.compile(r"\s{0,64}GPU\s{1,8}(\d{1,4})\s{0,8}:(.*)", re.ASCII)
_LINK = re.compile(r"\s{0,64}Link\s{1,8}(\d{1,4})\s{0,8}[:,](.*)", re.ASCII)
_MIG = re.compile(r"\s{0,64}MIG\s.*\bDevice\b", re.ASCII)
_NVML = re.compile(r"\s{0,64}NVML\s{0,8}:", re.ASCII | re.IGNORECASE)
_BEGUN = re.compile(r"\s{0,64}(?:L|Li|Lin|Link\b.*|G|GP|GPU\b.*|NVML.*)\Z", re.ASCII)
"""How a line of such a listing begins: one that starts so and cannot be read was cut."""


@dataclass
class LinkLine:
    number: int
    text: str
    """What stands behind `Link N:` or `Link N,`."""
    line: str


@dataclass
class GpuText:
    index: int | None
    """None for links above the first header."""
    name: str | None = None
    uuid: str | None = None
    header: str = ""
    links: list[LinkLine] = field(default_factory=list)
    condition: str | None = None
    """`all_inactive` or `unsupported` where a message says so."""
    mig_devices: int = 0
    failed: bool = False
    """An error message stands in place of the links."""
    cut: bool = False

    @property
    def where(self) -> str:
        return "links without a GPU" if self.index is None else f"GPU {self.index}"

    @property
    def says_something(self) -> bool:
        """True without any link, too: a header, or a message."""
        return self.index is not None or self.condition is not None

    def link_where(self, number: int) -> str:
        return f"{self.where} Link {number}"


def gpu_texts(text: str, damage: Damage) -> list[GpuText]:
    """GPUs of a listing in the order of the text, each once. Lines of no known form go to `damage`."""
    blocks: list[GpuText] = []
    lines = text.rstrip().split("\n")
    last = len(lines) - 1
    for position, line in enumerate(lines):
        if (link := _LINK.match(line)) is not None:
            _block(blocks, damage, line).links.append(LinkLine(int(link[1]), link[2].strip(), line))
        elif (header := _HEADER.match(line)) is not None:
            blocks.append(_gpu(int(header[1]), header[2], line))
        elif _MIG.match(line):
            _block(blocks, damage, line).mig_devices += 1
        elif _NVML.match(line):
            _message(_block(blocks, damage, line), line, damage)
        elif line and not line.isspace():
            _other(blocks, line, position == last, damage)
    _check_last_header(blocks, text, damage)
    return _once(blocks, damage)


def _block(blocks: list[GpuText], damage: Damage, line: str) -> GpuText:
    if not blocks:
        blocks.append(GpuText(None))
        damage.add("no_gpu_header", "start", line)
    return blocks[-1]


def _gpu(index: int, rest: str, line: str) -> GpuText:
    name, _, uuid = rest.partition("(UUID:")
    return GpuText(index, name.strip() or None, uuid.strip().rstrip(")").strip() or None, line)


def _message(gpu: GpuText, line: str, damage: Damage) -> None:
    lower = line.lower()
    if "inactive" in lower:
        gpu.condition = "all_inactive"
    elif "not supported" in lower or "unsupported" in lower:
        gpu.condition = "unsupported"
    else:
        gpu.failed = True
        damage.add(error_kind(line.partition(":")[2]) or "nvml_failed", gpu.where, line)


def _other(blocks: list[GpuText], line: str, is_last: bool, damage: Damage) -> None:
    if is_last and blocks and _BEGUN.match(line):
        blocks[-1].cut = True
        damage.add("truncated", blocks[-1].where, line)
    elif blocks and "support" in line[:1000].lower() and error_kind(line) == "unsupported":
        blocks[-1].condition = "unsupported"
    else:
        damage.foreign(line)


def _check_last_header(blocks: list[GpuText], text: str, damage: Damage) -> None:
    """A header that ends the text inside its name or UUID says neither."""
    if not blocks or text.endswith("\n") or not text.rstrip().endswith(blocks[-1].header.strip() or "\n"):
        return
    gpu = blocks[-1]
    whole = gpu.header.rstrip().endswith(")") or (gpu.uuid is None and all(b.uuid is None for b in blocks[:-1]))
    if not whole:
        gpu.cut = True
        gpu.name = gpu.name if "(UUID:" in gpu.header else None
        gpu.uuid = None
        damage.add("truncated", gpu.where, gpu.header)


def _once(blocks: list[GpuText], damage: Damage) -> list[GpuText]:
    """A GPU listed twice counts once: with the later listing, unless that one holds less."""
    kept: dict[tuple[int | None, str | None], GpuText] = {}
    for gpu in blocks:
        key = (gpu.index, gpu.uuid)
        first = kept.get(key)
        if first is None:
            kept[key] = gpu
            continue
        gpu.mig_devices = max(gpu.mig_devices, first.mig_devices)
        if not first.links and first.condition is None:
            kept[key] = gpu
        elif gpu.links or gpu.condition:
            same = len(first.links) == len(gpu.links) and all(
                a.text == b.text for a, b in zip(first.links, gpu.links, strict=True)
            )
            if not same or first.condition != gpu.condition:
                damage.add("repeated_listing", gpu.where, gpu.header)
            kept[key] = gpu if len(gpu.links) >= len(first.links) else first
    return list(kept.values())


def mark_cut(gpus: Sequence[GpuText], seen: Sequence[Mapping[int, Collection[str]]], damage: Damage) -> None:
    """Finds the place where the text ends too early, by what the other links and GPUs of the same name have. `seen[i]`
    holds the names that were read for each link of `gpus[i]`."""
    if not gpus or gpus[-1].condition or gpus[-1].failed or gpus[-1].cut:
        return
    gpu, links = gpus[-1], seen[-1]
    like = [other for g, other in zip(gpus[:-1], seen[:-1], strict=True) if g.name == gpu.name]
    last = gpu.links[-1] if gpu.links else None
    where = None
    if last is not None and last.number in links:
        fullest = max((len(names) for block in (*like, links) for names in block.values()), default=0)
        where = gpu.link_where(last.number) if 0 < len(links[last.number]) < fullest else None
    if where is None and max((len(other) for other in like), default=0) > len(links):
        where = gpu.where
    if where is not None:
        gpu.cut = True
        damage.add("truncated", where, last.line if last else gpu.header)


def mark_gaps(gpus: Sequence[GpuText], seen: Sequence[Mapping[int, Collection[str]]], damage: Damage) -> None:
    """Links that have fewer lines than the others of their GPU, other than the last one of a text that was cut."""
    for gpu, links in zip(gpus, seen, strict=True):
        fullest = max((len(names) for names in links.values()), default=0)
        for number, names in links.items():
            at_cut = gpu.cut and number == gpu.links[-1].number
            if 0 < len(names) < fullest and not at_cut:
                damage.add("missing_lines", gpu.link_where(number))
