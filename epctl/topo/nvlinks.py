"""NVLinks as edges: to switches, to a domain whose switches nobody named, or straight from GPU to GPU."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from epctl.topo.graph import Edge, Node
from epctl.topo.rates import MOST_NVLINKS


def rate(total: float | None) -> float | UnsetType:
    """A known rate, rounded; unset where none is known."""
    return UNSET if total is None else round(total, 3)


def domain(host: str, source: str) -> Node:
    """The NVLink domain of one machine."""
    return Node(f"{host}/nvlink", "nvlink_domain", "NVLink domain", host, source)


def goes_through_switch(counts: Mapping[tuple[int, int], int], num_gpus: int) -> bool:
    """Do bonded links between every pair (`NV18` of `nvidia-smi topo -m`) have to pass a switch? Yes when the links to all peers
    together are more than any GPU has. Two GPUs alone leave it open: then False."""
    if num_gpus < 3 or len(counts) < num_gpus * (num_gpus - 1) // 2:
        return False
    sums = [
        sum(number for pair, number in counts.items() if gpu in pair) for gpu in {g for pair in counts for g in pair}
    ]
    return len(set(counts.values())) == 1 and min(sums) > MOST_NVLINKS


def from_pairs(
    host: str, counts: Mapping[tuple[int, int], int], num_gpus: int, source: str, each_gbs: float | None = None
) -> tuple[list[Node], list[Edge]]:
    """Nodes and edges for `counts`: pair of GPU indices → bonded links between them. `each_gbs`: rate of one link, one direction."""
    if not counts:
        return [], []
    if goes_through_switch(counts, num_gpus):
        links = next(iter(counts.values()))
        edges = [_edge(f"{host}/gpu{i}", f"{host}/nvlink", links, source, each_gbs) for i in range(num_gpus)]
        return [domain(host, source)], edges
    edges = [_edge(f"{host}/gpu{a}", f"{host}/gpu{b}", links, source, each_gbs) for (a, b), links in counts.items()]
    return [], edges


def _edge(a: str, b: str, links: int, source: str, each_gbs: float | None) -> Edge:
    return Edge(a, b, "nvlink", source, rate(None if each_gbs is None else each_gbs * links), links)
