"""`ibnetdiscover`: the cables of an InfiniBand subnet, one paragraph per switch, channel adapter or router, each with
its ports and what is at the other end."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from epctl.probes.reading import Problem, Reading, clean, error_of, first_line, was_cut

_LANE_GBPS = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Rate of one lane as marketed."""


class InitiatedFrom(Struct, frozen=True):
    node: str
    port: str


class Link(Struct, frozen=True):
    port: int
    peer_type: str
    """`S` switch, `H` channel adapter, `R` router."""
    peer_guid: str
    peer_port: int
    peer_name: str | None
    peer_lid: int | None
    width: int | None
    """Lanes."""
    speed: str | None
    gbps: float | None
    lid: int | None = None
    """Of the port itself; printed for adapters only."""


class Node(Struct, frozen=True):
    type: str
    """`Switch`, `Ca` or `Rt`."""
    guid: str
    name: str | None
    n_ports: int
    lid: int | None
    enhanced_port0: bool | None
    links: list[Link]


class Degraded(Struct, frozen=True):
    switch: str
    port: int
    gbps: float


class Facts(Struct, frozen=True):
    initiated_from: InitiatedFrom | None = None
    n_switches: int = 0
    n_cas: int = 0
    n_routers: int = 0
    switches: list[Node] = field(default_factory=list)
    cas: list[Node] = field(default_factory=list)
    routers: list[Node] = field(default_factory=list)
    n_switch_to_switch_cables: int = 0
    hosts: list[str] = field(default_factory=list)
    """First words of adapter names that name a host, sorted."""
    degraded: list[Degraded] = field(default_factory=list)
    """Switch ports slower than the fastest port of the same switch."""


_START = re.compile(r"# *Initiated from node (?:0x)?([0-9a-f]{1,16}) port (?:0x)?([0-9a-f]{1,16})", re.ASCII | re.I)
_NODE = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,4})\s+"[SHR]-([0-9a-f]{1,16})"(.*)', re.ASCII | re.I)
_LINK = re.compile(
    r'\[(\d{1,4})\](?:\[[^\]]{0,40}\])?(?:\([0-9a-f]{1,16}\))?\s*"([SHR])-([0-9a-f]{1,16})"\[(\d{1,4})\](.*)',
    re.ASCII | re.I,
)
_LID = re.compile(r"\blid (\d{1,6})\b", re.ASCII)
_RATE = re.compile(r"\b(\d{1,3})x([A-Z0-9?]{2,6})(?![\w?])", re.ASCII)
_ATTRIBUTE = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=", re.ASCII)
_GROUPS = re.compile(r"(?:Chassis|Non-Chassis|Spine|Line|Leaf)\b", re.ASCII)
_TROUBLE = re.compile(r"ibwarn:|iberror:|\S{1,80}\.c:\d+; |mad_rpc|umad|\S{0,80}ibnetdiscover: ", re.ASCII | re.I)
_NO_PORT = re.compile(r"can't open U?MAD port|umad_open|umad_init|get_ca|failed to open '?\(?null|no such ca", re.I)
_NOT_A_HOST = re.compile(r"Mellanox|Aggregation|Technologies|^MT\d{4,6}$", re.I)
_MAX_LINE = 4096
"""Longer lines do not come from ibnetdiscover."""


def _guid(digits: str) -> str:
    return digits.lower().zfill(16)


def _quoted(text: str) -> tuple[str, str | None, str]:
    """Text in front of, within and behind the outermost pair of quotes."""
    first, last = text.find('"'), text.rfind('"')
    if first < 0 or first == last:
        return text, None, text
    return text[:first], text[first + 1 : last], text[last + 1 :]


def _link(line: str) -> Link | None:
    found = _LINK.match(line)
    if not found:
        return None
    front, name, behind = _quoted(found.group(5))
    own = _LID.search(front) if name is not None else None
    peer, rate = _LID.search(behind), _RATE.search(behind)
    lane = _LANE_GBPS.get(rate.group(2)) if rate else None
    return Link(
        port=int(found.group(1)),
        peer_type=found.group(2).upper(),
        peer_guid=_guid(found.group(3)),
        peer_port=int(found.group(4)),
        peer_name=name,
        peer_lid=int(peer.group(1)) if peer and rate else None,
        width=int(rate.group(1)) if rate else None,
        speed=rate.group(2) if rate and lane is not None else None,
        gbps=int(rate.group(1)) * lane if rate and lane is not None else None,
        lid=int(own.group(1)) if own else None,
    )


def _node(line: str) -> Node | None:
    found = _NODE.match(line)
    if not found:
        return None
    _, name, behind = _quoted(found.group(4))
    lid = _LID.search(behind)
    kind = found.group(1).capitalize()
    port0 = "enhanced port 0" in behind if "port 0" in behind else None
    return Node(kind, _guid(found.group(3)), name, int(found.group(2)), int(lid.group(1)) if lid else None, port0, [])


def _host(name: str | None) -> str | None:
    words = name.split() if name else []
    return None if not words or len(words) > 2 or _NOT_A_HOST.search(words[0]) else words[0]


class _Walk:
    def __init__(self) -> None:
        self.initiated_from: InitiatedFrom | None = None
        self.nodes: dict[str, Node] = {}
        self.current: Node | None = None
        self.seen_form = False
        self.trouble = ""
        self.unread = ""

    def take(self, line: str) -> None:
        if line.startswith("["):
            link = _link(line)
            if link is None or self.current is None:
                self.unread = self.unread or line[:200]
            else:
                self.current.links.append(link)
        elif node := _node(line):
            self.nodes[node.guid] = self.current = node
        elif line.startswith("#"):
            self.seen_form = self.seen_form or "Topology file" in line or "Initiated from" in line
            if self.initiated_from is None and (found := _START.match(line)):
                self.initiated_from = InitiatedFrom(_guid(found.group(1)), _guid(found.group(2)))
        elif _ATTRIBUTE.match(line) or _GROUPS.match(line):
            self.current = None
        elif _TROUBLE.match(line):
            self.trouble = self.trouble or line[:200]
        elif line:
            self.unread = self.unread or line[:200]

    def facts(self) -> Facts:
        by_type: dict[str, list[Node]] = {"Switch": [], "Ca": [], "Rt": []}
        for node in self.nodes.values():
            by_type[node.type].append(node)
        names = [ca.name for ca in by_type["Ca"]]
        names += [link.peer_name for node in by_type["Switch"] for link in node.links if link.peer_type == "H"]
        return Facts(
            initiated_from=self.initiated_from,
            n_switches=len(by_type["Switch"]),
            n_cas=len(by_type["Ca"]),
            n_routers=len(by_type["Rt"]),
            switches=by_type["Switch"],
            cas=by_type["Ca"],
            routers=by_type["Rt"],
            n_switch_to_switch_cables=len(_cables(by_type["Switch"])),
            hosts=sorted({host for name in names if (host := _host(name))}),
            degraded=[slow for switch in by_type["Switch"] for slow in _degraded(switch)],
        )


def _cables(switches: list[Node]) -> set[frozenset[tuple[str, int]]]:
    """Each cable between two switches once, though the text shows it from both ends."""
    return {
        frozenset(((switch.guid, link.port), (link.peer_guid, link.peer_port)))
        for switch in switches
        for link in switch.links
        if link.peer_type == "S"
    }


def _degraded(switch: Node) -> list[Degraded]:
    rates = [(link.port, link.gbps) for link in switch.links if link.gbps is not None]
    best = max((gbps for _, gbps in rates), default=0.0)
    return [Degraded(switch.guid, port, gbps) for port, gbps in rates if gbps < best]


def _failure(text: str, walk: _Walk) -> dict[str, Any]:
    if _NO_PORT.search(text[:4096]):
        return {"kind": "permission_or_no_port", "message": first_line(text)}
    if known := error_of(text):
        return known
    return {"kind": "discovery_failed" if walk.trouble else "unparsable", "message": first_line(text)}


def _cut_line(text: str) -> str:
    """A last line without line end that breaks off before its rate (or its node's name) is there; "" else."""
    line = text[text.rfind("\n") + 1 :][:_MAX_LINE].strip()
    if line.startswith("["):
        link = _link(line)
        return line if link is None or link.speed is None else ""
    if _ATTRIBUTE.match(line) or (line.startswith(("Switch", "Ca", "Rt")) and _quoted(line)[2] in ("", line)):
        return line
    return line if line and not line.startswith("#") and not _NODE.match(line) and not _TROUBLE.match(line) else ""


def read(raw: bytes) -> Reading[Facts]:
    """A node that is listed twice counts once, as listed last."""
    text = clean(raw)
    if not text.strip():
        return Reading("empty", Facts())
    walk = _Walk()
    for line in text.split("\n"):
        walk.take(line[:_MAX_LINE].strip())
    if not walk.nodes and not walk.seen_form:
        return Reading("error", Facts(), error=_failure(text, walk))
    cut = _cut_line(text)
    problems = []
    if cut or was_cut(raw):
        where = f"{walk.current.type} {walk.current.guid}" if walk.current else ""
        problems.append(Problem("truncated", where, cut[:200]))
    if walk.unread and walk.unread != cut[:200]:
        problems.append(Problem("unparsable", "", walk.unread))
    if walk.trouble:
        problems.append(Problem("discovery_incomplete", "", walk.trouble))
    if not walk.nodes:
        problems.append(Problem("no_devices", "", first_line(text)))
    return Reading("partial" if problems else "ok", walk.facts(), problems=tuple(problems))
