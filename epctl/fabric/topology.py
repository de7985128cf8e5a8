"""A leaf-spine fabric: which NIC plugs into which leaf, and the lanes between leaves and spines.

GPU g = node * G + rail has one NIC, with a port into each plane. Leaves and spines are numbered through all planes. All links have
one rate. A leaf's uplinks and the lanes that reach it are the two directions of the same cables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

from msgspec import Struct

from epctl.core.wording import counted
from epctl.fabric.lost import without
from epctl.model.refusal import RefusalError

WIRINGS = ("rail", "tor")
MAX_GPUS = 1 << 16
"""GPUs of one fabric, and switches of one kind; past it a graph in Python takes gigabytes."""
MAX_PLANES = 8
MAX_UPLINKS = 1 << 20
"""Lanes of all leaves together, each of which carries a load of its own."""


_USUAL = {"nodes": 4, "gpus_per_node": 8, "spines": 4, "planes": 1}
"""What a refusal proposes."""


class Shape(Struct, frozen=True, kw_only=True):
    """A regular fabric by its numbers."""

    nodes: int = 4
    gpus_per_node: int = 8
    spines: int = 4
    """Of one plane."""
    wiring: str = "rail"
    """rail: a leaf serves one rail; tor: a leaf serves all NICs of its nodes."""
    nodes_per_leaf: int | None = None
    """None: all nodes (rail), one node (tor)."""
    oversubscription: str = "1"
    """NIC ports over uplinks of a leaf: 2, 2:1, 1.5."""
    planes: int = 1
    lost: tuple[str, ...] = ()
    """What is broken: leaf3, spine1, leaf0-spine1 (all lanes), leaf0-spine1.0 (one lane), nic5 or nic5.1 (of plane 1)."""


class Fabric(Struct, frozen=True, dict=True):
    """What is wired. `uplinks[leaf]` are the (spine, lane) that its ECMP group holds, in order."""

    num_nodes: int
    gpus_per_node: int
    wiring: str
    """rail, tor, or custom for a graph that was given link by link."""
    nodes_per_leaf: int
    """0 for a custom graph."""
    num_planes: int
    leaf_of: tuple[tuple[int, ...], ...]
    """By plane and GPU: leaf, or -1 where the port is lost."""
    uplinks: tuple[tuple[tuple[int, int], ...], ...]
    leaf_names: tuple[str, ...]
    spine_names: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def num_uplinks(self) -> int:
        return self.first_uplink[-1]

    @cached_property
    def first_uplink(self) -> tuple[int, ...]:
        """By leaf, the number of its first uplink among all; the total at the end."""
        found = [0]
        for group in self.uplinks:
            found.append(found[-1] + len(group))
        return tuple(found)

    @cached_property
    def lanes_down(self) -> tuple[dict[int, tuple[int, ...]], ...]:
        """By leaf: spine → numbers of the uplinks whose other direction leads from that spine to the leaf."""
        found = []
        for leaf, group in enumerate(self.uplinks):
            mine: dict[int, list[int]] = {}
            for position, (spine, _) in enumerate(group):
                mine.setdefault(spine, []).append(self.first_uplink[leaf] + position)
            found.append({spine: tuple(links) for spine, links in mine.items()})
        return tuple(found)

    @cached_property
    def regular(self) -> tuple[int, int] | None:
        """(spines of a plane, lanes) where every leaf has the same lanes to every spine of its plane; else None."""
        if self.lost or self.wiring == "custom" or not self.uplinks[0]:
            return None
        spines = len(self.spine_names) // self.num_planes
        return spines, len(self.uplinks[0]) // spines

    @property
    def lanes_of_each(self) -> tuple[int, int]:
        """`regular`. Raises ValueError where the fabric is not."""
        if self.regular is None:
            raise ValueError("the leaves of this fabric differ")
        return self.regular

    def next_hops(self, source: int, target: int) -> tuple[int, ...]:
        """Uplinks of leaf `source`, by position, whose spine still reaches leaf `target`."""
        known: dict[tuple[int, int], tuple[int, ...]] = self.__dict__.setdefault("_hops", {})
        if (source, target) not in known:
            reach = self.lanes_down[target]
            known[source, target] = tuple(i for i, (spine, _) in enumerate(self.uplinks[source]) if spine in reach)
        return known[source, target]

    def planes_of(self, source: int, target: int) -> tuple[int, ...]:
        """Planes on which GPU `source` reaches GPU `target`."""
        if self.regular is not None:
            return tuple(range(self.num_planes))
        return tuple(
            plane
            for plane, leaf_of in enumerate(self.leaf_of)
            if min(leaf_of[source], leaf_of[target]) >= 0
            and (leaf_of[source] == leaf_of[target] or self.next_hops(leaf_of[source], leaf_of[target]))
        )


def build(shape: Shape) -> Fabric:
    """The fabric of a shape. Raises RefusalError lanes_not_whole, topology_invalid or absurd_argument."""
    _check(shape)
    nodes, gpus, planes = shape.nodes, shape.gpus_per_node, shape.planes
    span = shape.nodes_per_leaf or (nodes if shape.wiring == "rail" else 1)
    if nodes % span:
        raise RefusalError(
            "topology_invalid",
            f"{span} nodes a leaf do not divide {nodes} nodes",
            "every leaf serves as many nodes as any other",
            f"give --nodes-per-leaf {max(d for d in range(1, min(span, nodes) + 1) if nodes % d == 0)}",
        )
    rail = shape.wiring == "rail"
    leaves = nodes // span * (gpus if rail else 1)
    lanes = _lanes(shape, span if rail else span * gpus)
    one = [g // gpus // span * gpus + g % gpus if rail else g // gpus // span for g in range(nodes * gpus)]
    group = [(spine, lane) for spine in range(shape.spines) for lane in range(lanes)]
    whole = Fabric(
        num_nodes=nodes,
        gpus_per_node=gpus,
        wiring=shape.wiring,
        nodes_per_leaf=span,
        num_planes=planes,
        leaf_of=tuple(tuple(plane * leaves + leaf for leaf in one) for plane in range(planes)),
        uplinks=tuple(
            tuple((plane * shape.spines + spine, lane) for spine, lane in group)
            for plane in range(planes)
            for _ in range(leaves)
        ),
        leaf_names=tuple(f"leaf{i}" for i in range(planes * leaves)),
        spine_names=tuple(f"spine{i}" for i in range(planes * shape.spines)),
    )
    return without(whole, shape.lost)


def _check(shape: Shape) -> None:
    for field, usual in _USUAL.items():
        value, name = getattr(shape, field), "--" + field.replace("_", "-")
        if value < 1:
            why = "leaves of different rails or nodes meet in spines" if field == "spines" else "a fabric has some"
            raise RefusalError("topology_invalid", f"{name} is {value}", why, f"give {name} {usual}")
        if value > MAX_GPUS or (field == "planes" and value > MAX_PLANES):
            top = MAX_PLANES if field == "planes" else MAX_GPUS
            raise RefusalError(
                "absurd_argument", f"{name} is {value}", f"at most {top} are taken", f"give {name} {usual}"
            )
    if shape.nodes * shape.gpus_per_node > MAX_GPUS:
        what = f"{shape.nodes} nodes with {shape.gpus_per_node} GPUs each"
        raise RefusalError("absurd_argument", what, f"at most {MAX_GPUS} GPUs are taken", "give fewer nodes")
    if shape.wiring not in WIRINGS:
        why = f"it may be {' or '.join(WIRINGS)}"
        raise RefusalError("topology_invalid", f"--wiring is {shape.wiring!r}", why, "give --wiring rail")
    if shape.nodes_per_leaf is not None and shape.nodes_per_leaf < 1:
        what = f"--nodes-per-leaf is {shape.nodes_per_leaf}"
        raise RefusalError("topology_invalid", what, "a leaf serves at least one node", "give --nodes-per-leaf 1")


def _lanes(shape: Shape, ports: int) -> int:
    """Parallel links between a leaf and a spine."""
    ratio = _ratio(shape.oversubscription)
    uplinks = ports / ratio
    lanes = uplinks / shape.spines
    if lanes.denominator == 1 and lanes >= 1:
        return int(lanes)
    fits = [spines for spines in range(1, int(uplinks) + 1) if (uplinks / spines).denominator == 1]
    spines = counted(shape.spines, "spine")
    what = f"a leaf with {counted(ports, 'NIC port')} would have {_told(lanes)} lanes to each of {spines}"
    links = f"{_told(uplinks)} uplink{'' if uplinks == 1 else 's'} ({_told(ratio)}:1)"
    why = f"a leaf's {links} must be shared out alike, in whole lanes"
    todo = (
        f"give --spines {max((s for s in fits if s <= shape.spines), default=1)}"
        if fits
        else "give --oversubscription 1"
    )
    raise RefusalError("lanes_not_whole", what, why, todo)


def _ratio(text: str) -> Fraction:
    """`2`, `2:1` or `1.5` as a fraction of at least 1."""
    if re.fullmatch(r"\d{1,4}(\.\d{1,4})?(:\d{1,4})?", text):
        over, _, under = text.partition(":")
        if not under or int(under):
            ratio = Fraction(over) / int(under or 1)
            if ratio >= 1:
                return ratio
    why = "it is the NIC ports of a leaf over its uplinks, at least 1"
    raise RefusalError("topology_invalid", f"--oversubscription is {text[:20]!r}", why, "give --oversubscription 2")


def _told(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.3g}"


def from_graph(
    num_nodes: int,
    gpus_per_node: int,
    nics: Sequence[tuple[int, int, str]],
    cables: Sequence[tuple[str, str, int]],
) -> Fabric:
    """A fabric link by link: `nics` as (GPU, plane, leaf), `cables` as (leaf, spine, lanes).

    Raises RefusalError topology_invalid where a link is there twice, a GPU has no port, or a name is leaf and spine at once (links
    would run in a circle or past a third tier).
    """
    leaves = tuple(dict.fromkeys(leaf for *_, leaf in nics))
    spines = tuple(dict.fromkeys(spine for _, spine, _ in cables))
    leaf_idx, spine_idx = ({name: i for i, name in enumerate(names)} for names in (leaves, spines))
    circular = next((name for name in spines if name in leaf_idx), None)
    if circular is not None:
        why = "links go from NICs to leaves and from leaves to spines; others close a circle or add a tier"
        raise _invalid(f"{circular!r} is used as leaf and as spine", why)
    if min(num_nodes, gpus_per_node) < 1 or num_nodes * gpus_per_node > MAX_GPUS:
        what = f"there are {num_nodes} nodes with {gpus_per_node} GPUs each"
        raise _invalid(what, f"a fabric has at least one of each, and at most {MAX_GPUS} GPUs")
    num_lanes = sum(max(lanes, 0) for *_, lanes in cables)
    if num_lanes > MAX_UPLINKS:
        raise _invalid(f"the links have {num_lanes} lanes together", f"at most {MAX_UPLINKS} are taken")
    groups: dict[str, list[tuple[int, int]]] = {leaf: [] for leaf in leaves}
    seen: set[tuple[str, str]] = set()
    for leaf, spine, lanes in cables:
        if leaf not in groups:
            raise _invalid(f"{leaf!r} has links to spines, but no NIC", "a leaf is where NICs plug in")
        if (leaf, spine) in seen:
            raise _invalid(f"the link {leaf} - {spine} is there twice", "parallel links are one link with lanes = 2")
        if not 1 <= lanes <= MAX_GPUS:
            raise _invalid(f"the link {leaf} - {spine} has {lanes} lanes", "a link has at least one, and whole ones")
        seen.add((leaf, spine))
        groups[leaf] += [(spine_idx[spine], lane) for lane in range(lanes)]
    num_gpus = num_nodes * gpus_per_node
    planes = 1 + max((plane for _, plane, _ in nics), default=0)
    if planes > MAX_PLANES:
        raise _invalid(f"a NIC has a port in plane {planes - 1}", f"planes are numbered 0 to {MAX_PLANES - 1}")
    table = [[-1] * num_gpus for _ in range(planes)]
    for gpu, plane, leaf in nics:
        if not 0 <= gpu < num_gpus or plane < 0:
            raise _invalid(
                f"GPU {gpu}, plane {plane} has a port", f"GPUs are numbered 0 to {num_gpus - 1}, planes from 0"
            )
        if table[plane][gpu] >= 0:
            raise _invalid(f"GPU {gpu} is plugged in twice on plane {plane}", "a NIC has one port in each plane")
        table[plane][gpu] = leaf_idx[leaf]
    return Fabric(
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        wiring="custom",
        nodes_per_leaf=0,
        num_planes=planes,
        leaf_of=tuple(map(tuple, table)),
        uplinks=tuple(tuple(groups[leaf]) for leaf in leaves),
        leaf_names=leaves,
        spine_names=spines,
    )


def _invalid(what: str, why: str) -> RefusalError:
    return RefusalError("topology_invalid", what, why, "correct the fabric's description")
