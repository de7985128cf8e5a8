"""NVLinks of a snapshot: nodes, edges, and what each source says about them."""

from __future__ import annotations

import re

from msgspec import UnsetType

from epctl.core.fact import Absent, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu, NvLink
from epctl.core.views import fabric
from epctl.topo.graph import Claim, Edge, Node
from epctl.topo.nvlinks import domain, from_pairs, goes_through_switch, rate

_CELL = re.compile(r"NV(\d{1,3})", re.ASCII)
_GPU = re.compile(r"GPU(\d{1,4})", re.ASCII)


def links_of(node: Snapshot, host: str, there: set[str]) -> tuple[list[Node], list[Edge]]:
    """Nodes and edges of the NVLinks. `there`: ids of nodes that exist already (NVSwitches of the PCI tree). From NVML where it names
    the links, else from the cells of `nvidia-smi topo -m`."""
    gpus = value_or(node.gpu.gpus, ())
    if not any(value_or(gpu.links, ()) for gpu in gpus):
        return from_pairs(host, pair_counts(node), len(gpus), "nvidia-smi topo -m")
    home = _home(node, host)
    index_of = {gpu.pci: gpu.index for gpu in gpus if isinstance(gpu.pci, str)}
    edges: dict[tuple[str, str], Edge] = {}
    for gpu in gpus:
        for target, links in _by_target(node, gpu, host, there, index_of).items():
            total, number = _sum(links)
            _put(edges, Edge(f"{host}/gpu{gpu.index}", target or home.id, "nvlink", "NVML", total, number))
    if not _switched(node):  # ends that NVML does not name
        for edge in from_pairs(host, pair_counts(node), len(gpus), "nvidia-smi topo -m", _each_gbs(gpus))[1]:
            _put(edges, edge)
    nodes = [home] if any(edge.b == home.id or edge.b in there for edge in edges.values()) else []
    if nodes and home.parent == "" and f"{host}/nvlink" in there:
        edges.update(_members(host, there, home.id))
    return nodes, list(edges.values())


def _members(host: str, there: set[str], home: str) -> dict[tuple[str, str], Edge]:
    own = f"{host}/nvlink"
    return {(own, home): Edge(own, home, "member", "NVML")} if own in there else {}


def _home(node: Snapshot, host: str) -> Node:
    """The domain that links to unnamed switches belong to: the machine's, or that of the rack, which machines share."""
    if not fabric.is_mnnvl(node):
        return domain(host, "NVML")
    gpu = next(gpu for gpu in value_or(node.gpu.gpus, ()) if fabric.has_cluster(gpu))
    cluster = value_or(gpu.fabric_cluster_uuid, "").replace("-", "")
    clique = value_or(gpu.fabric_clique, 0)
    attrs: dict[str, str | int | float | bool] = {"cluster_uuid": cluster, "clique": clique, "rack_scale": True}
    return Node(
        f"nvlink/{cluster}.{clique}", "nvlink_domain", f"NVLink domain {cluster[:8]} clique {clique}", "", "NVML", attrs
    )


def _by_target(
    node: Snapshot, gpu: Gpu, host: str, there: set[str], index_of: dict[str, int]
) -> dict[str, list[NvLink]]:
    """Active links by the id of the other end; '' for a switch that nobody names."""
    found: dict[str, list[NvLink]] = {}
    for link in value_or(gpu.links, ()):
        if link.active is not True:
            continue
        remote = value_or(link.remote_pci, "")
        if remote in index_of and index_of[remote] != gpu.index:
            target = f"{host}/gpu{index_of[remote]}"
        elif remote and f"{host}/{remote}" in there:
            target = f"{host}/{remote}"
        elif link.remote_type == "npu":
            continue
        else:
            target = ""
        found.setdefault(target, []).append(link)
    if "" in found and not _switched(node):
        return {target: links for target, links in found.items() if target}
    return found


def _switched(node: Snapshot) -> bool:
    """Links whose other end is not named go to a switch: NVML says so, or the pairs' counts leave no other way."""
    gpus = value_or(node.gpu.gpus, ())
    kinds = {link.remote_type for gpu in gpus for link in value_or(gpu.links, ()) if link.active is True}
    return "nvswitch" in kinds or goes_through_switch(pair_counts(node), len(gpus)) or len(gpus) < 2


def _each_gbs(gpus: tuple[Gpu, ...]) -> float | None:
    """Rate of one link, where all links that are told have the same."""
    speeds = {link.speed_gbs for gpu in gpus for link in value_or(gpu.links, ()) if isinstance(link.speed_gbs, float)}
    return speeds.pop() if len(speeds) == 1 else None


def _sum(links: list[NvLink]) -> tuple[float | UnsetType, int]:
    speeds = [value_or(link.speed_gbs, 0.0) for link in links]
    return rate(sum(speeds) if all(speeds) else None), len(links)


def _put(edges: dict[tuple[str, str], Edge], edge: Edge) -> None:
    """Links between two GPUs are told by both; the first one's word stands."""
    if (edge.b, edge.a) not in edges and (edge.a, edge.b) not in edges:
        edges[edge.a, edge.b] = edge


def pair_counts(node: Snapshot) -> dict[tuple[int, int], int]:
    """Pair of GPU indices → bonded links, out of `nvidia-smi topo -m`."""
    counts: dict[tuple[int, int], int] = {}
    for cell in value_or(node.gpu.topology, ()):
        other, links = _GPU.fullmatch(cell.other), _CELL.fullmatch(cell.path)
        if other is not None and links is not None and cell.gpu < int(other[1]):
            counts[cell.gpu, int(other[1])] = int(links[1])
    return counts


def claims_of_links(node: Snapshot, host: str) -> list[Claim]:
    """Number of links by NVML and by `nvidia-smi topo -m`; and whether pairs reach each other over NVLink."""
    gpus = value_or(node.gpu.gpus, ())
    counts = pair_counts(node)
    found = []
    for gpu in gpus:
        if not isinstance(gpu.links, Absent):
            active = sum(link.active is True for link in gpu.links)
            found.append(Claim(host, f"GPU {gpu.index}", "active NVLinks", str(active), "NVML"))
        mine = [links for pair, links in counts.items() if gpu.index in pair]
        if mine and len(gpus) > 1:
            bonded = max(mine) if len(mine) == len(gpus) - 1 and len(set(mine)) == 1 and _switched(node) else sum(mine)
            found.append(Claim(host, f"GPU {gpu.index}", "active NVLinks", str(bonded), "nvidia-smi topo -m"))
    cells = {(cell.gpu, cell.other): cell.path for cell in value_or(node.gpu.topology, ())}
    for pair in value_or(node.gpu.p2p, ()):
        cell = cells.get((pair.a, f"GPU{pair.b}"), "")
        if isinstance(pair.nvlink, str) and cell and pair.a < pair.b:
            subject = f"GPU {pair.a} - GPU {pair.b}"
            found.append(Claim(host, subject, "NVLink P2P", "yes" if pair.nvlink == "ok" else "no", "NVML"))
            found.append(
                Claim(host, subject, "NVLink P2P", "yes" if cell.startswith("NV") else "no", "nvidia-smi topo -m")
            )
    return found
