"""Which variants of a request a page holds, and what it holds of each: the report of `--format json` in fewer bytes, and further draws of
the hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from epctl.fabric import detail, ecmp
from epctl.fabric.placement import LAYOUTS
from epctl.fabric.report import FlowRow, Report, TrafficReport
from epctl.fabric.request import Request, changed, settle
from epctl.fabric.routing import TRANSFERS
from epctl.fabric.topology import WIRINGS, Fabric
from epctl.model.refusal import RefusalError
from epctl.page.fabric_command import command

EVERY_UP_TO = 64
"""GPUs up to which a page holds every combination; past it, those that differ from the request in one way."""
SEVERAL_UP_TO = 256
"""GPUs past which a page holds the request alone."""
HASHES = 8
"""Draws of the hash in a page: seeds from the request's on."""
HASHES_UP_TO = 256
MOST_BYTES = 6_000_000
"""Of all variants; more make a page that opens slowly."""

Simulated = Callable[[Request], Report]


class Choice(Struct, frozen=True):
    """Where the toggles of a page stand."""

    wiring: str
    layout: str
    transfer: str

    @property
    def key(self) -> str:
        """What the page's script looks a variant up by."""
        return f"{self.wiring}|{self.layout}|{self.transfer}"


class Variants(Struct, frozen=True):
    """`held`: key → variant. `refused`: key → why it cannot be. `left_out`: keys that would make the page too large."""

    base: str
    held: dict[str, dict[str, Any]]
    topologies: dict[str, dict[str, Any]]
    """By wiring: links, leaves, spines."""
    refused: dict[str, str]
    left_out: tuple[str, ...]
    hashes: tuple[int, ...]
    """Seeds of the hash; the first is the request's."""


def variants(request: Request, simulated: Simulated) -> Variants:
    """All that a page shows for a request. Raises RefusalError where the request itself cannot be."""
    fabric = settle(request, traced=True).fabric
    base = Choice(fabric.wiring, request.layout, request.transfer)
    hashes = tuple(range(request.seed, request.seed + (HASHES if fabric.num_gpus <= HASHES_UP_TO else 1)))
    held: dict[str, dict[str, Any]] = {}
    topologies: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    left_out = []
    size = 0
    for choice in _choices(base):
        if choice != base and (size > MOST_BYTES or not _wanted(choice, base, fabric.num_gpus)):
            left_out.append(choice.key)
            continue
        try:
            mine = _changed(request, choice, base)
            report = simulated(mine)
        except RefusalError as error:
            if choice == base:
                raise
            refused[choice.key] = f"{error.what}: {error.why}"
            continue
        own = settle(mine, traced=True).fabric
        held[choice.key] = {"command": command(mine), **_variant(report, own, hashes)}
        size += len(msgspec.json.encode(held[choice.key]))
        topologies.setdefault(choice.wiring, _topology(report))
    return Variants(base.key, held, topologies, refused, tuple(left_out), hashes)


def _choices(base: Choice) -> Iterator[Choice]:
    """The request first, then the rest, nearest first."""
    wirings = WIRINGS if base.wiring in WIRINGS else (base.wiring,)
    every = [Choice(wiring, layout, transfer) for wiring in wirings for layout in LAYOUTS for transfer in TRANSFERS]
    return iter(sorted(every, key=lambda choice: _steps(choice, base)))


def _steps(choice: Choice, base: Choice) -> int:
    return sum(getattr(choice, field) != getattr(base, field) for field in ("wiring", "layout", "transfer"))


def _wanted(choice: Choice, base: Choice, num_gpus: int) -> bool:
    most = 3 if num_gpus <= EVERY_UP_TO else 1 if num_gpus <= SEVERAL_UP_TO else 0
    return _steps(choice, base) <= most


def _changed(request: Request, choice: Choice, base: Choice) -> Request:
    values: dict[str, Any] = {"layout": choice.layout, "transfer": choice.transfer}
    if choice.wiring != base.wiring:
        # Nodes of a leaf are a matter of the wiring: the other one's own default.
        values |= {"wiring": choice.wiring, "nodes_per_leaf": None}
    return changed(request, **values) if choice != base else request


def _topology(report: Report) -> dict[str, Any]:
    return {
        "fabric": report.fabric,
        "leaves": report.leaves,
        "spines": report.spines,
        "links": [[link.kind, link.lower, link.upper, link.lane, link.plane] for link in report.links],
        "links_left_out": report.links_left_out,
    }


def _variant(report: Report, fabric: Fabric, hashes: tuple[int, ...]) -> dict[str, Any]:
    """The report, without what `_topology` has; loads and flows as rows of numbers."""
    whole: dict[str, Any] = msgspec.to_builtins(report)
    for name in ("schema", "epctl", "fabric", "leaves", "spines", "links", "links_left_out"):
        whole.pop(name)
    whole["traffic"] = [_traffic(row, fabric, hashes) for row in report.traffic]
    return whole


def _traffic(row: TrafficReport, fabric: Fabric, hashes: tuple[int, ...]) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(row, loads=(), flow_rows=()))
    whole["loads"] = [[load.link, load.up_bytes, load.down_bytes] for load in row.loads]
    whole["flow_rows"] = [
        [flow.source, flow.target, flow.bytes, 0 if flow.port is UNSET else flow.port, *flow.path]
        for flow in row.flow_rows
    ]
    crossing = [flow for flow in row.flow_rows if len(flow.path) == 4]
    tables = [ecmp.Tables(seed) for seed in hashes[1:]]
    whole["redraws"] = [[end for flow in crossing for end in uplinks(flow, fabric, table)] for table in tables]
    return whole


def uplinks(flow: FlowRow, fabric: Fabric, tables: ecmp.Tables) -> tuple[int, int]:
    """Numbers of the links up to and down from the spine that a flow between two leaves takes with another draw of the hash."""
    if flow.port is UNSET:
        raise ValueError("this flow stays within a node")
    plane = (flow.path[0] - detail.first_nic(fabric)) // fabric.num_gpus
    leaf, other = fabric.leaf_of[plane][flow.source], fabric.leaf_of[plane][flow.target]
    crc = ecmp.flow_crc(flow.source, flow.target, int(flow.port))
    up, down = ecmp.path(fabric, tables, crc, leaf, other)
    begin = detail.first_uplink(fabric)
    return begin + up, begin + down
