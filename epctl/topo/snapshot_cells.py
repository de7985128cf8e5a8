"""What `nvidia-smi topo -m` says of NICs, where a snapshot has no PCI tree: a folder of texts that somebody sent."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.fact import Absent, value_or
from epctl.core.snapshot import Snapshot
from epctl.topo.graph import Distance, Node
from epctl.topo.tree import LEVELS

SOURCE = "nvidia-smi topo -m"
_NEAR = ("PIX", "PXB")


def nics_of(node: Snapshot, host: str) -> list[Node]:
    """NICs that the matrix names, where no RDMA device could be read. Where some share a PCIe switch with a GPU, the others are taken for
    front-end cards."""
    if not isinstance(node.rdma.devices, Absent):
        return []
    paths: dict[str, set[str]] = {}
    for cell in value_or(node.gpu.topology, ()):
        if cell.path in LEVELS and not cell.other.startswith("GPU"):
            paths.setdefault(cell.other, set()).add(cell.path)
    near = {name for name, words in paths.items() if words & set(_NEAR)}
    return [Node(f"{host}/{name}", "nic", name, host, SOURCE, {"fabric": name in (near or paths)}) for name in paths]


def distances_of(node: Snapshot, host: str) -> Iterator[Distance]:
    """The words of the matrix, where no PCI function could be read."""
    if not isinstance(node.pcie.functions, Absent):
        return
    seen: set[frozenset[str]] = set()
    for cell in value_or(node.gpu.topology, ()):
        one = f"{host}/gpu{cell.gpu}"
        other = f"{host}/gpu{cell.other[3:]}" if cell.other.startswith("GPU") else f"{host}/{cell.other}"
        if cell.path in LEVELS and frozenset((one, other)) not in seen:
            seen.add(frozenset((one, other)))
            yield Distance(one, other, cell.path, SOURCE)
