"""Which leaf each GPU's NIC is plugged into, and the cables from leaves to spines, as far as a graph tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from epctl.core.wording import counted
from epctl.topo.choices import Pairing
from epctl.topo.graph import Node
from epctl.topo.tree import Tree
from epctl.topo.words import natural


class Cabling(Struct, frozen=True):
    """GPU g = node * gpus_per_node + number in its machine."""

    hosts: tuple[str, ...]
    """Names of the machines, by node."""
    nics: tuple[tuple[int, int, str], ...]
    """(GPU, plane, leaf); empty unless the leaf of every GPU is known."""
    cables: tuple[tuple[str, str, int], ...]
    """(leaf, spine, how many); empty unless every leaf's are known."""
    notes: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        """In the order of the GPUs."""
        return tuple(dict.fromkeys(leaf for *_, leaf in self.nics))


def cabling_of(tree: Tree, pairings: Mapping[str, Pairing], gpus_per_node: int) -> Cabling:
    """Of all machines with that many GPUs, and of those of which nothing but so many NICs is known: their NIC k is taken for GPU k's."""
    notes: list[str] = []
    hosts, sockets = [], []
    alone: list[str] = []
    left_out: list[str] = []
    leaves_of = _leaves_of(tree)
    most = shared = 0
    for host in tree.hosts():
        nics = _nics_by_gpu(tree, host, pairings.get(host.id), gpus_per_node)
        if nics is None:
            left_out.append(host.label)
            continue
        if not tree.of_kind("gpu", host.id):
            alone.append(host.label)
        hosts.append(host)
        every = [nic for own in nics for nic in own]
        most, shared = max(most, *map(len, nics)), shared + len(every) - len(set(every))
        sockets += [[leaf for nic in own for leaf in leaves_of.get(nic, ())] for own in nics]
    if alone:
        count = counted(len(alone), "machine")
        notes.append(f"Of {count} the NICs alone are known ({_some(alone)}): the k-th NIC is taken for that of GPU k.")
    if left_out:
        notes.append(f"Left out, without {gpus_per_node} GPUs or NICs: {_some(left_out)}.")
    if most > 1:
        notes.append(
            f"GPUs have up to {most} NICs; the model gives each one NIC, with a port into each plane (--planes)."
        )
    if shared:
        notes.append("GPUs share NICs; the model gives each one of its own.")
    if any(domain.attrs.get("rack_scale") for domain in tree.of_kind("nvlink_domain")):
        notes.append(
            "NVLink reaches into other machines; the model sends everything between nodes through the network."
        )
    nics_found = _planes(sockets, notes)
    cables = _cables(tree, tuple(dict.fromkeys(leaf for *_, leaf in nics_found)))
    names = _names(tree, {leaf for *_, leaf in nics_found} | {spine for _, spine, _ in cables})
    return Cabling(
        tuple(host.label for host in hosts),
        tuple((gpu, plane, names[leaf]) for gpu, plane, leaf in nics_found),
        tuple((names[leaf], names[spine], number) for leaf, spine, number in cables),
        tuple(notes),
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _nics_by_gpu(tree: Tree, host: Node, pairing: Pairing | None, gpus_per_node: int) -> list[list[str]] | None:
    """By GPU: ids of its NICs. None for a machine that is none of the fabric's."""
    gpus, nics = tree.of_kind("gpu", host.id), tree.of_kind("nic", host.id)
    if gpus:
        if len(gpus) != gpus_per_node:
            return None
        by_label = {node.label: node.id for node in nics}
        if pairing is None:
            return [[] for _ in gpus]
        return [[by_label[label] for label in pair.nics] for pair in pairing.best.pairs]
    return [[nic.id] for nic in sorted(nics, key=natural)] if len(nics) == gpus_per_node else None


def _leaves_of(tree: Tree) -> dict[str, list[str]]:
    """NIC → the switches that its ports are on, port by port."""
    found: dict[str, list[tuple[str, str]]] = {}
    for edge in tree.graph.edges:
        for own, other in ((edge.a, edge.b), (edge.b, edge.a)) if edge.kind == "network" else ():
            nic = next((node.id for node in tree.above(own) if node.kind == "nic"), "")
            if nic and tree.nodes[other].kind == "switch":
                found.setdefault(nic, []).append((own, other))
    return {nic: [leaf for _, leaf in sorted(ports)] for nic, ports in found.items()}


def _planes(sockets: Sequence[Sequence[str]], notes: list[str]) -> list[tuple[int, int, str]]:
    """(GPU, plane, leaf). Several ports of a GPU are planes where every GPU has as many, and no leaf serves two planes."""
    if not sockets or not all(sockets):
        missing = sum(not leaves for leaves in sockets)
        if missing < len(sockets):
            notes.append(
                f"The leaves of {missing} of {len(sockets)} GPUs are not known, so that those of the others do not count."
            )
        return []
    num_planes = min(map(len, sockets))
    planes = [{leaves[plane] for leaves in sockets} for plane in range(num_planes)]
    if max(map(len, sockets)) > 1 and (
        max(map(len, sockets)) != num_planes or sum(map(len, planes)) != len(set().union(*planes))
    ):
        notes.append("GPUs have several ports, which form no planes; the first one of each counts.")
        num_planes = 1
    return [(gpu, plane, leaves[plane]) for gpu, leaves in enumerate(sockets) for plane in range(num_planes)]


def _cables(tree: Tree, leaves: Sequence[str]) -> list[tuple[str, str, int]]:
    """(leaf, spine, how many) by id; none unless every leaf has some."""
    numbers: dict[tuple[str, str], int] = {}
    for edge in tree.graph.edges:
        for own, other in ((edge.a, edge.b), (edge.b, edge.a)) if edge.kind == "network" else ():
            if own in leaves and other not in leaves and tree.nodes[other].kind == "switch":
                numbers[own, other] = numbers.get((own, other), 0) + edge.num_links
    if {leaf for leaf, _ in numbers} != set(leaves):
        return []
    order = {leaf: number for number, leaf in enumerate(leaves)}
    return sorted(((*ends, count) for ends, count in numbers.items()), key=lambda cable: (order[cable[0]], cable[1]))


def _names(tree: Tree, ids: set[str]) -> dict[str, str]:
    """Labels, or ids where two switches have the same label."""
    labels = [tree.nodes[id_].label for id_ in ids]
    return {id_: label if labels.count(label := tree.nodes[id_].label) == 1 else id_ for id_ in ids}
