"""The matrix of `nvidia-smi topo -m` as a part of the graph. It tells distances, not the tree: PCIe switches are not drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from epctl.topo.graph import Claim, Distance, Finding, Node, Part, Source
from epctl.topo.nvlinks import from_pairs, goes_through_switch

SOURCE = "nvidia-smi topo -m"
_BONDED = re.compile(r"NV(\d{1,3})", re.ASCII)
_OLD = {"PSB": "PXB", "SOC": "SYS"}
"""Words of old drivers."""
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")


class Matrix(Struct, frozen=True):
    """What was read. `rows`: row label → cells by column; `nics`: column label → device name."""

    gpus: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    nics: Mapping[str, str] = field(default_factory=dict)
    numa: Mapping[str, str] = field(default_factory=dict)
    """GPU label → NUMA affinity as printed."""


def cell(matrix: Matrix, row: str, column: str) -> str:
    """One cell; '' where the text is cut."""
    cells = matrix.rows.get(row, ())
    at = matrix.columns.index(column)
    return _OLD.get(cells[at], cells[at]) if at < len(cells) else ""


def part_of(matrix: Matrix, host: str, name: str, *, known: bool = False) -> Part:
    """`known`: other sources described the machine, only what this one says is added."""
    counts: dict[tuple[int, int], int] = {}
    for a, one in enumerate(matrix.gpus):
        for b, other in enumerate(matrix.gpus[a + 1 :], a + 1):
            bonded = _BONDED.fullmatch(cell(matrix, one, other))
            if bonded is not None:
                counts[a, b] = int(bonded[1])
    claims = [*_gpu_claims(matrix, host, counts), *_path_claims(matrix, host)]
    if known:  # the snapshot may hold such a matrix, too
        claims = [replace(claim, source=f"{SOURCE} in {name}") for claim in claims]
    source = Source(name, "topo_matrix")
    if known:
        return Part(source, (), (), tuple(claims))
    nodes = _devices(matrix, host)
    more, links = from_pairs(host, counts, len(matrix.gpus), SOURCE)
    findings = []
    if len(matrix.gpus) == 2 and counts:
        text = f"{host}: two GPUs with bonded NVLinks; the text does not say whether a switch lies between"
        findings.append(Finding("note", text, (SOURCE,)))
    if len(matrix.gpus) > 1 and not counts:
        text = f"{host}: the text shows no NVLink; `nvidia-smi topo -mp` never does, `topo -m` would"
        findings.append(Finding("note", text, (SOURCE,)))
    distances = tuple(_distances(matrix, host))
    return Part(source, (*nodes, *more), tuple(links), tuple(claims), tuple(findings), distances)


def _gpu_claims(matrix: Matrix, host: str, counts: dict[tuple[int, int], int]) -> list[Claim]:
    found = []
    switched = goes_through_switch(counts, len(matrix.gpus)) or len(matrix.gpus) == 2
    for i, gpu in enumerate(matrix.gpus):
        mine = [links for pair, links in counts.items() if i in pair]
        if mine:
            bonded = max(mine) if switched else sum(mine)
            found.append(Claim(host, f"GPU {i}", "active NVLinks", str(bonded), SOURCE))
        affinity = matrix.numa.get(gpu, "")
        if affinity.isascii() and affinity.isdigit():
            found.append(Claim(host, f"GPU {i}", "NUMA node", affinity, SOURCE))
    return found


def _path_claims(matrix: Matrix, host: str) -> list[Claim]:
    found = []
    for i, gpu in enumerate(matrix.gpus):
        for column, device in matrix.nics.items():
            level = cell(matrix, gpu, column)
            if level in DISTANCES:
                found.append(Claim(host, f"GPU {i} - {device}", "path", level, SOURCE))
    return found


def _devices(matrix: Matrix, host: str) -> list[Node]:
    nodes = [Node(host, "host", host, "", SOURCE)]
    for i, gpu in enumerate(matrix.gpus):
        parent = host
        affinity = matrix.numa.get(gpu, "")
        if affinity.isascii() and affinity.isdigit():
            parent = f"{host}/numa{int(affinity)}"
            numa = Node(parent, "numa", f"NUMA node {int(affinity)}", host, SOURCE, {"numa": int(affinity)})
            nodes += [] if numa in nodes else [numa]
        nodes.append(Node(f"{host}/gpu{i}", "gpu", f"GPU {i}", parent, SOURCE, {"index": i}))
    for column, device in matrix.nics.items():
        nodes.append(Node(f"{host}/{device}", "nic", device, host, SOURCE, {"fabric": _near_some(matrix, column)}))
    return nodes


def _distances(matrix: Matrix, host: str) -> Iterator[Distance]:
    ids = {gpu: f"{host}/gpu{i}" for i, gpu in enumerate(matrix.gpus)}
    ids.update({column: f"{host}/{device}" for column, device in matrix.nics.items()})
    labels = list(ids)
    for i, row in enumerate(labels):
        for column in labels[i + 1 :]:
            level = cell(matrix, row, column)
            if level in DISTANCES:
                yield Distance(ids[row], ids[column], level, SOURCE)


def _near_some(matrix: Matrix, column: str) -> bool:
    """The text tells no rates: where some NICs share a PCIe switch with a GPU, those that are across the machine from every GPU are
    taken for front-end cards."""
    best = {name: min((_rank(cell(matrix, gpu, name)) for gpu in matrix.gpus), default=9) for name in matrix.nics}
    return best[column] <= 1 or min(best.values()) > 1


def _rank(level: str) -> int:
    return DISTANCES.index(level) if level in DISTANCES else 9
