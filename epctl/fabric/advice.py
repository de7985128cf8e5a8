"""What the figures of a report mean, in sentences. Each is said only where the figures bear it out."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UnsetType

from epctl.fabric.report import Report, WhatIf, mean_of
from epctl.fabric.request import Settled
from epctl.fabric.wording import listed, traffic_name

NICS_OF_A_SWITCH = 64
"""NIC ports of a leaf that a 128-port switch (51.2 Tb/s in 400 Gb/s ports) serves without oversubscription."""
UNEVEN = 1.25
SMALL = 0.05


def advice(found: Settled, report: Report) -> tuple[str, ...]:
    """Sentences, most telling first."""
    return tuple(dict.fromkeys((*_paths(report), *_relay(found, report), *_hash(report), *_fabric(found))))


def _paths(report: Report) -> Iterator[str]:
    moving = [row for row in report.traffic if mean_of(row.rdma_bytes) > 0]
    if not moving:
        yield "Nothing leaves the nodes: all traffic is NVLink's, and the wiring of the fabric does not matter."
        return
    near = [traffic_name(row) for row in moving if mean_of(row.spine_bytes) == 0]
    far = [row for row in moving if mean_of(row.spine_bytes) > 0]
    rail = report.fabric.wiring == "rail"
    if near:
        verb = "stays" if len(near) == 1 else "stay"
        why = " because sender and receiver are on the same rail" if rail else ""
        yield f"{listed(near)} {verb} below one leaf{why}: no spine is used, and no hash matters."
    if far and rail:
        shares = [mean_of(row.spine_bytes) / mean_of(row.rdma_bytes) for row in far]
        names, share = listed([traffic_name(row) for row in far]), f"{min(shares) * 100:.0f}"
        if f"{max(shares) * 100:.0f}" != share:
            share += f" to {max(shares) * 100:.0f}"
        yield f"Rail wiring does not keep {names} off the spines: {share} % of the bytes go to other rails or leaves."
    if far and report.fabric.wiring == "tor":
        names = listed([traffic_name(row) for row in far])
        yield f"With ToR wiring every byte that leaves its leaf's nodes crosses a spine: {names}."


def _relay(found: Settled, report: Report) -> Iterator[str]:
    for row in report.traffic:
        if row.traffic not in ("dispatch", "a2f") or row.phase != "decode" or mean_of(row.rdma_bytes) == 0:
            continue
        sends, tokens = mean_of(row.sends), found.batch
        if row.transfer == "relay":
            crossing = mean_of(row.spine_bytes) > 0
            effect = "does not avoid the spines here, but lowers their bytes" if crossing else "avoids the spines here"
            yield f"Relaying decode {row.traffic} {effect}: one RDMA send for each remote node, at the price of a stage of NVLink."
        elif found.topk > 1:
            yield (
                f"Picking {found.topk} experts is not {found.topk} sends: decode {row.traffic} makes {sends / tokens:.2f} RDMA sends "
                "a token; experts on the same GPU share one, and those within the node need none."
            )


def _hash(report: Report) -> Iterator[str]:
    uneven = {}
    for row in report.traffic:
        nic = mean_of(row.largest_nic_bytes)
        if nic and mean_of(row.largest_link_bytes) >= UNEVEN * nic:
            uneven[traffic_name(row)] = mean_of(row.largest_link_bytes) / nic
    if uneven:
        worst = max(uneven.values())
        yield (
            f"{listed(list(uneven))}: the fullest link carries {'up to ' if len(uneven) > 1 else ''}{worst:.2f} x what the busiest NIC "
            "does; the hash puts several flows on one uplink while others idle. That is a matter of the hash, not of the wiring: see "
            "--what-if."
        )
    slow = {
        traffic_name(row): row.slowdown.p99
        for row in report.traffic
        if not isinstance(row.slowdown, UnsetType) and row.slowdown.p99 >= UNEVEN
    }
    if slow:
        yield (
            f"{listed(list(slow))}: sharing links fairly, one flow in a hundred gets less than 1/{max(slow.values()):.1f} of the rate "
            "that its NICs would allow."
        )
    yield from _pairs(report)


def _pairs(report: Report) -> Iterator[str]:
    rows: dict[tuple[str, str], list[WhatIf]] = {}
    for row in report.what_if:
        rows.setdefault((row.phase, row.traffic), []).append(row)
    gains, enough = {}, []
    for mine in rows.values():
        best = min(mine, key=lambda row: row.largest_link_bytes)
        gain = 1 - best.largest_link_bytes / mine[0].largest_link_bytes
        if gain >= SMALL:
            gains[traffic_name(mine[0])] = (
                f"{best.qps} QPs take {gain * 100:.0f} % off the fullest link of {traffic_name(mine[0])}"
            )
        else:
            enough.append(traffic_name(mine[0]))
    if gains:
        yield f"Instead of one QP a pair, {listed(list(gains.values()))}; with one source port they share a path and change nothing."
    if enough:
        yield f"More QPs a pair take less than {SMALL * 100:.0f} % off the fullest link of {listed(enough)}: there are flows enough."


def _fabric(found: Settled) -> Iterator[str]:
    fabric = found.fabric
    ports = fabric.nodes_per_leaf * (fabric.gpus_per_node if fabric.wiring == "tor" else 1)
    if ports > NICS_OF_A_SWITCH:
        yield (
            f"A leaf with {ports} NIC ports is more than a 128-port switch serves; give --nodes-per-leaf for rails of several leaves, "
            "where a rail no longer stays below one switch."
        )
    if fabric.lost:
        left = fabric.num_uplinks
        yield f"Lost: {listed(list(fabric.lost))}. {left} uplinks are left; flows are hashed over those that still reach their target."
