"""PCIe bridges that peer-to-peer traffic of GPUs and fabric NICs passes, and whether Access Control Services redirect it there."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.snapshot.host import PciFunction
from epctl.core.views import nics, pcie

Place = Literal["switch", "root"]
"""`switch`: on a path that turns round in a PCIe switch, so that redirection takes it out of its way; `root`: on a path that
goes through the root complex anyway, or above the switch where the path turns round."""


class Bridge(Struct, frozen=True):
    """One bridge above a GPU or NIC. `between`: `GPU 0 and mlx5_0`."""

    pci: str
    place: Place
    between: str
    source_validation: Fact[bool]
    request_redirect: Fact[bool]

    @property
    def redirects(self) -> Fact[bool]:
        """Either bit is set; absent when neither is known to be set and one could not be read."""
        bits = (self.source_validation, self.request_redirect)
        if any(bit is True for bit in bits):
            return True
        return next((bit for bit in bits if isinstance(bit, Absent) and bit.absent != "unsupported"), False)

    @property
    def bits(self) -> str:
        """As lspci writes them: SrcValid+ ReqRedir-."""
        pairs = (("SrcValid", self.source_validation), ("ReqRedir", self.request_redirect))
        return " ".join(f"{name}{'?' if isinstance(bit, Absent) else '+' if bit else '-'}" for name, bit in pairs)


def bridges(context: Context) -> tuple[Bridge, ...]:
    """Bridges on the ways from each GPU to its nearest fabric NICs, and to GPUs without NVLink to it. Raises Unreadable."""
    node = context.node
    names = (
        tuple(dict.fromkeys(nic.device.name for nic in nics.fabric(context))) if value_or(node.rdma.devices, ()) else ()
    )
    found: dict[str, tuple[Place, str]] = {}
    for gpu in pcie.gpus(node):
        own = pcie.function(node, gpu.pci)
        for label, other in _peers(node, gpu, names):
            if own is not None and other is not None:
                _walk(found, own, other, f"GPU {gpu.index} and {label}")
    return tuple(_bridge(node, pci, place, between) for pci, (place, between) in found.items())


def _peers(node: Snapshot, gpu: Gpu, names: tuple[str, ...]) -> list[tuple[str, PciFunction | None]]:
    near = pcie.nearest(node, gpu, names)
    devices = near.devices if isinstance(near, pcie.Nearest) else ()
    found = [
        (device.name, pcie.function(node, device.pci))
        for device in value_or(node.rdma.devices, ())
        if device.name in devices
    ]
    by_nvlink = {pair.b for pair in value_or(node.gpu.p2p, ()) if pair.a == gpu.index and pair.nvlink == "ok"}
    found += [
        (f"GPU {other.index}", pcie.function(node, other.pci))
        for other in pcie.gpus(node)
        if other.index > gpu.index and other.index not in by_nvlink
    ]
    return found


def _walk(found: dict[str, tuple[Place, str]], own: PciFunction, other: PciFunction, between: str) -> None:
    shared = 0
    for a, b in zip(own.upstream, other.upstream, strict=False):
        if a != b:
            break
        shared += 1
    place: Place = "switch" if shared else "root"
    for pci in (*own.upstream[shared:], *other.upstream[shared:]):
        if place == "switch" or pci not in found:
            found[pci] = (place, between)
    for pci in own.upstream[:shared]:
        found.setdefault(pci, ("root", between))


def _bridge(node: Snapshot, pci: str, place: Place, between: str) -> Bridge:
    entry = pcie.function(node, pci)
    if entry is None:
        missing = Absent("not_read", f"bridge {pci} is not in the tree")
        return Bridge(pci, place, between, missing, missing)
    return Bridge(pci, place, between, entry.acs_source_validation, entry.acs_request_redirect)
