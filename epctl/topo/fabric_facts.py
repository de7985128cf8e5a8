"""What the graph knows that a fabric model needs: machines, GPUs, rails, leaves, cabling, rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from epctl.topo.choices import Pairing
from epctl.topo.tree import Tree


class FabricFacts(Struct, frozen=True, omit_defaults=True):
    """`wiring`: rail where the NICs of one rail of several machines are on one leaf and other rails on others, tor where all NICs of a
    machine are on one leaf; unknown where no source shows leaves. What is not known is left out."""

    num_nodes: int
    gpus_per_node: int
    """Of the machines with most GPUs."""
    num_rails: int
    """NICs that serve GPUs, in a machine."""
    wiring: Literal["rail", "tor", "mixed", "unknown"] = "unknown"
    num_leaves: int | UnsetType = UNSET
    num_spines: int | UnsetType = UNSET
    nodes_per_leaf: int | UnsetType = UNSET
    uplinks_per_leaf: int | UnsetType = UNSET
    """Cables from a leaf to spines; of the leaf with fewest."""
    nic_gbps: float | UnsetType = UNSET
    """Of the slowest NIC that serves a GPU."""
    nvlink_gbs: float | UnsetType = UNSET
    """Of the GPU with least, one direction, all links."""
    rail_leaves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rail → labels of the leaves that its NICs are on."""
    notes: tuple[str, ...] = ()


def rails_of(tree: Tree, pairings: Mapping[str, Pairing]) -> dict[str, list[str]]:
    """Rail number → ids of the NICs on it: the k-th NIC that serves GPUs, GPU by GPU, of every machine. Machines without a pairing (known
    from the subnet alone) number their NICs in the order of their names."""
    rails: dict[str, list[str]] = {}
    for host in tree.hosts():
        nics = {node.label: node.id for node in tree.of_kind("nic", host.id)}
        pairing = pairings.get(host.id)
        if pairing is not None:
            order = list(dict.fromkeys(nics[label] for pair in pairing.best.pairs for label in pair.nics))
        else:
            order = [nics[label] for label in sorted(nics, key=_natural)]
        for rail, nic in enumerate(order):
            rails.setdefault(str(rail), []).append(nic)
    return rails


def facts_of(tree: Tree, pairings: Mapping[str, Pairing]) -> FabricFacts:
    """Pure: the same graph gives the same facts."""
    with_gpus = [host for host in tree.hosts() if tree.of_kind("gpu", host.id)]
    hosts = with_gpus or tree.hosts()
    counts = [len(tree.of_kind("gpu", host.id)) for host in hosts]
    rails = rails_of(tree, pairings)
    leaf_of = _leaf_of(tree)
    on_leaf = {
        rail: tuple(dict.fromkeys(leaf for nic in nics if (leaf := leaf_of.get(nic)))) for rail, nics in rails.items()
    }
    leaves = {leaf for found in on_leaf.values() for leaf in found}
    notes = [f"machines have {min(counts)} to {max(counts)} GPUs"] if counts and min(counts) != max(counts) else []
    cables = _uplinks(tree, leaves)
    return FabricFacts(
        len(hosts),
        max(counts, default=0),
        len(rails),
        _wiring(tree, leaf_of, on_leaf),
        len(leaves) or UNSET,
        len({end for ends in cables.values() for end in ends}) or UNSET,
        _nodes_per_leaf(tree, leaf_of) or UNSET,
        min((sum(ends.values()) for ends in cables.values()), default=0) or UNSET,
        _least_nic(tree, rails),
        _least_nvlink(tree),
        {rail: tuple(tree.nodes[leaf].label for leaf in found) for rail, found in on_leaf.items() if found},
        tuple(notes),
    )


def _natural(label: str) -> tuple[str, int]:
    front = label.rstrip("0123456789")
    digits = label[len(front) :]
    return front, int(digits[:9] or 0)


def _leaf_of(tree: Tree) -> dict[str, str]:
    """NIC → the switch that its port is on."""
    found: dict[str, str] = {}
    for edge in tree.graph.edges:
        if edge.kind == "network":
            for own, other in ((edge.a, edge.b), (edge.b, edge.a)):
                nic = next((node.id for node in tree.above(own) if node.kind == "nic"), "")
                if nic and tree.nodes[other].kind == "switch":
                    found.setdefault(nic, other)
    return found


def _wiring(
    tree: Tree, leaf_of: Mapping[str, str], on_leaf: Mapping[str, tuple[str, ...]]
) -> Literal["rail", "tor", "mixed", "unknown"]:
    by_host: dict[str, list[str]] = {}
    for nic, leaf in leaf_of.items():
        if tree.host(nic):
            by_host.setdefault(tree.host(nic), []).append(leaf)
    several = [leaves for leaves in by_host.values() if len(leaves) > 1]
    if not several:
        return "unknown"
    if all(len(set(leaves)) == 1 for leaves in several):
        return "tor"
    apart = all(len(set(leaves)) == len(leaves) for leaves in several)
    shared = [set(leaves) for leaves in on_leaf.values()]
    disjoint = sum(len(leaves) for leaves in shared) == len(set().union(*shared))
    return "rail" if apart and disjoint else "mixed"


def _nodes_per_leaf(tree: Tree, leaf_of: Mapping[str, str]) -> int:
    hosts: dict[str, set[str]] = {}
    for nic, leaf in leaf_of.items():
        hosts.setdefault(leaf, set()).add(tree.host(nic) or nic)
    return max((len(found) for found in hosts.values()), default=0)


def _uplinks(tree: Tree, leaves: set[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for edge in tree.graph.edges:
        for own, other in ((edge.a, edge.b), (edge.b, edge.a)):
            if edge.kind == "network" and own in leaves and other not in leaves and tree.nodes[other].kind == "switch":
                found.setdefault(own, {})[other] = edge.num_links
    return found


def _least_nic(tree: Tree, rails: Mapping[str, list[str]]) -> float | UnsetType:
    rates = [
        float(gbps)
        for nics in rails.values()
        for nic in nics
        if isinstance(gbps := tree.nodes[nic].attrs.get("gbps"), int | float)
    ]
    return min(rates, default=UNSET)


def _least_nvlink(tree: Tree) -> float | UnsetType:
    totals: dict[str, float] = {}
    for edge in tree.graph.edges:
        if edge.kind == "nvlink":
            for end in (edge.a, edge.b):
                if tree.nodes[end].kind == "gpu":
                    totals[end] = totals.get(end, 0.0) + (float("nan") if edge.gbs is UNSET else float(edge.gbs))
    known = [total for total in totals.values() if total == total]
    return round(min(known), 3) if known and len(known) == len(totals) else UNSET
