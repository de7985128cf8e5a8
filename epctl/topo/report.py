"""Everything that `epctl topo` says about a graph; what its JSON holds."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.topo.choices import Pairing, pairing_of
from epctl.topo.domains import Domains, domains_of
from epctl.topo.fabric_facts import FabricFacts, facts_of, rails_of
from epctl.topo.graph import SCHEMA_NAME, SCHEMA_VERSION, Edge, Graph, Node
from epctl.topo.rates import gbps_to_gbs
from epctl.topo.tree import Tree


class Schema(Struct, frozen=True):
    """Name and version of the format."""

    name: str = SCHEMA_NAME
    version: int = SCHEMA_VERSION


class Report(Struct, frozen=True, omit_defaults=True):
    """`graph` with rails drawn in; one pairing for every machine with GPUs and NICs; `domains` where an EP size was asked for."""

    schema: Schema
    graph: Graph
    pairings: tuple[Pairing, ...] = ()
    fabric: FabricFacts | UnsetType = UNSET
    domains: Domains | UnsetType = UNSET


def report_of(graph: Graph, ep: int | None = None) -> Report:
    """Works everything out. Raises EpctlError for an EP size that makes no sense."""
    bare = without_rails(graph)
    tree = Tree(bare)
    pairings = {host.id: pairing for host in tree.hosts() if (pairing := pairing_of(tree, host.id)) is not None}
    facts = facts_of(tree, pairings)
    domains: Domains | UnsetType = UNSET if ep is None else domains_of(tree, ep)
    return Report(Schema(), _with_rails(tree, pairings), tuple(pairings.values()), facts, domains)


def without_rails(graph: Graph) -> Graph:
    """A graph out of a report already has rails; they follow from the rest."""
    nodes = tuple(node for node in graph.nodes if node.kind != "rail")
    return replace(graph, nodes=nodes, edges=tuple(edge for edge in graph.edges if edge.kind != "rail"))


def _with_rails(tree: Tree, pairings: dict[str, Pairing]) -> Graph:
    graph = tree.graph
    if not pairings:
        return graph
    nodes: list[Node] = []
    edges: list[Edge] = []
    for rail, nics in rails_of(tree, pairings).items():
        id_ = f"rail/{rail}"
        nodes.append(Node(id_, "rail", f"rail {rail}", "", "pairing", {"rail": int(rail)}))
        for nic in nics:
            gbps = tree.nodes[nic].attrs.get("gbps")
            gbs = gbps_to_gbs(float(gbps)) if isinstance(gbps, int | float) else UNSET
            edges.append(Edge(nic, id_, "rail", "pairing", gbs))
    return replace(graph, nodes=(*graph.nodes, *nodes), edges=(*graph.edges, *edges))


def decode(raw: bytes, name: str) -> Graph:
    """The graph in a report that `epctl topo --format json` wrote. Raises EpctlError, naming `name`, when it is none."""
    todo = "make one with `epctl topo --format json -o FILE`"
    try:
        report = msgspec.json.decode(raw, type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EpctlError(f"{name} is no topology of epctl", str(error), todo) from None
    if report.schema.name != SCHEMA_NAME or report.schema.version > SCHEMA_VERSION:
        why = (
            f"its schema is {report.schema.name} {report.schema.version}; {SCHEMA_NAME} up to {SCHEMA_VERSION} is read"
        )
        raise EpctlError(f"{name} is no topology of epctl", why, todo)
    return report.graph


def json_schema() -> dict[str, object]:
    """JSON Schema of the report."""
    return msgspec.json.schema(Report)
