"""An InfiniBand subnet (`ibnetdiscover`) as a part of the graph: switches, cables, and the adapters at their ends."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.wording import counted
from epctl.topo.graph import Claim, Edge, Finding, Node, Part, Scalar, Source
from epctl.topo.nvlinks import rate
from epctl.topo.rates import gbps_to_gbs

SOURCE = "ibnetdiscover"
_HOST_WORDS = re.compile(r"([A-Za-z0-9][\w.-]{0,252}) (HCA-\d{1,3}|[A-Za-z][\w.-]{0,62})", re.ASCII)
_NO_HOST = re.compile(r"Mellanox|Aggregation|Technologies|MT\d{4,6}", re.IGNORECASE | re.ASCII)


class Cable(Struct, frozen=True):
    """One port of a node and what is at the other end. `peer_kind`: S switch, H adapter, R router."""

    port: int
    peer_kind: str
    peer_guid: str
    peer_port: int
    peer_name: str
    gbps: float | None


class SubnetNode(Struct, frozen=True):
    """A switch, adapter or router. `kind`: Switch, Ca, Rt."""

    kind: str
    guid: str
    name: str
    cables: tuple[Cable, ...]


class Adapter(Struct, frozen=True):
    """An adapter that other sources know. `ports`: number → id of the node of that port."""

    host: str
    label: str
    id: str
    ports: Mapping[int, str]


def part_of(
    subnet: tuple[SubnetNode, ...],
    name: str,
    by_guid: Mapping[str, Adapter],
    by_name: Mapping[tuple[str, str], Adapter],
) -> Part:
    """`by_guid` and `by_name` (host name, device): adapters of machines that other sources described. Raises EpctlError where one port
    has two cables."""
    build = _Subnet(subnet, name, by_guid, by_name)
    build.run()
    edges = [
        Edge(
            a,
            b,
            "network",
            SOURCE,
            rate(None if None in rates else sum(gbps_to_gbs(gbps) for gbps in rates if gbps)),
            len(rates),
        )
        for (a, b), rates in build.cables.items()
    ]
    return Part(
        Source(name, "ibnetdiscover"),
        tuple(build.nodes.values()),
        tuple(edges),
        tuple(build.claims),
        tuple(build.findings),
    )


class _Subnet:
    def __init__(
        self,
        subnet: tuple[SubnetNode, ...],
        name: str,
        by_guid: Mapping[str, Adapter],
        by_name: Mapping[tuple[str, str], Adapter],
    ) -> None:
        self.subnet = subnet
        self.name = name
        self.by_guid = by_guid
        self.by_name = by_name
        self.nodes: dict[str, Node] = {}
        self.labels: dict[str, str] = {}
        self.cables: dict[tuple[str, str], list[float | None]] = {}
        self.claims: list[Claim] = []
        self.findings: list[Finding] = []
        self.used: dict[tuple[str, int], tuple[str, int]] = {}
        self._seen: set[tuple[tuple[str, int], tuple[str, int]]] = set()

    def _label(self, name: str, guid: str) -> str:
        """Its name; with the end of its GUID where several have that name."""
        label = short_name(name) or guid
        if self.labels.setdefault(label, guid) != guid:
            label = f"{label} {guid[-6:]}"
        return label

    def run(self) -> None:
        for entry in self.subnet:
            if entry.kind == "Switch":
                self.nodes[f"ib/{entry.guid}"] = Node(
                    f"ib/{entry.guid}", "switch", self._label(entry.name, entry.guid), "", SOURCE, _switch_attrs(entry)
                )
        for entry in self.subnet:
            for cable in entry.cables:
                self.cable(entry, cable)
        self._tiers()

    def cable(self, entry: SubnetNode, cable: Cable) -> None:
        own, other = (entry.guid, cable.port), (cable.peer_guid, cable.peer_port)
        if own == other:
            raise EpctlError(
                f"{self.name} is refused", f"port {cable.port} of {entry.name or entry.guid} is wired to itself", _TODO
            )
        for end, peer in ((own, other), (other, own)):
            if self.used.setdefault(end, peer) != peer:
                where = f"port {end[1]} of {end[0]}"
                raise EpctlError(
                    f"{self.name} is refused", f"{where} has two cables: one end cannot be in two ports", _TODO
                )
        if (other, own) in self._seen or (own, other) in self._seen:
            return
        self._seen.add((own, other))
        a = self.end(own, entry.kind[0], entry.name)
        b = self.end(other, cable.peer_kind, cable.peer_name)
        if a and b:
            key = (a, b) if (b, a) not in self.cables else (b, a)
            self.cables.setdefault(key, []).append(cable.gbps)
            self._claim(own, other, cable.gbps)

    def _claim(self, own: tuple[str, int], other: tuple[str, int], gbps: float | None) -> None:
        for guid, port in (own, other):
            adapter = self.by_guid.get(guid)
            if adapter is not None and gbps is not None:
                label = adapter.label if port == 1 else f"{adapter.label}/{port}"
                self.claims.append(Claim(adapter.host, label, "rate (Gb/s)", f"{gbps:g}", SOURCE))

    def end(self, end: tuple[str, int], kind: str, name: str) -> str:
        """Id of what a cable ends at; '' for what carries no traffic of ours (aggregation nodes of switches, routers)."""
        guid, port = end
        if kind == "S":
            id_ = f"ib/{guid}"
            if id_ not in self.nodes:  # named as a peer only: its own paragraph is not in the text
                self.nodes[id_] = Node(
                    id_, "switch", self._label(name, guid), "", SOURCE, {"guid": guid, "seen_as_peer_only": True}
                )
            return id_
        if kind == "R" or "Aggregation" in name:
            return ""
        return self._adapter(guid, port, name)

    def _adapter(self, guid: str, port: int, name: str) -> str:
        words = _HOST_WORDS.fullmatch(name.strip())
        named = words is not None and not _NO_HOST.search(words[1])
        known = self.by_guid.get(guid) or (
            self.by_name.get((words[1], words[2])) if words is not None and named else None
        )
        if known is not None:
            return known.ports.get(port, known.id)
        host, device = (words[1], words[2]) if words is not None and named else ("", guid)
        parent = ""
        if host:
            parent = host
            self.nodes.setdefault(host, Node(host, "host", host, "", SOURCE))
        id_ = f"{host}/{device}" if host else f"ca/{guid}"
        attrs: dict[str, Scalar] = {"node_guid": guid, "fabric": True}
        self.nodes.setdefault(id_, Node(id_, "nic", device, parent, SOURCE, attrs))
        return id_

    def _tiers(self) -> None:
        """Switches with adapters are leaves, what they are cabled to are spines. What is two steps from any leaf is a spine of the next
        tier where it has a paragraph of its own, and of unknown tier where it is only named as a neighbour: the text may be a part of
        the subnet."""
        neighbours: dict[str, set[str]] = {}
        for a, b in self.cables:
            neighbours.setdefault(a, set()).add(b)
            neighbours.setdefault(b, set()).add(a)
        switches = [id_ for id_, node in self.nodes.items() if node.kind == "switch"]
        step = {id_: 0 for id_ in switches if any(not other.startswith("ib/") for other in neighbours.get(id_, ()))}
        queue = list(step)
        for at in queue:  # grows while it is gone through
            for other in sorted(neighbours.get(at, ())):
                if other.startswith("ib/") and other not in step:
                    step[other] = step[at] + 1
                    queue.append(other)
        for id_ in switches:
            node = self.nodes[id_]
            lost = node.attrs.get("seen_as_peer_only") is True and step.get(id_, 2) > 1
            tier = "unknown" if lost or id_ not in step else "spine" if step[id_] else "leaf"
            self.nodes[id_] = Node(id_, "switch", node.label, "", SOURCE, {**node.attrs, "tier": tier})
        partial = [node.label for node in self.nodes.values() if node.attrs.get("tier") == "unknown"]
        if partial:
            some = ", ".join(partial[:3]) + (" …" if len(partial) > 3 else "")
            text = f"{self.name}: {counted(len(partial), 'switch is', 'switches are')} of unknown tier ({some})"
            self.findings.append(Finding("note", f"{text}: the text does not show what is cabled to them", (SOURCE,)))


def _switch_attrs(entry: SubnetNode) -> dict[str, Scalar]:
    return {"guid": entry.guid, "ib_name": entry.name} if entry.name else {"guid": entry.guid}


def short_name(name: str) -> str:
    """`RK09-IBLEAF-04-04` for `MF0;RK09-IBLEAF-04-04:MQM9701/U1`, the form that managed switches have; a module of a chassis
    (`MF0;core1:MCS8500/L01/U1`) keeps its own, `core1/L01`."""
    inner = name.removeprefix("MF0;")
    if inner == name:
        return name[:64]
    host, _, rest = inner.partition(":")
    modules = rest.split("/")[1:-1]
    return "/".join([host, *modules])


_TODO = "run ibnetdiscover again, on a subnet that is not being rewired"
