"""Distance between PCI functions, and the NIC that is nearest to each GPU."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.snapshot.host import PciFunction

PathType = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
ORDER: dict[str, int] = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
"""Nearest first; the words of `nvidia-smi topo -m`."""


class Nearest(Struct, frozen=True):
    """The RDMA devices that share the best path with a GPU."""

    gpu: int
    path: PathType
    devices: tuple[str, ...]
    origin: str


def distance(one: PciFunction, other: PciFunction) -> PathType:
    """Path type between two functions (definitions of `nvidia-smi topo -m`'s legend): PIX at most one bridge in common ground,
    PXB several bridges below one root port, PHB one host bridge, NODE one NUMA node, SYS across sockets."""
    shared = 0
    for a, b in zip(one.upstream, other.upstream, strict=False):
        if a != b:
            break
        shared += 1
    if shared:
        apart = max(len(one.upstream), len(other.upstream)) - shared
        return "PIX" if apart <= 1 else "PXB"
    if one.root and one.root == other.root:
        return "PHB"
    first, second = value_or(one.numa_node, -1), value_or(other.numa_node, -1)
    return "NODE" if first == second and first >= 0 else "SYS"


def function(node: Snapshot, pci: Fact[str]) -> PciFunction | None:
    """The function at an address; None when the tree does not hold it."""
    return next((entry for entry in value_or(node.pcie.functions, ()) if entry.pci == pci), None)


def given_away(entry: PciFunction) -> bool:
    """The function is handed to a virtual machine: vfio-pci, or a vendor's variant (nvgrace-gpu-vfio-pci), drives it."""
    return "vfio" in value_or(entry.driver, "")


def nearest(node: Snapshot, gpu: Gpu, wanted: tuple[str, ...] | None = None) -> Fact[Nearest]:
    """RDMA devices nearest to `gpu`, all ties, among `wanted` (default: all). From sysfs, else from `nvidia-smi topo -m`."""
    names = wanted if wanted is not None else tuple(entry.name for entry in value_or(node.rdma.devices, ()))
    if not names:
        return Absent("not_found", "no RDMA device")
    paths = _from_sysfs(node, gpu, names)
    origin = "sysfs"
    if not paths:
        paths = {
            cell.other: cell.path
            for cell in value_or(node.gpu.topology, ())
            if cell.gpu == gpu.index and cell.other in names and cell.path in ORDER
        }
        origin = "nvidia-smi topo -m"
    if not paths:
        return Absent("not_found", f"no path between GPU {gpu.index} and an RDMA device is known")
    best = min(paths.values(), key=ORDER.__getitem__)
    return Nearest(gpu.index, best, tuple(name for name, path in paths.items() if path == best), origin)  # type: ignore[arg-type]


def _from_sysfs(node: Snapshot, gpu: Gpu, names: tuple[str, ...]) -> dict[str, str]:
    own = function(node, gpu.pci)
    if own is None or not own.root:  # its place in the tree is not known
        return {}
    found: dict[str, str] = {}
    for device in value_or(node.rdma.devices, ()):
        other = function(node, device.pci)
        if device.name in names and other is not None and other.root:
            found[device.name] = distance(own, other)
    return found


def gpus(node: Snapshot) -> tuple[Gpu, ...]:
    """The GPUs; raises Unreadable when NVML could not list them."""
    return known(node.gpu.gpus, "GPUs (NVML)")
