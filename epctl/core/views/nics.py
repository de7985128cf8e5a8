"""Views of RDMA devices: which ones EP traffic uses, how fast they are, what they are."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import Gid, NetDev, Port, RdmaDevice


class Nic(Struct, frozen=True):
    """One port of one RDMA device."""

    device: RdmaDevice
    port: Port

    @property
    def label(self) -> str:
        """mlx5_0, or mlx5_0/2 for a port other than the first."""
        return self.device.name if self.port.port == 1 else f"{self.device.name}/{self.port.port}"

    @property
    def active(self) -> bool:
        """State ACTIVE."""
        return self.port.state == "ACTIVE"

    @property
    def is_efa(self) -> bool:
        """Driven by AWS's efa module."""
        return self.device.driver == "efa"

    @property
    def is_roce(self) -> bool:
        """RDMA over Ethernet."""
        return self.port.link_layer == "Ethernet"

    @property
    def is_ib(self) -> bool:
        """InfiniBand."""
        return self.port.link_layer == "InfiniBand"


def every_device(node: Snapshot) -> tuple[RdmaDevice, ...]:
    """All RDMA devices, the way to the NVSwitches included; raises Unreadable when /sys/class/infiniband could not be read."""
    return known(node.rdma.devices, "RDMA devices (/sys/class/infiniband)")


def devices(node: Snapshot) -> tuple[RdmaDevice, ...]:
    """RDMA devices that reach a network; raises Unreadable. The functions of the bridge to the NVSwitches do not."""
    return tuple(device for device in every_device(node) if device.manages_nvswitch is not True)


def ports(node: Snapshot) -> tuple[Nic, ...]:
    """Every port of every device; raises Unreadable."""
    return tuple(Nic(device, port) for device in devices(node) for port in known(device.ports, f"{device.name} ports"))


def hca_filter(spec: str, device: str, port: int) -> bool:
    """Does NCCL_IB_HCA=`spec` let this port through? `^` excludes, `=` asks for the exact name, else a prefix; `name:port`
    narrows to a port (NCCL user guide, NCCL_IB_HCA)."""
    exclude = spec.startswith("^")
    spec = spec[1:] if exclude else spec
    exact = spec.startswith("=")
    spec = spec[1:] if exact else spec
    hit = False
    for entry in filter(None, (part.strip() for part in spec.split(","))):
        name, _, wanted = entry.partition(":")
        same = device == name if exact else device.startswith(name)
        hit = hit or (same and (not wanted or wanted == str(port)))
    return hit != exclude


def hca_list(context: Context) -> str:
    """NCCL_IB_HCA, '' when it is not set. Raw tool outputs that somebody sent come without an environment: then all ports
    count."""
    variables = context.node.env.variables
    if context.node.origin.kind == "recorded" and isinstance(variables, Absent) and variables.absent == "not_read":
        return ""
    return context.env.get("NCCL_IB_HCA", "")


def selected(context: Context) -> tuple[Nic, ...]:
    """Ports that NCCL would use: all, or those that NCCL_IB_HCA lets through. Whether they are active is for the caller to look at."""
    spec = hca_list(context)
    every = ports(context.node)
    return tuple(nic for nic in every if hca_filter(spec, nic.device.name, nic.port.port)) if spec else every


def fabric(context: Context) -> tuple[Nic, ...]:
    """Ports that carry EP traffic: those selected by NCCL_IB_HCA when it is set; else active ports at least half as fast as
    the fastest one, and ports of the same kind (driver, card type, board, link layer) that are not active or tell no rate.

    A front-end or storage card (25G … 100G beside 400G) thereby stays out, a degraded fabric card (half rate) stays in. A
    front-end card of nearly the same rate (a 200G BlueField beside 400G InfiniBand) stays out by its link layer, or because it
    has the default route.
    """
    chosen = selected(context)
    if hca_list(context):
        return chosen
    rates = {nic.label: value_or(nominal_gbps(nic, context.node), 0.0) for nic in chosen if nic.active}
    if not any(rates.values()):
        return chosen
    fast = tuple(nic for nic in chosen if rates.get(nic.label, 0.0) * 2 >= max(rates.values()))
    carrying = {nic.label for nic in _back_end(fast, rates, context.node)}
    kinds = {kind(nic) for nic in chosen if nic.label in carrying}
    unsure = {nic.label for nic in chosen if not nic.active or not rates[nic.label]}
    return tuple(nic for nic in chosen if nic.label in carrying or (nic.label in unsure and kind(nic) in kinds))


def _back_end(fast: tuple[Nic, ...], rates: dict[str, float], node: Snapshot) -> tuple[Nic, ...]:
    """Of fast ports those of the link layer with the highest sum of rates, without holders of the default route where that
    leaves any."""
    totals: dict[str, float] = {}
    for nic in fast:
        layer = value_or(nic.port.link_layer, "")
        totals[layer] = totals.get(layer, 0.0) + rates[nic.label]
    layers = {layer for layer, total in totals.items() if not layer or total == max(totals.values())}
    same = tuple(nic for nic in fast if value_or(nic.port.link_layer, "") in layers)
    return tuple(nic for nic in same if not holds_default_route(nic, node)) or same


def kind(nic: Nic) -> tuple[object, ...]:
    """Ports of one kind belong together: a card that is down is missed only where its sisters carry traffic. The board id keeps
    a storage card out that has the chip of the fabric's cards."""
    device = nic.device
    return value_or(device.driver, ""), value_or(device.ca_type, ""), value_or(device.board_id, ""), nic.port.link_layer


def netdevs(nic: Nic, node: Snapshot) -> tuple[NetDev, ...]:
    """Network interfaces of a device that are in this namespace."""
    names = value_or(nic.device.netdevs, ())
    return tuple(entry for entry in value_or(node.rdma.netdevs, ()) if entry.name in names)


def holds_default_route(nic: Nic, node: Snapshot) -> bool:
    """An interface of the adapter has the default route: it is (also) the way to the rest of the world."""
    return any(entry.default_route is True for entry in netdevs(nic, node))


def is_bond(nic: Nic, node: Snapshot) -> bool:
    """Several physical ports behind one RDMA device: by its name, its LAG ports, or an interface of kind bond."""
    lag = value_or(nic.device.num_lag_ports, 1)
    return "bond" in nic.device.name or lag > 1 or any(entry.kind == "bond" for entry in netdevs(nic, node))


def nominal_gbps(nic: Nic, node: Snapshot) -> Fact[float]:
    """Gb/s of the port. The verbs rate of a bond is that of one member; then the interface's speed (all members) counts."""
    rate = nic.port.rate_gbps
    speeds = [speed / 1000 for entry in netdevs(nic, node) if (speed := value_or(entry.speed_mbps, 0)) > 0]
    if is_bond(nic, node) and speeds:
        return max([*speeds, value_or(rate, 0.0)])
    return rate


def gid_kind(gid: str) -> Literal["zero", "link_local", "ipv4", "global"]:
    """What address a GID holds."""
    digits = gid.replace(":", "").lower()
    if not digits.strip("0"):
        return "zero"
    if digits.startswith("fe8"):
        return "link_local"
    if digits.startswith("00000000000000000000ffff"):
        return "ipv4"
    return "global"


def gids(nic: Nic) -> tuple[Gid, ...]:
    """GID table without empty entries; raises Unreadable."""
    return known(nic.port.gids, f"{nic.label} GIDs")


Atomics = Literal["fast", "plain", "none"]

_FAST_FROM = 4131
"""MT4131 is ConnectX-8; higher numbers of this series are newer (NVIDIA's device ids; DeepEP tests for MT4131 alone)."""


def connectx(device: RdmaDevice) -> int | None:
    """Number behind MT of a ConnectX adapter: 4129 ConnectX-7, 4131 ConnectX-8; None for BlueField DPUs and other vendors."""
    kind = value_or(device.ca_type, "")
    digits = kind[2:]
    return int(digits) if kind.startswith("MT") and digits.isascii() and digits.isdigit() and len(digits) <= 6 else None


def atomics(device: RdmaDevice) -> Fact[Atomics]:
    """RDMA atomics of one device, from its atomic capability and its type; absent for an mlx5 adapter of unknown type, which may
    be either. `fast` is DeepEP's word for ConnectX-8, whatever PCI_ATOMIC_MODE is: that setting makes atomics on GPU memory
    faster on any generation and is told beside (Capabilities.pci_atomic_mode, check ATOMIC-PCI-MODE)."""
    if device.atomic_cap == "ATOMIC_NONE":
        return "none"
    if isinstance(device.ca_type, Absent) and value_or(device.driver, "mlx5_core") == "mlx5_core":
        return device.ca_type
    number = connectx(device)
    if number is not None and number >= _FAST_FROM and number < 41600:
        return "fast"
    if isinstance(device.atomic_cap, str):
        return "plain"
    return "plain" if number is not None else device.atomic_cap
