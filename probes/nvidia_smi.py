"""What the texts of `nvidia-smi nvlink` and `nvidia-smi topo` add to NVML, or say in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from epctl.core.fact import Absent, Fact, Reason
from epctl.core.snapshot.gpu import Gpu, NvLink, PathCell
from epctl.probes.readers import TOOLS, read
from epctl.probes.reading import Reading
from epctl.probes.source import Source

TIMEOUT_S = 20.0
"""Without persistence mode the driver wakes up every GPU first."""

_REASONS: dict[str, Reason] = {
    "command_not_found": "tool_missing",
    "library_missing": "tool_missing",
    "permission": "permission",
    "gpu_access_blocked": "permission",
    "unsupported": "unsupported",
    "timeout": "timed_out",
    "unparsable": "unparsable",
    "no_devices": "not_found",
}
_NOT_A_WORD = re.compile(r"[^a-z0-9]+")
_GPU = re.compile(r"GPU(\d{1,4})\Z", re.ASCII)
_OTHER_CAUSE = Absent("not_read", "NVML did not answer, and nvidia-smi does not print it")
_MAX_INTEGER = 2**63 - 1


def reading(source: Source, tool: str) -> Reading[Any] | Absent:
    """What the reader of `tool` sees in the tool's output; an Absent when that is an error, or nothing after a failure."""
    argv = TOOLS[tool].split()
    found = source.run(*argv, timeout_s=TIMEOUT_S)
    if isinstance(found, Absent):
        return found
    seen = read(tool, found.raw)
    if seen.status == "error":
        error = seen.error or {}
        kind, message = str(error.get("kind", "failed")), str(error.get("message", ""))
        return Absent(_REASONS.get(kind, "failed"), f"{TOOLS[tool]}: {kind.replace('_', ' ')}", _plain(message)[:200])
    if seen.status == "empty" and found.code:
        return Absent("failed", f"{TOOLS[tool]} ended with code {found.code} and printed nothing")
    return seen


def problems(tool: str, seen: Reading[Any] | Absent) -> tuple[str, ...]:
    """Notes on a text that could be read in part only."""
    if isinstance(seen, Absent):
        return ()
    return tuple(
        _plain(f"{TOOLS[tool]}: {problem.kind.replace('_', ' ')}, {problem.where or 'no place'}: {problem.line}")[:300]
        for problem in seen.problems[:20]
    )


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def speed_lines(status: Reading[Any] | Absent) -> Fact[bool]:
    """Whether `nvidia-smi nvlink -s` printed a GB/s line for GPU 0."""
    if isinstance(status, Absent):
        return status
    return any(gpu.index == 0 and any(rate is not None for rate in gpu.links.values()) for gpu in status.facts.gpus)


def listed(*texts: Reading[Any] | Absent) -> tuple[Gpu, ...]:
    """GPUs with index, name, UUID and links, from the first listing of `nvidia-smi nvlink` that has any."""
    for seen in texts:
        gpus = () if isinstance(seen, Absent) else [gpu for gpu in seen.facts.gpus if gpu.index is not None]
        once = {gpu.index: gpu for gpu in gpus}
        if once:
            return tuple(_gpu(once[index]) for index in sorted(once))
    return ()


def labelled(topo: Reading[Any] | Absent) -> tuple[Gpu, ...]:
    """GPUs by the labels of `nvidia-smi topo -m`, with nothing but their index."""
    labels = () if isinstance(topo, Absent) else topo.facts.gpus
    found = sorted({int(label[1]) for label in map(_GPU.match, labels) if label})
    return tuple(_bare(index) for index in found)


def _gpu(gpu: Any) -> Gpu:  # noqa: ANN401 - Gpu of one of three readers
    name = _plain(gpu.name) if gpu.name else Absent("not_found", "the header has no name")
    uuid = _plain(gpu.uuid) if gpu.uuid else Absent("not_found", "the header has no UUID")
    return structs.replace(_bare(gpu.index), name=name, uuid=uuid)


def _bare(index: int) -> Gpu:
    absent = {name: _OTHER_CAUSE for name in Gpu.__struct_fields__ if name != "index"}
    return Gpu(index=index, **absent)


def with_links(
    gpus: Sequence[Gpu], status: Reading[Any] | Absent, errors: Reading[Any] | Absent
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """GPUs with the links and error counters that NVML did not tell, and notes on what the two sources tell differently."""
    notes: list[str] = []
    filled = []
    for gpu in gpus:
        told = _links_of(gpu, status)
        links, note = _merge(gpu.links, told)
        if note:
            notes.append(f"GPU {gpu.index}: {note}")
        filled.append(structs.replace(gpu, links=_with_errors(links, _match(gpu, errors))))
    if gpus and not isinstance(status, Absent):
        printed = {gpu.index for gpu in status.facts.gpus if gpu.index is not None}
        unknown = sorted(printed - {gpu.index for gpu in gpus})
        if unknown:
            notes.append(f"nvidia-smi nvlink -s lists GPUs that NVML does not: {unknown[:20]}")
    return tuple(filled), tuple(notes)


def _match(gpu: Gpu, seen: Reading[Any] | Absent) -> Any:  # noqa: ANN401 - Gpu of a reader, or None
    """The same GPU in a listing: by UUID where both have one, else by index."""
    if isinstance(seen, Absent):
        return None
    if isinstance(gpu.uuid, str):
        same = next((other for other in seen.facts.gpus if other.uuid == gpu.uuid), None)
        if same is not None:
            return same
    return next((other for other in seen.facts.gpus if other.index == gpu.index), None)


def _links_of(gpu: Gpu, status: Reading[Any] | Absent) -> Fact[tuple[NvLink, ...]]:
    """Links as `nvidia-smi nvlink -s` lists them. Of a GPU whose links are all inactive it prints that sentence alone: it is
    given as many inactive links as others of its name have."""
    if isinstance(status, Absent):
        return status
    found = _match(gpu, status)
    if found is None:
        return Absent("not_found", "nvidia-smi nvlink -s does not list the GPU")
    if found.links:
        return tuple(
            NvLink(
                number, rate is not None, rate if rate is not None else Absent("unsupported", "the link is inactive")
            )
            for number, rate in sorted(found.links.items())
        )
    if found.condition == "all_inactive":
        names = [other for other in status.facts.gpus if other.name == found.name]
        count = max((max(other.links, default=-1) + 1 for other in names), default=0)
        return tuple(
            NvLink(i, False, Absent("unsupported", "the link is inactive")) for i in range(min(count, 64) or 1)
        )
    if found.condition == "unsupported":
        return ()
    return Absent("unparsable", "nvidia-smi nvlink -s lists the GPU, its links cannot be read")


def _merge(links: Fact[tuple[NvLink, ...]], told: Fact[tuple[NvLink, ...]]) -> tuple[Fact[tuple[NvLink, ...]], str]:
    if isinstance(told, Absent):
        return links, ""
    if isinstance(links, Absent):
        return told, ""
    active = [{link.link for link in side if link.active is True} for side in (links, told)]
    note = ""
    if active[0] != active[1]:
        note = f"NVML tells {len(active[0])} active NVLinks, nvidia-smi nvlink -s {len(active[1])}; NVML is taken"
    speeds = {link.link: link.speed_gbs for link in told}
    return tuple(_faster(link, speeds) for link in links), note


def _faster(link: NvLink, speeds: dict[int, Fact[float]]) -> NvLink:
    if isinstance(link.speed_gbs, Absent) and isinstance(speeds.get(link.link), float):
        return structs.replace(link, speed_gbs=speeds[link.link])
    return link


def _with_errors(links: Fact[tuple[NvLink, ...]], told: Any) -> Fact[tuple[NvLink, ...]]:  # noqa: ANN401
    """`links` with the counters of `nvidia-smi nvlink -e` where they have none of their own."""
    if isinstance(links, Absent) or told is None:
        return links
    return tuple(
        structs.replace(link, errors=_counters(told.links[link.link]))
        if isinstance(link.errors, Absent) and told.links.get(link.link)
        else link
        for link in links
    )


def _counters(printed: dict[str, Any]) -> Fact[tuple[tuple[str, int], ...]]:
    """Counters under NVML's names: `CRC FLIT Errors` is crc_flit. Traffic, bit error rates and corrected symbols are no errors."""
    found = {}
    for name, value in printed.items():
        words = _NOT_A_WORD.sub("_", name.lower()).strip("_")
        if isinstance(value, int) and not re.search(r"packets$|bytes$|^fec_", words):
            legacy = re.match(r"(replay|recovery|crc(?:_flit|_data)?|ecc_data)_errors?\Z", words)
            found[legacy[1] if legacy else words] = min(value, _MAX_INTEGER)
    return tuple(found.items()) or Absent("unsupported", "nvidia-smi nvlink -e prints no counter")


def cells(topo: Reading[Any] | Absent) -> Fact[tuple[PathCell, ...]]:
    """The rows of the GPUs in `nvidia-smi topo -m`; NICs by the device that the legend names."""
    if isinstance(topo, Absent):
        return topo
    facts = topo.facts
    if not facts.rows:
        return Absent("failed", f"{TOOLS['topo']} printed no matrix")
    names = {nic.label: nic.device or nic.label for nic in facts.nics}
    return tuple(
        PathCell(int(label[1]), _plain(names.get(column, column)), _plain(path))
        for row, paths in facts.rows.items()
        if (label := _GPU.match(row))
        for column, path in zip(facts.columns, paths, strict=False)
    )


def affinity(topo: Reading[Any] | Absent, index: int) -> tuple[str, int]:
    """CPU list and NUMA node of a GPU as `nvidia-smi topo -m` prints them; '' and -1 where it does not."""
    if isinstance(topo, Absent):
        return "", -1
    label = f"GPU{index}"
    node = topo.facts.numa_affinity.get(label) or ""
    return _plain(topo.facts.cpu_affinity.get(label) or ""), int(node) if re.fullmatch(r"[0-9]{1,5}", node) else -1
