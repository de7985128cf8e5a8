"""The graph in Graphviz' language."""

from __future__ import annotations

from epctl.topo.graph import Graph, Node
from epctl.topo.tree import Tree
from epctl.topo.words import drawn, drawn_edges, drawn_parent, facts, label, link

_SHAPES = {
    "host": "folder",
    "gpu": "box3d",
    "nic": "component",
    "switch": "hexagon",
    "nvswitch": "hexagon",
    "rail": "plaintext",
}


def dot(graph: Graph) -> str:
    """Machines as clusters; the PCIe tree as solid lines, NVLinks bold, the network dashed."""
    tree = Tree(graph)
    nodes = drawn(tree)
    shown = {node.id for node in nodes}
    lines = [
        "graph topology {",
        '  graph [rankdir=TB, fontname="sans-serif"];',
        '  node [shape=box, fontname="sans-serif"];',
    ]
    for host in [node for node in nodes if node.kind == "host"]:
        lines.append(f"  subgraph {_quoted('cluster ' + host.id)} {{")
        lines.append(f"    label={_quoted(label(host))};")
        lines += [f"    {_node(node)}" for node in nodes if tree.host(node.id) == host.id]
        lines.append("  }")
    lines += [f"  {_node(node)}" for node in nodes if not tree.host(node.id)]
    for node in nodes:
        parent = drawn_parent(tree, node)
        if parent in shown and node.kind not in ("nvlink_domain", "nvswitch"):
            edge = tree.uplink.get(node.id)
            told = f" [label={_quoted(link(edge))}]" if edge is not None else ""
            lines.append(f"  {_quoted(parent)} -- {_quoted(node.id)}{told};")
    styles = {"nvlink": "bold", "network": "dashed", "rail": "dotted", "member": "dotted", "c2c": "bold"}
    for a, b, edge in drawn_edges(tree, shown):
        lines.append(f"  {_quoted(a)} -- {_quoted(b)} [style={styles[edge.kind]}, label={_quoted(link(edge))}];")
    return "\n".join([*lines, "}"]) + "\n"


def _node(node: Node) -> str:
    told = facts(node)
    text = label(node) + (f"\n{told}" if told else "")
    return f"{_quoted(node.id)} [label={_quoted(text)}, shape={_SHAPES.get(node.kind, 'box')}];"


def _quoted(text: str) -> str:
    """A string of that language: quotes and backslashes escaped, line ends as \\n."""
    lines = [line.replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'
