"""Who computes what: nodes by role, and the GPU of each request."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from epctl.model.refusal import RefusalError

LAYOUTS = ("unified", "pd", "af", "pd+af")
PHASES = ("prefill", "kv", "decode")
TRAFFICS = ("kv", "dispatch", "combine", "a2f", "f2a")
RETURNS = {"combine": "dispatch", "f2a": "a2f"}
"""Traffic that goes back → what it answers."""
_HALVES = {"unified": 1, "pd": 2, "af": 2, "pd+af": 4}


class Side(Struct, frozen=True):
    """Nodes of one phase: where attention runs, and where routed experts are. The same nodes, or none in common."""

    attention: range
    experts: range

    @property
    def split(self) -> bool:
        """Attention and experts on different nodes."""
        return self.attention != self.experts

    @property
    def traffics(self) -> tuple[str, str]:
        """There and back."""
        return ("a2f", "f2a") if self.split else ("dispatch", "combine")


class Roles(Struct, frozen=True):
    """Nodes of both phases."""

    layout: str
    prefill: Side
    decode: Side

    @property
    def transfers_kv(self) -> bool:
        """Prefill and decode are on different nodes."""
        return self.prefill.attention != self.decode.attention

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """(phase, traffic) of the layout, in the order of one batch."""
        kv = (("kv", "kv"),) if self.transfers_kv else ()
        return (
            *(("prefill", traffic) for traffic in self.prefill.traffics),
            *kv,
            *(("decode", traffic) for traffic in self.decode.traffics),
        )


def roles(layout: str, num_nodes: int) -> Roles:
    """Nodes by role. Raises RefusalError layout_invalid."""
    if layout not in LAYOUTS:
        why = f"it may be {', '.join(LAYOUTS)}"
        raise RefusalError("layout_invalid", f"--layout is {layout!r}", why, "give --layout unified")
    parts = _HALVES[layout]
    if num_nodes % parts:
        why = f"the layout deals nodes out in {'halves' if parts == 2 else 'quarters'}"
        todo = f"give --nodes {-(-num_nodes // parts) * parts}"
        raise RefusalError("layout_invalid", f"--layout {layout} is given for {num_nodes} nodes", why, todo)
    half = num_nodes // 2
    everywhere, left, right = range(num_nodes), range(half), range(half, num_nodes)
    if layout == "unified":
        side = Side(everywhere, everywhere)
        return Roles(layout, side, side)
    if layout == "af":
        side = Side(left, right)
        return Roles(layout, side, side)
    if layout == "pd":
        return Roles(layout, Side(left, left), Side(right, right))
    third = range(half, half + num_nodes // 4)
    return Roles(layout, Side(left, left), Side(third, range(third.stop, num_nodes)))


def gpus_of(nodes: range, gpus_per_node: int) -> range:
    """GPUs of some nodes."""
    return range(nodes.start * gpus_per_node, nodes.stop * gpus_per_node)


class Placed(Struct, frozen=True):
    """GPUs of every request, in its order."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]


def place(found: Roles, gpus_per_node: int, num_requests: int) -> Placed:
    """Requests dealt round robin over the attention GPUs. With a KV transfer, the scheduler reserves a decode GPU of the same rail: the
    one with fewest requests, lowest number first."""
    sources = gpus_of(found.prefill.attention, gpus_per_node)
    prefill = tuple(sources[i % len(sources)] for i in range(num_requests))
    if not found.transfers_kv:
        return Placed(prefill, prefill)
    targets = gpus_of(found.decode.attention, gpus_per_node)
    by_rail: dict[int, int] = {}
    decode = []
    per_rail = len(targets) // gpus_per_node
    for source in prefill:
        rail = source % gpus_per_node
        # Equal choices filled lowest first are a round over the rail's GPUs.
        turn = by_rail.get(rail, 0)
        by_rail[rail] = turn + 1
        decode.append(targets[turn % per_rail * gpus_per_node + rail])
    return Placed(prefill, tuple(decode))


def expert_owners(side: Side, gpus_per_node: int, num_experts: int) -> Sequence[int]:
    """By expert: the GPU that holds it, in equal contiguous blocks. Raises RefusalError experts_not_placeable."""
    gpus = gpus_of(side.experts, gpus_per_node)
    if num_experts % len(gpus) or num_experts < len(gpus):
        up = -(-num_experts // len(gpus)) * len(gpus)
        what = f"{num_experts} experts cannot be placed on {len(gpus)} GPUs"
        why = "every GPU of the expert-parallel group holds the same number of experts, at least one"
        raise RefusalError("experts_not_placeable", what, why, f"give --experts {up}, or fewer nodes")
    each = num_experts // len(gpus)
    return [gpus[expert // each] for expert in range(num_experts)]
