"""The graph as one SVG picture that needs nothing else: no script, no font, no network. It follows the reader's light or dark scheme;
every node and link tells its facts as a title (shown on hover)."""

from __future__ import annotations

from xml.sax.saxutils import escape

from epctl.core.errors import EpctlError
from epctl.core.render.safe import plain
from epctl.topo.graph import Graph, Node
from epctl.topo.svg_layout import HEIGHT, WIDTH, Placed, layout
from epctl.topo.tree import Tree
from epctl.topo.words import KINDS, drawn, drawn_edges, drawn_parent, facts, label, link

MOST_DRAWN = 3000
"""More nodes make a picture that nobody can read."""
_STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 11px; background: #fff; color: #1a1a1a; }
text { fill: currentColor; } .small { font-size: 9px; opacity: .75; } .title { font-size: 14px; font-weight: 600; }
rect { fill: #f4f4f2; stroke: #8a8a86; } .gpu rect { fill: #dcefd2; stroke: #4c8a2c; } .nic rect { fill: #d8e6f7; stroke: #2f6db3; }
.nvswitch rect, .nvlink_domain rect { fill: #e9f5df; stroke: #76b041; } .switch rect { fill: #f7ead3; stroke: #b3802f; }
.host rect { fill: #ececea; } .out rect { stroke-dasharray: 4 3; opacity: .7; }
line, path { stroke: #8a8a86; fill: none; } .nvlink { stroke: #5a9a30; stroke-width: 1.6; } .network { stroke: #b3802f; }
.rail, .member { stroke-dasharray: 2 3; } .c2c { stroke: #8a4fb0; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
svg { background: #161616; color: #ececec; } rect { fill: #2a2a29; stroke: #7d7d79; } .gpu rect { fill: #24401a; }
.nic rect { fill: #1b3350; }
.nvswitch rect, .nvlink_domain rect { fill: #22361a; } .switch rect { fill: #453418; } .host rect { fill: #333; } }
""".strip()


def svg(graph: Graph) -> str:
    """A picture of the graph. Raises EpctlError for graphs that are too large to be looked at."""
    tree = Tree(graph)
    nodes = drawn(tree)
    if len(nodes) > MOST_DRAWN:
        why = f"{len(nodes)} nodes; a picture holds {MOST_DRAWN}"
        raise EpctlError("the graph is too large for a picture", why, "give fewer sources, or --format json or dot")
    parents = {node.id: parent for node in nodes if (parent := drawn_parent(tree, node))}
    placed = layout(nodes, parents, lambda node: _width(node))
    parts = [
        _line(tree, placed, node, parents) for node in nodes if node.id in parents and node.kind != "nvlink_domain"
    ]
    shown = {node.id for node in nodes}
    for a, b, edge in drawn_edges(tree, shown):
        title = f"{label(tree.nodes[a])} - {label(tree.nodes[b])}: {link(edge)} ({edge.source})"
        parts.append(_curve(placed.at[a], placed.at[b], edge.kind, title))
    parts += [_box(node, placed) for node in nodes]
    size = f"{placed.width} {placed.height}"
    box = f'viewBox="0 0 {size}" width="{placed.width}" height="{placed.height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">'
    names = ", ".join(host.label for host in tree.hosts()[:4]) or "network"
    return (
        "\n".join(
            [
                head,
                f"<title>{escape(plain('Topology of ' + names))}</title>",
                f"<style>{_STYLE}</style>",
                *parts,
                "</svg>",
            ]
        )
        + "\n"
    )


def _width(node: Node) -> int:
    longest = max(len(_first(node)), int(len(_second(node)) * 0.8))
    return max(WIDTH, 7 * longest + 14)


def _first(node: Node) -> str:
    return label(node)[:40]


def _second(node: Node) -> str:
    return facts(node)[:44]


def _box(node: Node, placed: Placed) -> str:
    x, y = placed.at[node.id]
    width = _width(node)
    left, top = x - width / 2, y - HEIGHT / 2
    attrs = "; ".join(f"{key} {value}" for key, value in node.attrs.items())
    title = (
        f"{KINDS[node.kind]} {label(node)}"
        + (f" ({node.source})" if node.source else "")
        + (f": {attrs}" if attrs else "")
    )
    out = " out" if node.kind == "nic" and node.attrs.get("fabric") is False else ""
    second = _second(node)
    texts = [f'<text x="{x:g}" y="{y - 2 if second else y + 4:g}" text-anchor="middle">{escape(_first(node))}</text>']
    if second:
        texts.append(f'<text class="small" x="{x:g}" y="{y + 11:g}" text-anchor="middle">{escape(second)}</text>')
    rect = f'<rect x="{left:g}" y="{top:g}" width="{width}" height="{HEIGHT}" rx="4"/>'
    return f'<g class="{node.kind}{out}" tabindex="0"><title>{escape(plain(title))}</title>{rect}{"".join(texts)}</g>'


def _line(tree: Tree, placed: Placed, node: Node, parents: dict[str, str]) -> str:
    (x, y), (up_x, up_y) = placed.at[node.id], placed.at[parents[node.id]]
    edge = tree.uplink.get(node.id)
    told = f"{label(node)}: {link(edge)} ({edge.source})" if edge is not None else label(node)
    middle = (y + up_y) / 2
    way = f"M{up_x:g} {up_y + HEIGHT / 2:g}V{middle:g}H{x:g}V{y - HEIGHT / 2:g}"
    return f'<path class="tree" d="{way}"><title>{escape(plain(told))}</title></path>'


def _curve(a: tuple[float, float], b: tuple[float, float], kind: str, title: str) -> str:
    (x, y), (to_x, to_y) = a, b
    bend = (y + to_y) / 2 + (40 if abs(y - to_y) < HEIGHT else 0)
    way = f"M{x:g} {y:g}C{x:g} {bend:g} {to_x:g} {bend:g} {to_x:g} {to_y:g}"
    return f'<path class="{kind}" d="{way}"><title>{escape(plain(title))}</title></path>'
