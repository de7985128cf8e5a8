"""Network interfaces of this namespace: sysfs for what they are, `ip` (else /proc/net) for addresses and routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from epctl.core.fact import NOT_READ, Absent, Fact
from epctl.core.snapshot.rdma import NetDev
from epctl.probes import net_addresses, sysfs
from epctl.probes.net_addresses import Addresses
from epctl.probes.source import Source, text

ROOT = "/sys/class/net"
_IFF_UP = 0x1
_UNKNOWN_SPEEDS = (0, 0xFFFFFFFF, 0xFFFF)
"""What drivers print instead of -1 where the link has no speed."""
MAX_INTERFACES = 4096

Netdevs = tuple[Fact[tuple[NetDev, ...]], tuple[str, ...]]
"""The interfaces, and notes."""


class _Link(Struct, frozen=True):
    """What `ip -j addr` says of an interface beside its addresses."""

    up: Fact[bool] = NOT_READ
    mtu: Fact[int] = NOT_READ
    kind: Fact[str] = NOT_READ


def netdevs(source: Source) -> Netdevs:
    """The interfaces by name. Without /sys/class/net the names are those that `ip` or /proc/net/dev tell."""
    listing = net_addresses.ip_json(source, "addr")
    routes = net_addresses.ip_json(source, "route")
    found = net_addresses.addresses(source, listing)
    gateways = net_addresses.default_interfaces(source, routes)
    shown = sysfs.names(source, ROOT)
    links = _links(listing)
    if isinstance(shown, Absent):
        names = tuple(links) or _from_proc(source)
        if not names:
            return shown, ()
        return tuple(_plain(name, links.get(name, _Link()), found, gateways, shown) for name in names), ()
    names = tuple(name for name in shown[:MAX_INTERFACES] if _is_interface(source, name))
    devices = tuple(_netdev(source, name, found, gateways) for name in names)
    return devices, tuple(_disagreements(devices, links))


def _is_interface(source: Source, name: str) -> bool:
    """False for the control files that modules put beside the interfaces (bonding_masters)."""
    return (
        name == "lo"
        or isinstance(source.read(f"{ROOT}/{name}/ifindex"), bytes)
        or isinstance(source.read(f"{ROOT}/{name}/mtu"), bytes)
    )


def _netdev(source: Source, name: str, found: Addresses | Absent, gateways: Fact[frozenset[str]]) -> NetDev:
    folder = f"{ROOT}/{name}"
    members = _bond_members(source, folder)
    device = source.target(f"{folder}/device")
    return NetDev(
        name=name,
        up=_is_up(source, folder),
        mtu=sysfs.integer(source, f"{folder}/mtu"),
        speed_mbps=_speed(source, folder),
        kind="bond" if members is not None else _kind(device),
        pci=_pci(device, folder),
        addresses=_of(name, found),
        default_route=name in gateways if isinstance(gateways, frozenset) else gateways,
        bond_members=() if members is None else members,
    )


def _of(name: str, found: Addresses | Absent) -> Fact[tuple[str, ...]]:
    return found if isinstance(found, Absent) else found.get(name, ())


def _is_up(source: Source, folder: str) -> Fact[bool]:
    """operstate; the loopback device and some drivers answer `unknown`, then the flag that an administrator sets counts."""
    state = sysfs.word(source, f"{folder}/operstate")
    if isinstance(state, str) and state != "unknown":
        return state == "up"
    flags = sysfs.integer(source, f"{folder}/flags")
    if isinstance(flags, int):
        return bool(flags & _IFF_UP)
    return state if isinstance(state, Absent) else flags


def _speed(source: Source, folder: str) -> Fact[int]:
    found = sysfs.integer(source, f"{folder}/speed")
    if isinstance(found, int):
        return Absent("unsupported", "the link has no speed") if found < 0 or found in _UNKNOWN_SPEEDS else found
    # The kernel answers EINVAL while the link is down and for interfaces without one.
    return (
        Absent("unsupported", "the link tells no speed (it is down or virtual)") if found.absent == "failed" else found
    )


def _bond_members(source: Source, folder: str) -> Fact[tuple[str, ...]] | None:
    """Members of a bond; None for an interface that is none."""
    found = text(source, f"{folder}/bonding/slaves")
    if isinstance(found, str):
        return tuple(found.split()[:256])
    return (
        None
        if found.absent == "not_found"
        else found
        if isinstance(source.entries(f"{folder}/bonding"), tuple)
        else None
    )


def _kind(device: str | Absent) -> Fact[str]:
    if isinstance(device, str):
        return "physical"
    return "virtual" if device.absent == "not_found" else device


def _pci(device: str | Absent, folder: str) -> Fact[str]:
    if isinstance(device, Absent):
        return device
    return sysfs.pci_of(device) or Absent("not_found", f"{folder} is on no PCI function")


def _links(listing: list[Any] | Absent) -> dict[str, _Link]:
    """Interfaces in the JSON of `ip -j addr`."""
    found: dict[str, _Link] = {}
    for entry in listing if isinstance(listing, list) else ():
        name = entry.get("ifname") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            continue
        flags, state, mtu = entry.get("flags"), entry.get("operstate"), entry.get("mtu")
        known = state in ("UP", "DOWN", "LOWERLAYERDOWN", "DORMANT")
        has_flag = isinstance(flags, list) and "UP" in flags
        found[name] = _Link(
            up=state == "UP" if known else has_flag,
            mtu=mtu if isinstance(mtu, int) and not isinstance(mtu, bool) and 0 < mtu < 2**31 else NOT_READ,
            kind="virtual" if entry.get("link_type") == "loopback" else NOT_READ,
        )
    return dict(list(found.items())[:MAX_INTERFACES])


def _from_proc(source: Source) -> tuple[str, ...]:
    """Names in /proc/net/dev."""
    found = text(source, "/proc/net/dev")
    lines = [] if isinstance(found, Absent) else found.splitlines()[2:]
    return tuple(line.partition(":")[0].strip() for line in lines if ":" in line and line.partition(":")[0].strip())[
        :MAX_INTERFACES
    ]


def _plain(name: str, link: _Link, found: Addresses | Absent, gateways: Fact[frozenset[str]], why: Absent) -> NetDev:
    """An interface that sysfs does not show."""

    def told(value: Any) -> Any:  # noqa: ANN401 - a fact
        return why if isinstance(value, Absent) else value

    return NetDev(
        name=name,
        up=told(link.up),
        mtu=told(link.mtu),
        speed_mbps=why,
        kind=told(link.kind),
        pci=why,
        addresses=_of(name, found),
        default_route=name in gateways if isinstance(gateways, frozenset) else gateways,
        bond_members=why,
    )


def _disagreements(devices: tuple[NetDev, ...], links: dict[str, _Link]) -> Iterator[str]:
    """Where sysfs and `ip` differ, /sys may show another network namespace than the one that the process is in."""
    shown = {entry.name: entry.mtu for entry in devices}
    for name, link in links.items():
        mtu = shown.get(name)
        if mtu is None:
            yield f"{name}: `ip` lists it, {ROOT} does not: /sys may show another network namespace"
        elif isinstance(mtu, int) and isinstance(link.mtu, int) and mtu != link.mtu:
            yield f"{name}: MTU {mtu} in sysfs, {link.mtu} by `ip`: /sys may show another network namespace"
