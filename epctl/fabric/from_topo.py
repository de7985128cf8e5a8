"""The fabric of a graph of `epctl topo`: what the graph knows is taken, what it does not know is as the flags say, and both are told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import UnsetType

from epctl.core.wording import counted
from epctl.fabric.lost import without
from epctl.fabric.request import Request
from epctl.fabric.topology import Shape, from_graph
from epctl.model.refusal import RefusalError
from epctl.topo.cabling import Cabling, cabling_of
from epctl.topo.report import Report, without_rails
from epctl.topo.tree import Tree

_LINKS = ("wiring", "nodes_per_leaf", "spines", "oversubscription", "planes")
"""What follows from links that are known one by one."""


def with_graph(request: Request, report: Report, name: str, given: Collection[str] = ()) -> Request:
    """`request`, whose flags are in place, with the fabric of a graph. `given`: fields that stand on the command line; one that says
    something else than the graph is refused. Raises RefusalError file_invalid, value_invalid or topology_invalid."""
    gpus = _gpus_per_node(request, report, name, given)
    pairings = {pairing.host: pairing for pairing in report.pairings}
    cabling = cabling_of(Tree(without_rails(report.graph)), pairings, gpus)
    if not cabling.hosts:
        why = f"no machine has {counted(gpus, 'GPU')} or as many NICs"
        raise RefusalError("file_invalid", f"no fabric is described in {name}", why, "give another --gpus-per-node")
    if cabling.nics and (cabling.cables or len(cabling.leaves) == 1):
        return _link_by_link(request, cabling, gpus, name, given)
    known = _known(cabling, gpus, name)
    if "nodes" in given and not cabling.nics and request.shape.nodes > len(cabling.hosts):
        known["nodes"] = request.shape.nodes
    _agree(request.shape, known, given, name)
    shape = msgspec.structs.replace(request.shape, **known)
    return msgspec.structs.replace(request, graph=None, shape=shape, origin=_told(shape, known, cabling, name))


def _gpus_per_node(request: Request, report: Report, name: str, given: Collection[str]) -> int:
    facts = report.fabric
    if isinstance(facts, UnsetType) or not (facts.gpus_per_node or facts.num_rails):
        why = "there is neither a GPU nor a NIC of a machine"
        raise RefusalError(
            "file_invalid", f"no fabric is described in {name}", why, "give a snapshot, or ibnetdiscover's text"
        )
    if facts.gpus_per_node:
        _agree(request.shape, {"gpus_per_node": facts.gpus_per_node}, given, name)
        return facts.gpus_per_node
    if "gpus_per_node" not in given:
        why = f"machines have up to {counted(facts.num_rails, 'NIC')}, and no source shows their GPUs"
        todo = f"give --gpus-per-node {facts.num_rails}, or a snapshot of a machine beside it"
        raise RefusalError("file_invalid", f"the GPUs of a machine are not told in {name}", why, todo)
    return request.shape.gpus_per_node


def _agree(shape: Shape, known: dict[str, Any], given: Collection[str], name: str) -> None:
    """Raises RefusalError value_invalid for a flag that contradicts the graph."""
    for field, value in known.items():
        if field in given and getattr(shape, field) != value:
            flag = "--" + field.replace("_", "-")
            what = f"{flag} is {getattr(shape, field)}"
            raise RefusalError("value_invalid", what, f"it is {value} in {name}", f"leave out {flag}, or --topology")


def _link_by_link(request: Request, cabling: Cabling, gpus: int, name: str, given: Collection[str]) -> Request:
    wrong = next((field for field in _LINKS if field in given), "")
    if wrong:
        flag = "--" + wrong.replace("_", "-")
        raise RefusalError(
            "value_invalid",
            f"{flag} is given",
            f"every link of the fabric is in {name}",
            f"leave out {flag}, or --topology",
        )
    _agree(request.shape, {"nodes": len(cabling.hosts)}, given, name)
    fabric = from_graph(len(cabling.hosts), gpus, cabling.nics, cabling.cables)
    graph = without(fabric, request.shape.lost)
    shown = [
        counted(len(cabling.hosts), "machine"),
        f"{counted(gpus, 'GPU')} each",
        counted(len(graph.leaf_names), "leaf", "leaves"),
        counted(len(graph.spine_names), "spine"),
        counted(sum(number for *_, number in cabling.cables), "uplink"),
    ]
    origin = (f"The fabric is that of {name}, link by link: {', '.join(shown)}.", *cabling.notes)
    return msgspec.structs.replace(request, graph=graph, shape=Shape(), origin=origin)


def _known(cabling: Cabling, gpus: int, name: str) -> dict[str, Any]:
    """Fields of a regular fabric that the graph tells. Raises RefusalError topology_invalid for leaves that are in no order."""
    known: dict[str, Any] = {"nodes": len(cabling.hosts), "gpus_per_node": gpus}
    if not cabling.nics:
        return known
    known["planes"] = 1 + max(plane for _, plane, _ in cabling.nics)
    for wiring in ("rail", "tor"):
        span = _span(cabling, gpus, rail=wiring == "rail")
        if span:
            return {**known, "wiring": wiring, "nodes_per_leaf": span}
    what = f"leaves without cables to spines are in {name}"
    why = "NICs are plugged in neither by rail nor by machine, so that numbers alone do not describe it"
    raise RefusalError(
        "topology_invalid", what, why, "add ibnetdiscover's text of the whole subnet, or give a TOML file"
    )


def _span(cabling: Cabling, gpus: int, *, rail: bool) -> int:
    """Machines of a leaf where groups of following machines have one leaf a rail (or one altogether); 0 where not."""
    for span in range(len(cabling.hosts), 0, -1):
        if len(cabling.hosts) % span == 0:
            groups: dict[tuple[int, int, int], set[str]] = {}
            for gpu, plane, leaf in cabling.nics:
                groups.setdefault((plane, gpu // gpus // span, gpu % gpus if rail else 0), set()).add(leaf)
            if all(len(group) == 1 for group in groups.values()) and len(groups) == len(cabling.leaves):
                return span
    return 0


def _told(shape: Shape, known: dict[str, Any], cabling: Cabling, name: str) -> tuple[str, ...]:
    seen = len(cabling.hosts)
    told = [
        f"{name}: {counted(seen, 'machine')} with {counted(shape.gpus_per_node, 'GPU')}{' each' if seen > 1 else ''}"
    ]
    if "wiring" in known:
        told.append(f"{shape.wiring} wiring, {counted(len(cabling.leaves), 'leaf', 'leaves')}")
    assumed = {
        "wiring": f"{shape.wiring} wiring",
        "spines": counted(shape.spines, "spine"),
        "oversubscription": f"oversubscription {shape.oversubscription}",
        "planes": counted(shape.planes, "plane"),
    }
    rest = ", ".join(words for field, words in assumed.items() if field not in known)
    notes = [f"{', '.join(told)}. What is not shown there is as flags or defaults say: {rest}."]
    if shape.nodes > seen:
        notes.append(f"{shape.nodes - seen} of {shape.nodes} nodes are taken to be like those of {name}.")
    return (*notes, *cabling.notes)
