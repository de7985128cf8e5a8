"""How GPUs and NICs of a node are connected: the matrix of `nvidia-smi topo -m` (or `-mp`) with its legends."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct, field

from epctl.probes.readers._listing import Damage, conclude, listing_text
from epctl.probes.readers._matrix import GPU, NUMBERED, Matrix, Row, header_of, row_of
from epctl.probes.reading import Reading

_NIC_LEGEND = re.compile(r"\s{0,32}(NIC\d{1,5})\s{0,8}:\s{0,8}(\S{1,200})\s{0,200}\Z", re.ASCII)
_NIC_LEGEND_CUT = re.compile(r"\s{0,32}NIC\d{1,5}\s{0,8}:?\s{0,8}\Z", re.ASCII)
_LEGEND = re.compile(r"\s{0,32}(?:(?:NIC )?Legend:|[A-Z][A-Z0-9#]{0,5}\s{0,32}= )")
_LEVELS = ("PIX", "PSB", "PXB", "PHB", "NODE", "SYS", "SOC")
"""From near to far. PSB and SOC are what old drivers print."""


class Nic(Struct, frozen=True):
    label: str
    device: str | None
    """None when the legend does not name it."""


class Nearest(Struct, frozen=True):
    level: str
    devices: list[str]
    """All NICs at that level, in the order of the columns; by label where the legend does not name the device."""


class Facts(Struct, frozen=True):
    gpus: list[str] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)
    """Row label → levels, one per column; fewer where the text is cut."""
    cpu_affinity: dict[str, str | None] = field(default_factory=dict)
    """GPU → CPUs as printed, None where blank or N/A; empty when the text has no such column."""
    numa_affinity: dict[str, str | None] = field(default_factory=dict)
    gpu_numa_id: dict[str, str | None] = field(default_factory=dict)
    nearest_nics: dict[str, Nearest] = field(default_factory=dict)
    nvlink_shown: bool | None = None
    """Whether any cell is an NVLink (`-mp` shows the PCIe path instead)."""


def read(raw: bytes) -> Reading[Facts]:
    """What `nvidia-smi topo -m` says."""
    text = listing_text(raw)
    damage, nothing = Damage(text), Facts()
    matrices, legend = _parts(text, damage)
    first = next((matrix for matrix in matrices if matrix.rows), matrices[0] if matrices else None)
    if first is None:
        return conclude(raw, text, nothing, nothing, damage)
    if not text.endswith("\n"):
        _drop_cut_end(first, text)
        _drop_cut_name(first, text, legend)
    _check(first, damage)
    for other in matrices:
        if other is not first and other.header and other.rows and not _same(first, other):
            damage.add("repeated_listing", "second matrix", other.header.line)
    return conclude(raw, text, _facts(first, legend, damage), nothing, damage)


def _parts(text: str, damage: Damage) -> tuple[list[Matrix], dict[str, str]]:
    matrices: list[Matrix] = []
    legend: dict[str, str] = {}
    for line in text.split("\n"):
        if not line or line.isspace():
            continue
        if (header := header_of(line)) is not None:
            matrices.append(Matrix(header))
        elif (row := _row(matrices, line)) is not None:
            _add(matrices, row, damage)
        elif (named := _NIC_LEGEND.match(line)) is not None:
            if legend.setdefault(named[1], named[2]) != named[2]:
                damage.add("contradiction", f"NIC Legend {named[1]}", line)
        elif matrices and _NIC_LEGEND_CUT.match(line):
            damage.add("truncated", "NIC Legend", line)
        elif not _LEGEND.match(line):
            damage.foreign(line)
    return matrices, legend


def _row(matrices: list[Matrix], line: str) -> Row | None:
    header = matrices[-1].header if matrices else None
    if header is None:
        return row_of(line, None, (), 0)
    return row_of(line, len(header.labels), header.known, len(header.tail))


def _add(matrices: list[Matrix], row: Row, damage: Damage) -> None:
    if not matrices:
        matrices.append(Matrix(None))
        damage.add("truncated", "header", row.line)
    first = matrices[-1].rows.setdefault(row.label, row)
    if first.cells != row.cells:
        damage.add("repeated_listing", row.label, row.line)


def _drop_cut_end(matrix: Matrix, text: str) -> None:
    """Without a line end, the last word of a row may lack its end (NV1 of NV18)."""
    row = next(reversed(matrix.rows.values()), None)
    if row is None or not text.endswith(row.line):
        return
    if len(row.cells) < len(matrix.columns):
        del row.cells[-1:]
    elif row.tail and matrix.header and sum(map(bool, row.tail)) < len(matrix.header.tail):
        row.tail.pop()


def _drop_cut_name(matrix: Matrix, text: str, legend: dict[str, str]) -> None:
    """The same for the legend (mlx5_1 of mlx5_10), where further NICs should follow."""
    last = _NIC_LEGEND.match(text[text.rfind("\n") + 1 :])
    if last is not None and matrix.columns and matrix.columns[-1] != last[1]:
        legend.pop(last[1], None)


def _check(matrix: Matrix, damage: Damage) -> None:
    """A whole matrix has as many rows as columns, and a cell in each."""
    columns = matrix.columns
    for label, row in matrix.rows.items():
        if len(row.cells) < len(columns):
            damage.add("truncated", f"row {label}", row.line)
        if row.tail is None:
            damage.add("ambiguous", f"columns behind the matrix of row {label}", row.line)
    missing = [label for label in columns if label not in matrix.rows]
    if missing:
        damage.add("truncated", f"row {missing[0]}")
    for label in matrix.rows.keys() - set(columns):
        damage.add("missing_column", f"column {label}", matrix.rows[label].line)


def _same(first: Matrix, other: Matrix) -> bool:
    return (
        len(first.rows) == len(other.rows)
        and first.columns == other.columns
        and all(label in other.rows and other.rows[label].cells == row.cells for label, row in first.rows.items())
    )


def _facts(matrix: Matrix, legend: dict[str, str], damage: Damage) -> Facts:
    columns = matrix.columns
    gpus = [label for label in columns if GPU.match(label)]
    nics = [
        Nic(label, legend.get(label) or (None if NUMBERED.match(label) else label))
        for label in columns
        if not GPU.match(label)
    ]
    unnamed = [nic.label for nic in nics if nic.device is None]
    if unnamed:
        damage.add("truncated", f"NIC Legend {unnamed[0]}")
    names = {nic.label: nic.device or nic.label for nic in nics}
    nearest = {gpu: _nearest(matrix.rows[gpu], columns, names) for gpu in gpus if gpu in matrix.rows}
    cells = [cell for row in matrix.rows.values() for cell in row.cells]
    return Facts(
        gpus=gpus,
        nics=nics,
        columns=columns,
        rows={label: row.cells for label, row in matrix.rows.items()},
        cpu_affinity=_tails(matrix, gpus, "cpu"),
        numa_affinity=_tails(matrix, gpus, "numa"),
        gpu_numa_id=_tails(matrix, gpus, "id"),
        nearest_nics={gpu: near for gpu, near in nearest.items() if near is not None},
        nvlink_shown=any(cell.startswith("NV") for cell in cells) if cells else None,
    )


def _nearest(row: Row, columns: list[str], names: dict[str, str]) -> Nearest | None:
    if len(row.cells) < len(columns):
        return None  # a NIC behind the cut may be nearer
    levels = {label: cell for label, cell in zip(columns, row.cells, strict=False) if label in names}
    for level in _LEVELS:
        devices = [names[label] for label, cell in levels.items() if cell == level]
        if devices:
            return Nearest(level, devices)
    return None


def _tails(matrix: Matrix, gpus: Iterable[str], kind: str) -> dict[str, str | None]:
    header = matrix.header
    if header is None or kind not in header.tail:
        return {}
    at = header.tail.index(kind)
    values: dict[str, str | None] = {}
    for gpu in gpus:
        row = matrix.rows.get(gpu)
        if row is None or len(row.cells) < len(header.labels):
            continue
        fields = row.tail or []
        # The last column is wider than its header: a blank field may stand in front of its value.
        found = fields[at : at + 1] if at + 1 < len(header.tail) else [text for text in fields[at:] if text][:1]
        value = found[0] if found else ""
        values[gpu] = None if value in {"", "N/A"} else value
    return values
