"""Closed forms for the streams of a request."""

from __future__ import annotations

from fractions import Fraction

from msgspec import UNSET, UnsetType

from epctl.fabric import closed, placement
from epctl.fabric.placement import Side
from epctl.fabric.report import Expected
from epctl.fabric.request import Settled
from epctl.fabric.streams import Stream
from epctl.model.gate import BalancedGate


def expected(found: Settled, stream: Stream) -> Expected | UnsetType:
    """Means over all draws of a balanced gate; UNSET for other gates, KV, and fabrics without a closed form."""
    if stream.traffic == "kv" or not isinstance(found.gate, BalancedGate) or stream.micro_batch >= 0:
        return UNSET
    fabric = found.fabric
    if fabric.wiring == "custom" or fabric.lost or (fabric.wiring == "tor" and fabric.nodes_per_leaf > 1):
        return UNSET
    side = found.roles.prefill if stream.phase == "prefill" else found.roles.decode
    lengths = found.lengths.of(found.batch, found.request.seed) if stream.phase == "prefill" else (1,) * found.batch
    if stream.phase == "prefill" and found.lengths.spread and found.request.seeds > 1:
        return UNSET
    one = closed.sends(
        num_nodes=len(side.experts),
        gpus_per_node=fabric.gpus_per_node,
        num_experts=found.experts,
        num_topk=found.topk,
        relay=stream.mode == "relay",
        split=side.split,
        near=_near(found, side, stream.phase, lengths) if fabric.wiring == "rail" else Fraction(0),
    )
    scale = sum(lengths) * found.unit_bytes(stream.traffic)
    return Expected(float(one.rdma * scale), float(one.spine * scale), float(one.nvlink * scale))


def _near(found: Settled, side: Side, phase: str, lengths: tuple[int, ...]) -> Fraction:
    """Other expert nodes on the leaves of a token's node, mean over tokens."""
    placed = placement.place(found.roles, found.fabric.gpus_per_node, found.batch)
    gpus = placed.prefill if phase == "prefill" else placed.decode
    span = found.fabric.nodes_per_leaf
    near = {
        node: sum(other // span == node // span and other != node for other in side.experts) for node in side.attention
    }
    total = sum(near[gpu // found.fabric.gpus_per_node] * length for gpu, length in zip(gpus, lengths, strict=True))
    return Fraction(total, sum(lengths))
