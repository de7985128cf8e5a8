"""What `epctl bench` shows of the network: which adapters carried its rows, and what other tools measure on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epctl.bench.record import Record, Row
from epctl.core.op import Layout
from epctl.core.op_extras import Opinion


def carriers(row: Row) -> tuple[str, ...]:
    """Adapters that carried the row, on any rank."""
    return tuple(sorted({name for one in row.told for name in one.carried_by}))


def lines(record: Record) -> tuple[str, ...]:
    """Carriers, rows that nobody can say who carried, and second opinions."""
    opinions = (f"second opinion: {opinion(one)}" for one in record.opinions)
    return (*_carried(record.rows), *_uncounted(record.rows, record.layout), *opinions)


def _carried(rows: Iterable[Row]) -> Iterator[str]:
    """`gin: rank 0 sent by mlx5_0, rank 1 by mlx5_1`: once for all rows of an op that went the same ways."""
    ways: dict[tuple[str, tuple[tuple[str, ...], ...]], int] = {}
    for row in rows:
        if carriers(row):
            key = (row.op, tuple(one.carried_by for one in row.told))
            ways[key] = ways.get(key, 0) + 1
    for (op, by_rank), count in ways.items():
        told = ", ".join(f"rank {rank} over {' and '.join(names)}" for rank, names in enumerate(by_rank) if names)
        yield f"{op}: sent by {told} ({count} case{'s' if count > 1 else ''}; the ports' counters)"


def _uncounted(rows: Iterable[Row], layout: Layout) -> Iterator[str]:
    """Bytes went over a network, and no counter moved."""
    if layout.tier == "cpu" or layout.emulated:
        return
    silent = [row for row in rows if row.ok and row.told and row.traffic.rdma_out_bytes and not carriers(row)]
    if silent:
        yield f"{silent[0].op}: no port's counter tells who carried {len(silent)} of the rows (sysfs hides it, or it counts late)"


def opinion(one: Opinion) -> str:
    """`mlx5_0 → mlx5_1: nominal 400, usable 392.1, ib_write_bw 391.0 Gb/s`"""
    head = f"{one.link}: nominal {one.nominal_gbps:g}, usable {one.usable_gbps:.1f}"
    if one.measured_gbps is None:
        return f"{head} Gb/s; {one.problem}"
    return f"{head}, {one.tool} {one.measured_gbps:.1f} Gb/s"
