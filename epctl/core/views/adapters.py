"""Views across the adapters of a node: sister ports, ports that nobody wired, what a family of adapters can do."""

from __future__ import annotations

from epctl.core.context import Context
from epctl.core.fact import value_or
from epctl.core.views import nics
from epctl.core.views.nics import Nic

FAMILY_GBPS: dict[int, float] = {4115: 100, 4119: 100, 4121: 100, 4123: 200, 4129: 400, 4131: 800}
"""Number behind MT → fastest port of the family, Gb/s: ConnectX-4, -5, -5 Ex, -6, -7, -8 (NVIDIA's adapter product briefs)."""


def family_gbps(nic: Nic) -> float | None:
    """Fastest port that the family of this adapter has, Gb/s; None for families that are not in the table."""
    number = nics.connectx(nic.device)
    return None if number is None else FAMILY_GBPS.get(number)


def card(nic: Nic) -> str:
    """What the ports of one card share: the PCI slot, else the system image GUID, else the device."""
    if isinstance(nic.device.pci, str):
        return nic.device.pci.rpartition(".")[0]
    return value_or(nic.device.sys_image_guid, nic.device.name)


def position(nic: Nic) -> tuple[str, int]:
    """Which of the ports of its card it is."""
    return value_or(nic.device.pci, "").rpartition(".")[2], nic.port.port


def not_wired(nic: Nic, every: tuple[Nic, ...]) -> bool:
    """An inactive port that looks left free on purpose: another port of its card is active, and the port at this place is
    active on no card of the kind. Virtual functions wait for their guests."""
    if nic.active:
        return False
    same = [other for other in every if nics.kind(other) == nics.kind(nic)]
    if isinstance(nic.device.physfn, str):
        return any(other.device.pci == nic.device.physfn for other in every)
    beside = any(other.active and card(other) == card(nic) for other in same)
    return beside and not any(other.active and position(other) == position(nic) for other in same)


def sisters(context: Context) -> tuple[Nic, ...]:
    """Active ports of the fabric, and those of the same board that fell below half of its rate. Front-end ports are left out
    where there are others. Raises Unreadable."""
    fabric = [nic for nic in nics.fabric(context) if nic.active]
    kinds = {nics.kind(nic) for nic in fabric if isinstance(nic.device.board_id, str)}
    labels = {nic.label for nic in fabric}
    slow = [nic for nic in nics.selected(context) if nic.active and nic.label not in labels and nics.kind(nic) in kinds]
    every = (*fabric, *slow)
    rest = tuple(nic for nic in every if not nics.holds_default_route(nic, context.node))
    return rest or every
