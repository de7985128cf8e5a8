"""What more queue pairs, or another spread of source ports, would change."""

from __future__ import annotations

from collections.abc import Sequence

from epctl.fabric import engine
from epctl.fabric.ecmp import NUM_PORTS
from epctl.fabric.flows import Fixed, Flows, Pairing, fixed, flows_of
from epctl.fabric.report import WhatIf
from epctl.fabric.request import Settled
from epctl.fabric.routing import Sends
from epctl.fabric.streams import Group, Stream
from epctl.fabric.topology import Fabric

PAIRINGS = (Pairing(1), Pairing(2), Pairing(4), Pairing(8), Pairing(8, 1))
MAX_LOOKS = 200_000
"""Flows times seeds for each pairing."""
MAX_SEEDS = 100


def what_if(found: Settled, every: Sequence[Stream], sends: Sequence[Sends]) -> tuple[WhatIf, ...]:
    """A row for each traffic that crosses spines and each pairing; with a single source port, QPs of a pair share one path."""
    fabric = found.fabric
    rows = []
    for stream, sent in zip(every, sends, strict=True):
        for pairing in PAIRINGS:
            flows = flows_of(fabric, sent, pairing)
            total = fixed(fabric, sent, flows)
            if not total.spine:
                break
            seeds = max(1, min(MAX_SEEDS, MAX_LOOKS // len(flows)))
            job = engine.Job(
                (engine.Loaded(fabric, sent.unit_bytes, total, flows, seeds),),
                (Group("", (0,)),),
                tuple(range(found.request.seed, found.request.seed + seeds)),
            )
            largest = [row[0] for row in engine.run(job)]
            rows.append(
                WhatIf(
                    stream.phase,
                    stream.traffic,
                    pairing.qps,
                    min(pairing.ports, NUM_PORTS),
                    seeds,
                    sum(largest) / len(largest),
                    _evenly(fabric, flows, total) * sent.unit_bytes,
                )
            )
    return tuple(rows)


def _evenly(fabric: Fabric, flows: Flows, total: Fixed) -> float:
    """Largest of the NIC loads and of each leaf's crossing units, shared alike by its uplinks."""
    up: dict[int, int] = {}
    down: dict[int, int] = {}
    for leaf, other, _, units in flows.crossing():
        up[leaf] = up.get(leaf, 0) + units
        down[other] = down.get(other, 0) + units
    shares = (units / len(fabric.uplinks[leaf]) for side in (up, down) for leaf, units in side.items())
    return max(*total.nic_out, *total.nic_in, *shares)
