"""What `epctl fabric` found, as JSON has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from epctl.model.spread import quantile

SCHEMA = {"name": "epctl.fabric", "version": 1}


class Spread(Struct, frozen=True):
    """One quantity over several seeds."""

    mean: float
    min: float
    max: float
    p50: float
    p99: float


Figure = int | Spread
"""One seed's value, or the spread over several."""


def figure(values: Sequence[int]) -> Figure:
    """The value where there is one seed, else their spread."""
    if len(values) == 1:
        return values[0]
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered)
    return Spread(mean, ordered[0], ordered[-1], quantile(ordered, 0.5), quantile(ordered, 0.99))


def mean_of(value: Figure) -> float:
    """The value, or its mean."""
    return value.mean if isinstance(value, Spread) else float(value)


class Expected(Struct, frozen=True):
    """Means over all draws of a balanced gate, by closed form."""

    rdma_bytes: float
    spine_bytes: float
    nvlink_bytes: float


class Slowdown(Struct, frozen=True):
    """Over flows and seeds: the max-min fair rate that NICs alone would allow, over the one that the fabric leaves."""

    p50: float
    p99: float
    max: float
    seeds: int
    """How many seeds it was worked out for: it looks at every flow by itself."""


class LinkLoad(Struct, frozen=True):
    """Bytes on one link of `links` with the report's first seed; up is from GPU to NVSwitch, NIC to leaf, leaf to spine."""

    link: int
    up_bytes: int
    down_bytes: int


class FlowRow(Struct, frozen=True):
    """One queue pair's bytes, or what goes from GPU to GPU within a node. `path`: numbers of `links`; its first half goes up."""

    source: int
    target: int
    bytes: int
    path: tuple[int, ...]
    port: int | UnsetType = UNSET
    """UDP source port."""


class TrafficReport(Struct, frozen=True, kw_only=True):
    """One traffic of one phase, alone. MoE traffic is that of one layer; KV is that of all layers."""

    phase: str
    traffic: str
    transfer: str
    unit_bytes: int
    """Of one send (kv: of one token)."""
    sends: Figure
    """RDMA, in units."""
    rdma_bytes: Figure
    spine_bytes: Figure
    nvlink_bytes: Figure
    hops: Figure
    """Largest number of scale-out switches on a path."""
    largest_link_bytes: Figure
    largest_nic_bytes: Figure
    """Of the links between NICs and leaves, which no hash changes."""
    flows: int
    """Queue pairs with bytes, in the first draw."""
    ecmp: str
    """hash: every flow is hashed; law: loads are drawn from the law of an ideal hash, which is the same over all seeds."""
    slowdown: Slowdown | UnsetType = UNSET
    expected: Expected | UnsetType = UNSET
    loads: tuple[LinkLoad, ...] = ()
    flow_rows: tuple[FlowRow, ...] = ()
    flows_left_out: int = 0
    """Flows that are not among `flow_rows` because there are too many."""


class Together(Struct, frozen=True):
    """Traffics that run at once."""

    name: str
    members: tuple[str, ...]
    largest_link_bytes: Figure
    slowdown: Slowdown | UnsetType = UNSET


class WhatIf(Struct, frozen=True):
    """The largest link of a traffic with other queue pairs or ports: mean over `seeds` seeds of the hash."""

    phase: str
    traffic: str
    qps: int
    ports: int
    seeds: int
    largest_link_bytes: float
    evenly_bytes: float
    """What no hash can go below: the NIC links, and uplinks that share alike."""


class Node(Struct, frozen=True):
    """A node's part in the layout."""

    node: int
    roles: tuple[str, ...]
    gpus: tuple[int, ...]


class Link(Struct, frozen=True):
    """A physical link; both directions are counted apart."""

    link: int
    kind: str
    """nvlink: GPU to the node's switch; nic: GPU's NIC to a leaf; uplink: leaf to spine."""
    lower: str
    upper: str
    lane: int = 0
    plane: int = 0


class Layout(Struct, frozen=True):
    """The fabric in numbers."""

    wiring: str
    nodes: int
    gpus_per_node: int
    gpus: int
    nodes_per_leaf: int
    leaves: int
    spines: int
    uplinks: int
    lanes: int
    """Of each leaf to each spine; 0 where they differ."""
    planes: int
    lost: tuple[str, ...]


class Weights(Struct, frozen=True):
    """Memory that the model's weights take on one GPU of a role."""

    role: str
    ep_size: int
    routed_bytes: int
    other_bytes: int


class Report(Struct, frozen=True, kw_only=True):
    """The answer."""

    schema: dict[str, Any]
    epctl: str
    inputs: dict[str, Any]
    fabric: Layout
    ep_size: dict[str, int]
    """By phase."""
    seeds: int
    routing_draws: dict[str, int]
    """By phase: different draws of gate and lengths that the seeds share."""
    traffic: tuple[TrafficReport, ...]
    together: tuple[Together, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    weights: tuple[Weights, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    leaves: tuple[str, ...] = ()
    spines: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    links_left_out: int = 0
