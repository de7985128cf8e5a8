"""EP domains: for a number of ranks, which scale-out x scale-up layout a library will see, and why.

Scale-up is what reaches each other by load and store over NVLink. Libraries want it in blocks of consecutive ranks, all of one size; so
of the divisors of the EP size the largest counts for which every block is one NVLink domain, each GPU with each other.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.topo.graph import Node
from epctl.topo.tree import Tree

MOST_RANKS = 4096
SHOWN = 16
"""Layouts that are told; of more, the largest."""


class Layout(Struct, frozen=True):
    """One way to split the ranks: `scaleout` blocks of `scaleup` ranks. `why`: of the first block that does not hold, or what it takes."""

    scaleout: int
    scaleup: int
    possible: bool
    why: str


class Domains(Struct, frozen=True):
    """The answer for one EP size. `verdict` in one sentence; `layouts` from the largest scale-up size down."""

    ep: int
    scaleout: int
    scaleup: int
    possible: bool
    mode: Literal["scale-up", "hybrid", "scale-out", "none"]
    verdict: str
    layouts: tuple[Layout, ...]
    machines: int
    """Machines that the ranks fill."""
    assumed_machines: int
    """Of them, those that the sources do not show: taken to be like the ones they do."""


class _Ranks:
    """Ranks on GPUs, machine by machine; more ranks than GPUs go on machines like those that are known."""

    def __init__(self, tree: Tree, ep: int) -> None:
        self.tree = tree
        self.reach = _Reach(tree)
        hosts = [gpus for host in tree.hosts() if (gpus := _gpus(tree, host.id))]
        self.gpus = [gpu for gpus in hosts for gpu in gpus]
        self.per_host = {len(gpus) for gpus in hosts}
        self.num_hosts = len(hosts)
        self.ep = ep

    def place(self, rank: int) -> tuple[int, Node]:
        """(round of the known machines, GPU) of a rank."""
        return divmod(rank, len(self.gpus))[0], self.gpus[rank % len(self.gpus)]

    def parted(self, one: int, other: int) -> str:
        """Why two ranks share no NVLink; '' when they do."""
        round_a, a = self.place(one)
        round_b, b = self.place(other)
        if round_a != round_b:
            return f"rank {one} and rank {other} are on different machines" + self._rack()
        return self.reach.parted(a, b)

    def _rack(self) -> str:
        rack = any(node.attrs.get("rack_scale") is True for node in self.tree.of_kind("nvlink_domain"))
        return ", and whether both are in one NVLink domain is told by the snapshots of its other trays" if rack else ""

    def block(self, size: int) -> str:
        """Why blocks of `size` ranks do not hold; '' when all do. Rounds repeat: looking at a few is enough."""
        seen: set[tuple[str, ...]] = set()
        for start in range(0, self.ep, size):
            key = tuple(
                f"{self.place(rank)[0] - self.place(start)[0]}:{self.place(rank)[1].id}"
                for rank in range(start, start + size)
            )
            if key in seen:
                continue
            seen.add(key)
            for one in range(start, start + size):
                for other in range(one + 1, start + size):
                    if why := self.parted(one, other):
                        return why
        return ""


class _Reach:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.home: dict[str, set[str]] = {}
        self.direct: set[frozenset[str]] = set()
        for edge in tree.graph.edges:
            if edge.kind != "nvlink":
                continue
            kinds = {tree.nodes[end].kind for end in (edge.a, edge.b)}
            if kinds == {"gpu"}:
                self.direct.add(frozenset((edge.a, edge.b)))
            elif "gpu" in kinds:
                gpu, other = (edge.a, edge.b) if tree.nodes[edge.a].kind == "gpu" else (edge.b, edge.a)
                node = tree.nodes[other]
                self.home.setdefault(gpu, set()).add(node.parent if node.kind == "nvswitch" else other)

    def parted(self, a: Node, b: Node) -> str:
        one, other = self._told(a), self._told(b)
        refused = str(b.attrs.get("index")) in _list(a) or str(a.attrs.get("index")) in _list(b)
        same_host = self.tree.host(a.id) == self.tree.host(b.id)
        if refused and same_host:
            return f"{one} and {other} have no NVLink P2P by NVML"
        if frozenset((a.id, b.id)) in self.direct or self.home.get(a.id, set()) & self.home.get(b.id, set()):
            return ""
        for gpu, told in ((a, one), (b, other)):
            if gpu.attrs.get("nvlinks_not_told") is True:
                return f"no source tells the NVLinks of {told}"
        return f"{one} and {other} share no NVLink"

    def _told(self, gpu: Node) -> str:
        host = self.tree.host(gpu.id)
        return f"{host} {gpu.label}" if len(self.tree.hosts()) > 1 else gpu.label


def _list(gpu: Node) -> list[str]:
    return str(gpu.attrs.get("no_nvlink_p2p_to", "")).split(",")


def _gpus(tree: Tree, host: str) -> list[Node]:
    return sorted(tree.of_kind("gpu", host), key=lambda node: int(node.attrs.get("index", 0)))


def domains_of(tree: Tree, ep: int) -> Domains:
    """The layouts for `ep` ranks, one a GPU. Raises EpctlError for sizes out of bounds and for a graph without a GPU."""
    if not 1 <= ep <= MOST_RANKS:
        raise EpctlError(
            f"--ep {ep} is out of bounds",
            f"1 to {MOST_RANKS} ranks are looked at",
            "give the number of ranks of the EP group",
        )
    ranks = _Ranks(tree, ep)
    if not ranks.gpus:
        raise EpctlError(
            "there is no GPU for --ep", "no source shows a GPU", "give a snapshot or a topology file of a GPU node"
        )
    has_network = _has_network(tree)
    sizes = sorted((size for size in range(1, ep + 1) if ep % size == 0), reverse=True)
    layouts = [_layout(ranks, ep // size, size, has_network) for size in sizes]
    chosen = next((layout for layout in layouts if layout.possible), layouts[-1])
    machines, assumed = _machines(ranks, ep)
    mode: Literal["scale-up", "hybrid", "scale-out", "none"] = "none"
    if chosen.possible:
        mode = "scale-up" if chosen.scaleout == 1 else "scale-out" if chosen.scaleup == 1 else "hybrid"
    shown = tuple(layout for layout in layouts if layout.scaleup >= chosen.scaleup or layout.possible)[:SHOWN]
    return Domains(
        ep,
        chosen.scaleout,
        chosen.scaleup,
        chosen.possible,
        mode,
        _verdict(chosen, layouts, mode),
        shown,
        machines,
        assumed,
    )


def _layout(ranks: _Ranks, scaleout: int, scaleup: int, has_network: bool) -> Layout:
    why = ranks.block(scaleup)
    if why:
        return Layout(scaleout, scaleup, False, why)
    if scaleout > 1 and not has_network:
        return Layout(
            scaleout,
            scaleup,
            False,
            "blocks meet over the network, and no source shows an RDMA adapter that carries EP traffic",
        )
    told = "every GPU of a block reaches every other over NVLink" if scaleup > 1 else "each GPU for itself"
    return Layout(scaleout, scaleup, True, told)


def _has_network(tree: Tree) -> bool:
    return any(node.attrs.get("fabric") is True for node in tree.of_kind("nic"))


def _machines(ranks: _Ranks, ep: int) -> tuple[int, int]:
    full, rest = divmod(ep, len(ranks.gpus))
    machines = full * ranks.num_hosts
    if rest:
        machines += len({ranks.tree.host(gpu.id) for gpu in ranks.gpus[:rest]})
    known = min(machines, ranks.num_hosts)
    return machines, machines - known


def _verdict(chosen: Layout, layouts: list[Layout], mode: str) -> str:
    if mode == "none":
        return f"EP is not possible: {chosen.why}"
    size = f"{chosen.scaleout} x {chosen.scaleup}"
    how = {
        "scale-up": "all of it over NVLink (direct mode)",
        "hybrid": "NVLink inside a block, RDMA between blocks (hybrid or direct mode)",
        "scale-out": "all of it over RDMA (direct mode)",
    }[mode]
    larger = [layout for layout in layouts if layout.scaleup > chosen.scaleup]
    if not larger:
        return f"scale-out x scale-up = {size}: {how}"
    last = larger[-1]
    return f"scale-out x scale-up = {size}: {how}; {last.scaleout} x {last.scaleup} is not possible because {last.why}"
