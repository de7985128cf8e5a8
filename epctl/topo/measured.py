"""NVLink rates that `epctl bench link` measured, put beside those that NVML and others tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.topo.build import SHOWN
from epctl.topo.graph import Edge, Finding, Graph, Measured, Node, Source
from epctl.topo.tree import Tree

LEAST_SHARE = 0.7
"""Of the nominal rate. On 2 × H200 with all links up SMs wrote 369 to 371 and read 373 to 374 of 478 GB/s one way (77 %), the copy
engine 386 both ways (81 %); one link of 18 less costs 6 %."""
WORD = "measured"


class Rate(Struct, frozen=True):
    """One case: data went from rank `source` to rank `target`, all other ranks idle. 1e9 bytes/s."""

    source: int
    target: int
    gbs: float
    by: Literal["SMs", "copy engine"]
    case: str


class Run(Struct, frozen=True):
    """What a record tells of one machine. Rank r had the GPU `uuids[r]`, where they are known; else the r-th in NVML's order."""

    name: str
    host: str
    gpu_name: str
    num_gpus: int
    links_per_gpu: int
    """0 where it is not known."""
    uuids: tuple[str, ...]
    rates: tuple[Rate, ...]
    cautions: tuple[str, ...] = ()


def with_run(graph: Graph, run: Run) -> Graph:
    """The graph with the rates, what is slow as findings. Raises EpctlError where the run was on other GPUs, or is one too many."""
    if graph.measured:
        why = f"they are from {graph.measured[0].source}"
        raise EpctlError("the topology has measured rates already", why, "give the sources that it was made of")
    tree = Tree(graph)
    host = _host(tree, run)
    gpus = _gpus(tree, host, run)
    routes = {pair: _route(tree, *pair) for pair in ((a.id, b.id) for a in gpus for b in gpus if a.id != b.id)}
    best: dict[tuple[str, str, str], Measured] = {}
    for rate in run.rates:
        a, b = gpus[rate.source].id, gpus[rate.target].id
        if routes[a, b] and ((a, b, rate.by) not in best or best[a, b, rate.by].gbs < rate.gbs):
            nominal = _nominal(routes[a, b])
            best[a, b, rate.by] = Measured(a, b, round(rate.gbs, 3), rate.by, rate.case, run.name, nominal)
    measured = tuple(sorted(best.values(), key=lambda one: (_order(gpus, one.a), _order(gpus, one.b), one.by)))
    findings = [*_doubts(tree, host, run, gpus, routes), *_slow(tree, host, measured)]
    return replace(
        graph,
        sources=(*graph.sources, Source(run.name, "bench")),
        edges=_edges(graph, measured, routes),
        findings=tuple(dict.fromkeys((*graph.findings, *findings))),
        measured=measured,
    )


def fastest(measured: Sequence[Measured]) -> dict[tuple[str, str], Measured]:
    """(from, to) → the best entry, whichever engine moved the data."""
    found: dict[tuple[str, str], Measured] = {}
    for one in measured:
        if (one.a, one.b) not in found or found[one.a, one.b].gbs < one.gbs:
            found[one.a, one.b] = one
    return found


def is_slow(one: Measured) -> bool:
    """Below LEAST_SHARE of what the links are for; False where nobody tells that."""
    return isinstance(one.nominal_gbs, float) and one.gbs < LEAST_SHARE * one.nominal_gbs


def _order(gpus: Sequence[Node], id_: str) -> int:
    return int(next(node for node in gpus if node.id == id_).attrs.get("index", 0))


def _host(tree: Tree, run: Run) -> Node:
    hosts = [host for host in tree.hosts() if tree.of_kind("gpu", host.id)]
    named = [host for host in hosts if run.host in (host.id, host.label)]
    if named or len(hosts) == 1:
        return (named or hosts)[0]
    if not hosts:
        raise _unfit(run, "the sources show no GPU", "give a snapshot of the machine that was timed")
    names = ", ".join(host.label for host in hosts[:SHOWN])
    why = f"it is of {run.host or 'a machine without a name'}; the sources show {names}{' …' if len(hosts) > SHOWN else ''}"
    raise _unfit(run, why, "give a snapshot of the machine that was timed")


def _gpus(tree: Tree, host: Node, run: Run) -> list[Node]:
    """By rank."""
    gpus = sorted(tree.of_kind("gpu", host.id), key=lambda node: int(node.attrs.get("index", 0)))
    todo = "give the record and the snapshot of one machine"
    if len(gpus) != run.num_gpus:
        raise _unfit(run, f"it is of {run.num_gpus} GPUs, and {host.label} has {len(gpus)}", todo)
    other = next((str(name) for gpu in gpus if (name := gpu.attrs.get("name")) not in (None, run.gpu_name)), None)
    if other is not None:
        raise _unfit(run, f"it is of {run.gpu_name or 'GPUs without a name'}, and {host.label} has {other}", todo)
    by_uuid = {str(gpu.attrs["uuid"]): gpu for gpu in gpus if "uuid" in gpu.attrs}
    known = [by_uuid[uuid] for uuid in run.uuids if uuid in by_uuid]
    if known and (len(known) != len(run.uuids) or len(set(run.uuids)) != run.num_gpus):
        raise _unfit(run, f"only {len(set(run.uuids) & by_uuid.keys())} of its GPUs are in {host.label}, by UUID", todo)
    return known or gpus


def _unfit(run: Run, why: str, todo: str) -> EpctlError:
    return EpctlError(f"{run.name} does not fit the topology", why, todo)


class _Route(Struct, frozen=True):
    """NVLinks out of one GPU and into another: the same edge where nothing lies between."""

    out: tuple[Edge, ...]
    into: tuple[Edge, ...]


def _route(tree: Tree, a: str, b: str) -> _Route | None:
    mine, theirs = (_ends(tree, gpu) for gpu in (a, b))
    if b in mine:
        return _Route((mine[b],), (mine[b],))
    shared = [end for end in mine if end in theirs and tree.nodes[end].kind != "gpu"]
    return _Route(tuple(mine[end] for end in shared), tuple(theirs[end] for end in shared)) if shared else None


def _ends(tree: Tree, gpu: str) -> dict[str, Edge]:
    return {edge.b if edge.a == gpu else edge.a: edge for edge in tree.at.get(gpu, ()) if edge.kind == "nvlink"}


def _nominal(route: _Route | None) -> float | UnsetType:
    """A switch takes no more than the narrower of its two sides."""
    if route is None:
        return UNSET
    total = 0.0
    for out, into in zip(route.out, route.into, strict=True):
        if out.gbs is UNSET or into.gbs is UNSET:
            return UNSET
        total += min(float(out.gbs), float(into.gbs))
    return round(total, 3)


def _edges(
    graph: Graph, measured: Sequence[Measured], routes: Mapping[tuple[str, str], _Route | None]
) -> tuple[Edge, ...]:
    """Links that a pair's data take alone at one end have its rate; over several switches nobody measured which share each one took."""
    rates: dict[tuple[str, str], list[float]] = {}
    for (a, b), one in fastest(measured).items():
        route = routes[a, b]
        for edges, gpu, leaves in ((route.out, a, True), (route.into, b, False)) if route is not None else ():
            if len(edges) == 1:
                start = gpu if leaves else _other(edges[0], gpu)
                rates.setdefault((start, _other(edges[0], start)), []).append(one.gbs)
    found = []
    for edge in graph.edges:
        up, down = (max(rates.get(way, ()), default=UNSET) for way in ((edge.a, edge.b), (edge.b, edge.a)))
        if edge.kind == "nvlink" and (up is not UNSET or down is not UNSET):
            source = f"{edge.source}, {WORD}"
            found.append(replace(edge, source=source, measured_up_gbs=up, measured_down_gbs=down))
        else:
            found.append(edge)
    return tuple(found)


def _other(edge: Edge, end: str) -> str:
    return edge.b if edge.a == end else edge.a


def _slow(tree: Tree, host: Node, measured: Sequence[Measured]) -> list[Finding]:
    slow = [
        (one.gbs / float(one.nominal_gbs), one)  # type: ignore[arg-type]
        for one in fastest(measured).values()
        if is_slow(one)
    ]
    if not slow:
        return []
    slow.sort(key=lambda pair: pair[0])
    told = [
        f"{tree.nodes[one.a].label} -> {tree.nodes[one.b].label} {one.gbs:.1f} of {one.nominal_gbs:.1f} GB/s ({share:.0%})"
        for share, one in slow[:SHOWN]
    ]
    more = f" and {len(slow) - SHOWN} more" if len(slow) > SHOWN else ""
    text = f"{host.label}: NVLink is measured below {LEAST_SHARE:.0%} of nominal: {', '.join(told)}{more}"
    return [Finding("warn", text, (slow[0][1].source, "NVML"))]


def _doubts(
    tree: Tree, host: Node, run: Run, gpus: Sequence[Node], routes: Mapping[tuple[str, str], _Route | None]
) -> list[Finding]:
    found = [Finding("note", f"{run.name}: {caution}", (run.name,)) for caution in run.cautions]
    if not (set(run.uuids) & {str(gpu.attrs.get("uuid", "")) for gpu in gpus}):
        text = (
            f"{run.name} is taken to be of {host.label} by name and number of its GPUs; it was written on "
            f"{run.host or 'a machine without a name'}, and no UUID says more. Rank 0 is taken for {gpus[0].label}, and so on."
        )
        found.append(Finding("note", text, (run.name,)))
    counts = {gpu.label: sum(edge.num_links for edge in _ends(tree, gpu.id).values()) for gpu in gpus}
    differ = [
        f"{label} has {count}" for label, count in counts.items() if run.links_per_gpu and count != run.links_per_gpu
    ]
    if differ:
        more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
        text = f"{host.label}: NVLinks a GPU: {run.name} says {run.links_per_gpu}; {', '.join(differ[:SHOWN])}{more}"
        found.append(Finding("warn", text, (run.name, "NVML")))
    bare = sum(routes[gpus[rate.source].id, gpus[rate.target].id] is None for rate in run.rates)
    if bare:
        text = f"{run.name}: {bare} of {len(run.rates)} rates are of GPUs that share no NVLink; they are left out"
        found.append(Finding("note", text, (run.name,)))
    if any(route is not None and len(route.out) > 1 for route in routes.values()):
        text = f"{run.name}: rates are of all NVLinks of two GPUs together; which NVSwitch carried what is not measured"
        found.append(Finding("note", text, (run.name,)))
    return found
