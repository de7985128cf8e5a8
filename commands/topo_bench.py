"""Reads the record of `epctl bench` for `epctl topo --bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epctl.bench.record import SCHEMA, Record, Row
from epctl.core.errors import EpctlError
from epctl.ops.link.cases import BY_SMS
from epctl.probes import paths
from epctl.topo.measured import Rate, Run

if TYPE_CHECKING:
    from epctl.core.op import Layout

MOST_BYTES = 64 << 20
LEAST_BYTES = 64 << 20
"""Of a transfer: at 450 GB/s it takes 149 µs, beside which the few µs of a launch do not count."""
_TODO = "make one with `epctl bench link --json FILE` on all GPUs of the machine"


def run_of(path: Path) -> Run:
    """What a record tells of NVLinks. Raises EpctlError for what is no record, was no run on the GPUs of one machine, or timed no link."""
    record = _record(path)
    _check(record.layout, path.name)
    rates = tuple(rate for row in record.rows if (rate := _rate(row)) is not None)
    if not rates:
        why = f"no case of link that worked moves at least {LEAST_BYTES >> 20} MiB from one GPU to another"
        raise EpctlError(f"{path.name} has no rate of a link", why, _TODO)
    where = record.layout
    wrong = next((rate for rate in rates if max(rate.source, rate.target) >= where.num_ranks), None)
    if wrong is not None or any(min(rate.source, rate.target) < 0 or rate.source == rate.target for rate in rates):
        why = "a case names ranks that the run does not have"
        raise EpctlError(f"{path.name} is damaged", why, _TODO)
    uuids = {clocks.rank: clocks.uuid for clocks in record.clocks}
    cautions = [*record.cautions, *record.warnings]
    if not record.complete:
        cautions.append("the run ended before all cases had")
    return Run(
        path.name,
        where.hosts[0],
        where.gpu_name,
        where.num_gpus,
        where.num_links_per_gpu,
        tuple(uuids[rank] for rank in range(where.num_ranks)) if len(uuids) == where.num_ranks else (),
        rates,
        tuple(dict.fromkeys(cautions)),
    )


def _record(path: Path) -> Record:
    raw = paths.content(path, MOST_BYTES)
    if len(raw) > MOST_BYTES:
        raise EpctlError(f"{path} is refused", f"it is larger than {MOST_BYTES >> 20} MiB", _TODO)
    try:
        record = msgspec.json.decode(raw, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EpctlError(f"{path} is no record of epctl bench", str(error), _TODO) from None
    if record.schema != SCHEMA:
        told = " ".join(str(record.schema.get(key, "?")) for key in ("name", "version"))
        why = f"its schema is {told}; {SCHEMA['name']} {SCHEMA['version']} is read"
        raise EpctlError(f"{path} is no record of epctl bench", why, _TODO)
    return record


def _check(where: Layout, name: str) -> None:
    why = ""
    if where.tier != "gpu":
        why = "the run was without GPUs: it says nothing about links"
    elif where.emulated:
        why = "its nodes were played on one machine (--emulate-nodes)"
    elif len(set(where.hosts)) != 1:
        why = f"it is of {len(set(where.hosts))} machines; links are drawn for one at a time"
    elif where.num_ranks != where.num_gpus:
        why = f"{where.num_ranks} ranks shared {where.num_gpus} GPUs"
    if why:
        raise EpctlError(f"{name} cannot be put on links", why, _TODO)


def _rate(row: Row) -> Rate | None:
    """None for what is no single transfer over a link, failed, or is too small to show a rate."""
    kind, source, target = row.params.get("kind"), row.params.get("source"), row.params.get("target")
    if row.op != "link" or not row.ok or not row.gbs or not (kind == "copy-engine" or kind in BY_SMS):
        return None
    if not isinstance(source, int) or not isinstance(target, int) or int(row.params.get("bytes", 0)) < LEAST_BYTES:
        return None
    return Rate(source, target, row.gbs, "copy engine" if kind == "copy-engine" else "SMs", row.case)
