"""The graph as a Mermaid flowchart, for pages that render it (GitHub, GitLab)."""

from __future__ import annotations

from epctl.topo.graph import Graph, Node
from epctl.topo.tree import Tree
from epctl.topo.words import drawn, drawn_edges, drawn_parent, facts, gbs, label, measured

_SHAPES = {
    "host": ("[[", "]]"),
    "gpu": ("[", "]"),
    "nic": ("([", "])"),
    "switch": ("{{", "}}"),
    "nvswitch": ("{{", "}}"),
}
_LINES = {"nvlink": "===", "network": "-.-", "rail": "-.-", "member": "-.-", "c2c": "==="}


def mermaid(graph: Graph) -> str:
    """Machines as subgraphs."""
    tree = Tree(graph)
    nodes = drawn(tree)
    ids = {node.id: f"n{i}" for i, node in enumerate(nodes)}
    lines = ["flowchart TB"]
    for host in [node for node in nodes if node.kind == "host"]:
        lines.append(f"  subgraph {ids[host.id]}_machine[{_quoted(host)}]")
        lines += [f"    {_node(ids[node.id], node)}" for node in nodes if tree.host(node.id) == host.id]
        lines.append("  end")
    lines += [f"  {_node(ids[node.id], node)}" for node in nodes if not tree.host(node.id)]
    for node in nodes:
        parent = drawn_parent(tree, node)
        if parent in ids and node.kind not in ("nvlink_domain", "nvswitch"):
            edge = tree.uplink.get(node.id)
            told = gbs(edge) if edge is not None else ""
            lines.append(f"  {ids[parent]} ---{f'|{told}|' if told else ''} {ids[node.id]}")
    for a, b, edge in drawn_edges(tree, set(ids)):
        many = f"{edge.num_links} x {edge.kind}" if edge.num_links > 1 else ""
        words = ", ".join(part for part in (f"{many} {gbs(edge)}".strip(), measured(edge).strip("()")) if part)
        lines.append(f"  {ids[a]} {_LINES[edge.kind]}{f'|{words}|' if words else ''} {ids[b]}")
    return "\n".join(lines) + "\n"


def _node(id_: str, node: Node) -> str:
    start, end = _SHAPES.get(node.kind, ("[", "]"))
    return f"{id_}{start}{_quoted(node)}{end}"


def _quoted(node: Node) -> str:
    """A label in quotes; what Mermaid would take for markup is written as an entity code."""
    told = facts(node)
    text = label(node) + (f", {told}" if told else "")
    for sign, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(sign, code)
    return f'"{text}"'
