"""From tokens and their experts to sends between GPUs: direct, or relayed through one GPU of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from epctl.fabric.placement import RETURNS
from epctl.model.refusal import RefusalError

TRANSFERS = ("default", "direct", "relay")
Pairs = dict[tuple[int, int], int]
"""(source GPU, target GPU) → units sent."""


class Sends(Struct, frozen=True):
    """What one traffic moves, in units (a token's vector, or a token's KV)."""

    rdma: Pairs
    """Between nodes."""
    nvlink: Pairs
    """Within a node."""
    unit_bytes: int

    def reversed(self, unit_bytes: int) -> Sends:
        """The way back: all arrows turned round."""
        back = {(target, source): units for (source, target), units in self.rdma.items()}
        inside = {(target, source): units for (source, target), units in self.nvlink.items()}
        return Sends(back, inside, unit_bytes)


def mode_of(phase: str, traffic: str, transfer: str) -> str:
    """direct or relay. By default prefill dispatch and combine are relayed (DeepEP's normal kernels), all else is direct (its
    low-latency kernels). Raises RefusalError value_invalid."""
    if transfer not in TRANSFERS:
        why = f"it may be {', '.join(TRANSFERS)}"
        raise RefusalError("value_invalid", f"--transfer is {transfer!r}", why, "give --transfer default")
    if traffic == "kv":
        return "direct"
    if transfer != "default":
        return transfer
    return "relay" if phase == "prefill" and RETURNS.get(traffic, traffic) == "dispatch" else "direct"


def route(
    tokens: Iterable[tuple[int, Sequence[int]]], owners: Sequence[int], gpus_per_node: int, mode: str, unit_bytes: int
) -> Sends:
    """Sends of `tokens`, each as (GPU, experts; -1 for none). A token goes to a GPU once, however many of its experts are there."""
    keys = _direct(tokens, owners) if mode == "direct" else _relayed(tokens, owners, gpus_per_node)
    rdma: Pairs = {}
    nvlink: Pairs = {}
    for (source, target), units in Counter(keys).items():
        within = source // gpus_per_node == target // gpus_per_node
        (nvlink if within else rdma)[source, target] = units
    return Sends(rdma, nvlink, unit_bytes)


def _direct(tokens: Iterable[tuple[int, Sequence[int]]], owners: Sequence[int]) -> Iterator[tuple[int, int]]:
    for source, experts in tokens:
        for target in {owners[expert] for expert in experts if expert >= 0}:
            if target != source:
                yield source, target


def _relayed(
    tokens: Iterable[tuple[int, Sequence[int]]], owners: Sequence[int], gpus_per_node: int
) -> Iterator[tuple[int, int]]:
    for source, experts in tokens:
        rail = source % gpus_per_node
        nodes = set()
        for target in {owners[expert] for expert in experts if expert >= 0}:
            relay = target - target % gpus_per_node + rail
            nodes.add(relay)
            if target != relay:
                yield relay, target
        # On the own node, the relay is the source itself.
        for relay in nodes:
            if relay != source:
                yield source, relay


def kv_sends(placed: Iterable[tuple[int, int, int]], unit_bytes: int) -> Sends:
    """KV of requests, each as (prefill GPU, decode GPU, prompt tokens): one GPU to one GPU."""
    rdma: Pairs = {}
    for source, target, tokens in placed:
        rdma[source, target] = rdma.get((source, target), 0) + tokens
    return Sends(rdma, {}, unit_bytes)
