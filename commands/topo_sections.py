"""Sections of what `epctl topo` prints: network, pairing, EP layout, findings."""

from __future__ import annotations

from msgspec import UnsetType

from epctl.core.render.safe import plain
from epctl.core.wording import counted
from epctl.model.show.page import Page
from epctl.topo.choices import Pairing
from epctl.topo.domains import Domains
from epctl.topo.fabric_facts import FabricFacts
from epctl.topo.graph import Measured, Node
from epctl.topo.measured import fastest, is_slow
from epctl.topo.report import Report
from epctl.topo.tree import Tree
from epctl.topo.words import facts, label

MOST_LINES = 40
"""Switches, machines or changes in a list; JSON has all."""
MOST_PAIRS = 12
"""Pairs of GPUs, both ways, that stand in a list; of more, a matrix shows the best rates."""


def network(page: Page, tree: Tree, others: list[Node]) -> None:
    """Switches and what is on them; machines that nothing else describes."""
    every = tree.of_kind("switch")
    switches = [node for node in every if node.attrs.get("tier") != "unknown"]
    blocks = tree.of_kind("block")
    if switches or blocks:
        page.blank()
        page.line("Scale-out network", "bold")
    for node in [*switches, *blocks][:MOST_LINES]:
        ends = [tree.nodes[edge.b if edge.a == node.id else edge.a] for edge in tree.at.get(node.id, ())]
        cables = sum(edge.num_links for edge in tree.at.get(node.id, ()))
        near = {end.id if end.kind in ("switch", "host") else tree.host(end.id) or end.id for end in ends}
        up = sum(end.kind == "switch" for end in ends)
        told = [counted(cables, "cable"), counted(len(near) - up, "machine"), counted(up, "switch", "switches")]
        page.put(f"{label(node)}  {facts(node)}  {', '.join(told)}", "      ", first="  ")
    if len(switches) + len(blocks) > MOST_LINES:
        page.line(f"  … and {len(switches) + len(blocks) - MOST_LINES} more (--format json has all)")
    unknown = [node.label for node in every if node not in switches]
    if unknown:
        names = ", ".join(unknown[:MOST_LINES]) + (" …" if len(unknown) > MOST_LINES else "")
        count = counted(len(unknown), "switch", "switches")
        page.put(f"{count} named as neighbours only: {names}", "      ", first="  ")
    if others:
        names = ", ".join(host.label for host in others[:MOST_LINES]) + (" …" if len(others) > MOST_LINES else "")
        page.put(f"{counted(len(others), 'machine')} known from the network alone: {names}", "      ", first="  ")


def pairing(page: Page, pairing: Pairing, *, several: bool) -> None:
    """NICs of each GPU, the default beside it, and lines for the environment."""
    page.blank()
    page.line(f"Which NIC for which GPU{f', {pairing.host}' if several else ''}", "bold")
    rows = []
    for mine, theirs in zip(pairing.best.pairs, pairing.default.pairs, strict=True):
        same = mine.nics == theirs.nics
        alike = same and mine.gbps == theirs.gbps
        cells = (
            mine.gpu,
            " ".join(dict.fromkeys(mine.levels)),
            _rate(mine.gbps),
            "same" if alike else _rate(theirs.gbps),
        )
        more = "" if same else f", by default {' '.join(theirs.nics)}"
        rows.append(((*cells, " ".join(mine.nics) + more), "" if alike else "yellow"))
    page.table(rows, frozenset({2, 3}), ("GPU", "path", "Gb/s", "default", "NIC"))
    if not isinstance(pairing.lost_gbps, UnsetType) and not isinstance(pairing.lost_total_gbps, UnsetType):
        worst, total = pairing.lost_gbps, pairing.lost_total_gbps
        if worst > 0:
            together = f"all together lose {total:g}" if total >= 0 else f"all together gain {-total:g}"
            page.put(
                f"by the default choice one GPU loses up to {worst:g} Gb/s, {together} Gb/s",
                "    ",
                "yellow",
                first="  ",
            )
    for note in pairing.notes:
        page.put(note, "    ", first="  ")
    if pairing.unused:
        page.put(f"not needed: {', '.join(pairing.unused)}", "    ", first="  ")
    if pairing.left_out:
        page.put(f"carry no EP traffic: {', '.join(pairing.left_out)}", "    ", first="  ")
    for line in pairing.lines:
        if line.name != "UCX_NET_DEVICES":  # not wrapped: it is there to be copied
            page.put(f"# {line.note}", "  # ", first="  ", style="dim")
            page.lines.append(plain(f"  export {line.name}={line.value}"))
    ucx = [line for line in pairing.lines if line.name == "UCX_NET_DEVICES"]
    if ucx:
        page.put("# one for each rank, in the order of its GPU", "  # ", first="  ", style="dim")
        page.lines.append(plain(f"  UCX_NET_DEVICES: {' '.join(line.value for line in ucx)}"))


def measured(page: Page, tree: Tree, host: Node) -> None:
    """What a bench run moved between pairs of GPUs, beside what their links are for."""
    own = [one for one in tree.graph.measured if tree.host(one.a) == host.id]
    if not own:
        return
    page.blank()
    page.line("Measured NVLink, one way at a time, GB/s", "bold")
    page.put(f"by {own[0].source}", "    ", first="  ", style="dim")
    best = fastest(own)
    if len(best) > MOST_PAIRS:
        _measured_matrix(page, tree, best)
        return
    rows = []
    for (a, b), one in best.items():
        by = {each.by: f"{each.gbs:.1f}" for each in own if (each.a, each.b) == (a, b)}
        nominal, share = "?", "?"
        if not isinstance(one.nominal_gbs, UnsetType):
            nominal, share = f"{one.nominal_gbs:.1f}", f"{one.gbs / one.nominal_gbs:.0%}"
        cells = (f"{tree.nodes[a].label} -> {tree.nodes[b].label}", by.get("SMs", "-"), by.get("copy engine", "-"))
        rows.append(((*cells, nominal, share), "yellow" if is_slow(one) else ""))
    page.table(rows, frozenset({1, 2, 3, 4}), ("", "SMs", "copy engine", "nominal", "share"))


def _measured_matrix(page: Page, tree: Tree, best: dict[tuple[str, str], Measured]) -> None:
    """From the GPU of the row to that of the column; columns that do not fit stand in a further table below."""
    ends = list(dict.fromkeys(end for pair in best for end in pair))
    first = max(len(tree.nodes[end].label) for end in ends)
    wide = max(1, (page.look.width - first - 4) // 8)
    for begin in range(0, len(ends), wide):
        part = ends[begin : begin + wide]
        rows = []
        for a in ends:
            cells = [f"{best[a, b].gbs:.1f}" if (a, b) in best else "X" if a == b else "-" for b in part]
            slow = any(is_slow(best[a, b]) for b in part if (a, b) in best)
            rows.append(((tree.nodes[a].label, *cells), "yellow" if slow else ""))
        page.table(rows, frozenset(range(1, len(part) + 1)), ("", *(tree.nodes[b].label for b in part)))


def _rate(gbps: float | UnsetType) -> str:
    return "?" if isinstance(gbps, UnsetType) else f"{gbps:g}"


def _gpus(found: FabricFacts) -> str:
    if not found.gpus_per_node:
        return "GPUs not known"
    return counted(found.gpus_per_node, "GPU") + (" each" if found.num_nodes > 1 else "")


def fabric(page: Page, fabric: FabricFacts) -> None:
    """What a fabric model takes from here."""
    page.blank()
    page.line("For a fabric model", "bold")
    told = [
        counted(fabric.num_nodes, "machine"),
        _gpus(fabric),
        counted(fabric.num_rails, "rail"),
    ]
    wiring = {
        "unknown": "wiring not known",
        "rail": "rail wiring",
        "tor": "all NICs of a machine on one leaf",
        "mixed": "mixed wiring",
    }
    told.append(wiring[fabric.wiring])
    for value, what in (
        (fabric.num_leaves, ("leaf", "leaves", "")),
        (fabric.num_spines, ("spine", "spines", "")),
        (fabric.nodes_per_leaf, ("machine", "machines", " a leaf")),
        (fabric.uplinks_per_leaf, ("uplink", "uplinks", " a leaf at least")),
    ):
        if not isinstance(value, UnsetType):
            told.append(counted(value, what[0], what[1]) + what[2])
    if not isinstance(fabric.nic_gbps, UnsetType):
        told.append(f"{fabric.nic_gbps:g} Gb/s a NIC")
    if not isinstance(fabric.nvlink_gbs, UnsetType):
        told.append(f"{fabric.nvlink_gbs:.4g} GB/s NVLink a GPU")
    page.put(", ".join(told), "  ", first="  ")
    for note in fabric.notes:
        page.put(note, "    ", first="  ")


def domains(page: Page, found: Domains) -> None:
    """The EP layout and why not a larger block."""
    page.blank()
    page.line(f"EP of {found.ep} ranks", "bold")
    page.put(found.verdict, "  ", first="  ", style="green" if found.possible else "red")
    page.put(_assumed(found), "  ", first="  ")
    rows = [
        ((f"  {layout.scaleout} x {layout.scaleup}", "yes" if layout.possible else "no", layout.why), "")
        for layout in found.layouts
    ]
    page.table(rows, frozenset(), ("  layout", "can be", "why"))


def _assumed(found: Domains) -> str:
    if not found.assumed_machines:
        return f"on {counted(found.machines, 'machine')} of the sources"
    return f"on {counted(found.machines, 'machine')}, {found.assumed_machines} of them taken to be like those of the sources"


def findings(page: Page, report: Report) -> None:
    """Where sources disagree, and what could not be read."""
    if report.graph.findings:
        page.blank()
        page.line("Findings", "bold")
    for finding in report.graph.findings:
        page.put(
            finding.text, "        ", "yellow" if finding.severity == "warn" else "", first=f"  {finding.severity:4}  "
        )
