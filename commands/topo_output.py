"""What `epctl topo` prints as text: tree, matrices, pairing, EP layout, differences."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET, UnsetType

from epctl.commands import topo_sections
from epctl.commands.topo_sections import MOST_LINES
from epctl.core.wording import counted
from epctl.model.show.page import Look, Page
from epctl.topo.diff import Diff
from epctl.topo.graph import Edge, Node, NodeKind
from epctl.topo.report import Report
from epctl.topo.tree import Tree
from epctl.topo.words import drawn, drawn_parent, facts, gbs, label, link, natural, rail_of

FROM_THE_NETWORK = ("ibnetdiscover", "Slurm")
"""Sources that tell of a machine no more than that it is there."""
MOST_TREES = 8
"""Machines whose tree is printed; of more, one line each."""


def look(output: Path | None) -> Look:
    """80 columns in a file or pipe, or as COLUMNS says; colours on a terminal where NO_COLOR is not set."""
    terminal = output is None and sys.stdout.isatty()
    asked = os.environ.get("COLUMNS", "")
    wide = shutil.get_terminal_size().columns if terminal or (asked.isascii() and asked.isdigit()) else 80
    return Look(min(max(wide, 60), 200), terminal and not os.environ.get("NO_COLOR"))


def text(report: Report, style: Look) -> str:
    """The whole report."""
    page, tree = Page(style), Tree(report.graph)
    _head(page, report, tree)
    hosts = [host for host in tree.hosts() if host.source not in FROM_THE_NETWORK]
    for host in hosts[:MOST_TREES]:
        page.blank()
        _tree(page, tree, host)
        _matrices(page, tree, host)
        topo_sections.measured(page, tree, host)
    if len(hosts) > MOST_TREES:
        page.blank()
        page.line(f"… and {len(hosts) - MOST_TREES} more machines (--format json has all)")
    topo_sections.network(page, tree, [host for host in tree.hosts() if host not in hosts])
    for pairing in report.pairings[:MOST_TREES]:
        topo_sections.pairing(page, pairing, several=len(report.pairings) > 1)
    if not isinstance(report.fabric, UnsetType) and (report.fabric.gpus_per_node or report.fabric.num_rails):
        topo_sections.fabric(page, report.fabric)
    if not isinstance(report.domains, UnsetType):
        topo_sections.domains(page, report.domains)
    topo_sections.findings(page, report)
    return page.text()


def html(report: Report) -> str:
    """A page to look at."""
    from epctl import __version__
    from epctl.page.topo_page import topo_page

    return topo_page(report, version=__version__)


def _head(page: Page, report: Report, tree: Tree) -> None:
    kinds: tuple[tuple[NodeKind, str], ...] = (
        ("gpu", "GPU"),
        ("nic", "NIC"),
        ("nvswitch", "NVSwitch"),
        ("switch", "switch"),
    )
    counts = [
        counted(len(found), word, f"{word}es" if word.endswith("witch") else "")
        for kind, word in kinds
        if (found := tree.of_kind(kind))
    ]
    page.line(f"epctl topo: {', '.join([counted(len(tree.hosts()), 'machine'), *counts])}", "bold")
    for source in report.graph.sources:
        if source.sample:
            how = "composed by hand" if source.hand_made else "recorded on a real machine"
            page.line(f"SAMPLE {source.name}: packaged example data ({how}), not your machine", "yellow")


def _tree(page: Page, tree: Tree, host: Node) -> None:
    page.line(" ".join(part for part in (host.label, facts(host)) if part), "bold")
    nodes = [
        node for node in drawn(tree) if tree.host(node.id) == host.id and node.kind not in ("nvswitch", "nvlink_domain")
    ]
    children: dict[str, list[Node]] = {}
    for node in nodes:
        children.setdefault(drawn_parent(tree, node), []).append(node)
    for below in children.values():
        kinds = list(dict.fromkeys(node.kind for node in below))
        below.sort(key=lambda node: (kinds.index(node.kind), natural(node)))
    rails = rail_of(tree)

    def show(node: Node, depth: int) -> None:
        told = "; ".join(part for part in (facts(node), *_links(tree, node), rails.get(node.id, "")) if part)
        page.put(f"{label(node)}  {told}" if told else label(node), "  " * (depth + 2), first="  " * depth)
        for child in children.get(node.id, []):
            show(child, depth + 1)

    for node in children.get(host.id, []):
        show(node, 1)
    for domain in [node for node in tree.of_kind("nvlink_domain") if _reaches(tree, node, host)]:
        switches = [node.label.removeprefix("NVSwitch ") for node in tree.children.get(domain.id, [])]
        told = (
            f"{counted(len(switches), 'NVSwitch', 'NVSwitches')}: {', '.join(switches)}"
            if switches
            else "its switches are not told"
        )
        page.put(f"{label(domain)}  {told}", "    ", first="  ")


def _reaches(tree: Tree, domain: Node, host: Node) -> bool:
    ends = {domain.id, *(node.id for node in tree.children.get(domain.id, []))}
    return any(
        tree.host(other) == host.id
        for end in ends
        for edge in tree.at.get(end, ())
        for other in (edge.a, edge.b)
        if tree.nodes[other].kind == "gpu"
    )


def _links(tree: Tree, node: Node) -> list[str]:
    told = []
    up = tree.uplink.get(node.id)
    if up is not None and (up.detail or up.gbs is not UNSET):
        told.append(_pcie(up))
    links = [edge for edge in tree.at.get(node.id, ()) if edge.kind == "nvlink" and node.kind == "gpu"]
    if links:
        total = sum(edge.num_links for edge in links)
        rates = [float(edge.gbs) for edge in links if edge.gbs is not UNSET]
        told.append(counted(total, "NVLink") + (f" {sum(rates):.0f} GB/s" if len(rates) == len(links) else ""))
    told += [link(edge) for edge in tree.at.get(node.id, ()) if edge.kind == "c2c"]
    if node.kind == "nic" and node.attrs.get("fabric") is False:
        told.append("carries no EP traffic")
    return told


def _pcie(edge: Edge) -> str:
    """Width and rate; the speed where no rate follows from it, as in a guest."""
    width = edge.detail.partition(" at ")[0]
    if edge.gbs is not UNSET:
        return " ".join(part for part in ("PCIe", width, gbs(edge)) if part)
    return f"PCIe {edge.detail.replace(' as the guest sees it', ' (guest view)')}"


def _matrices(page: Page, tree: Tree, host: Node) -> None:
    gpus = tree.of_kind("gpu", host.id)
    nics = [node for node in tree.of_kind("nic", host.id) if node.attrs.get("fabric") is not False]
    nics.sort(key=natural)
    if len(gpus) > 1:
        _matrix(page, tree, gpus, gpus, "GPU to GPU")
    if gpus and nics:
        _matrix(page, tree, gpus, nics, "GPU to NIC")


def _matrix(page: Page, tree: Tree, rows: Sequence[Node], columns: Sequence[Node], title: str) -> None:
    """Columns that do not fit stand in a further table below."""
    page.blank()
    page.line(title, "bold")
    first = max(len(node.label) for node in rows)
    rest = list(columns)
    while rest:
        part: list[Node] = []
        width = first + 2
        while rest and (not part or width + max(len(rest[0].label), 4) + 2 <= page.look.width):
            width += max(len(rest[0].label), 4) + 2
            part.append(rest.pop(0))
        table = [((row.label, *(cell_of(tree, row, column) for column in part)), "") for row in rows]
        page.table(table, frozenset(), ("", *(node.label for node in part)))


def cell_of(tree: Tree, one: Node, other: Node) -> str:
    """NV18, or the distance; `?` where no source tells."""
    if one.id == other.id:
        return "X"
    return nvlinks_between(tree, one, other) or tree.level(one.id, other.id) or "?"


def nvlinks_between(tree: Tree, one: Node, other: Node) -> str:
    """NV and the number of links between two GPUs, straight or over switches of one domain; '' where there are none."""
    mine, theirs = (
        {
            edge.b if edge.a == node.id else edge.a: edge.num_links
            for edge in tree.at.get(node.id, ())
            if edge.kind == "nvlink"
        }
        for node in (one, other)
    )
    if other.id in mine:
        return f"NV{mine[other.id]}"
    common = {end for end in mine.keys() & theirs.keys() if tree.nodes[end].kind != "gpu"}
    links = sum(min(mine[end], theirs[end]) for end in common)
    return f"NV{links}" if links else ""


def changes(found: Diff, style: Look) -> str:
    """What differs, by kind."""
    page = Page(style)
    page.line(f"epctl topo diff: {found.a} and {found.b}", "bold")
    if not found.changes:
        page.line(f"wired alike ({found.compared // 2} nodes and links compared)", "green")
        return page.text()
    for kind in dict.fromkeys(change.kind for change in found.changes):
        mine = [change for change in found.changes if change.kind == kind]
        page.blank()
        page.line(
            {"node": "Nodes", "link": "Links", "attribute": "Attributes", "place": "Places", "pairing": "Pairing"}[
                kind
            ],
            "bold",
        )
        for change in mine[:MOST_LINES]:
            sign = "+" if not change.before else "-" if not change.after else "~"
            told = (
                change.after if sign == "+" else change.before if sign == "-" else f"{change.before} -> {change.after}"
            )
            page.put(f"{change.what}: {told}", "      ", first=f"  {sign} ")
        if len(mine) > MOST_LINES:
            page.line(f"  … and {len(mine) - MOST_LINES} more (--format json has all)")
    page.blank()
    page.line(counted(len(found.changes), "difference"), "yellow")
    return page.text()
