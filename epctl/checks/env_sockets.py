"""Checks of the interfaces that NCCL and gloo meet their peers on."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good
from epctl.core.context import Context
from epctl.core.fact import known, value_or
from epctl.core.snapshot.rdma import NetDev
from epctl.core.views.needs import GPU
from epctl.core.views.nics import hca_filter
from epctl.core.views.settings import setting, told

LOCAL_NAMES = ("docker", "virbr", "veth", "br-", "cni", "flannel", "cali", "podman", "lxc", "tun", "kube-")
"""Beginnings of the names of interfaces that end inside this machine."""
AUTOMATIC = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
"""Patterns that NCCL tries in this order when NCCL_SOCKET_IFNAME is not set (src/misc/socket.cc)."""

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def _interfaces(context: Context) -> tuple[NetDev, ...]:
    return known(context.node.rdma.netdevs, "network interfaces")


def _addresses(device: NetDev) -> tuple[Interface, ...]:
    """Addresses of an interface; text that is none is left out."""
    parsed = (_parse(text) for text in value_or(device.addresses, ()))
    return tuple(entry for entry in parsed if entry is not None)


def _parse(text: str) -> Interface | None:
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def _usable(context: Context) -> tuple[NetDev, ...]:
    """Interfaces that NCCL would consider: up, with an address. Raises Unreadable where one of both is not known."""
    return tuple(
        device
        for device in _interfaces(context)
        if known(device.up, f"state of {device.name}") and known(device.addresses, f"addresses of {device.name}")
    )


def _is_local(device: NetDev) -> str:
    """Why peers on other nodes cannot reach this interface; '' when nothing speaks against it."""
    addresses = _addresses(device)
    if device.name == "lo" or (addresses and all(entry.ip.is_loopback for entry in addresses)):
        return "is the loopback interface"
    if device.name.startswith(LOCAL_NAMES):
        return "is a bridge or tunnel of this machine"
    if addresses and all(entry.ip.is_link_local for entry in addresses):
        return f"has link-local addresses only ({addresses[0].ip})"
    return ""


def _automatic(usable: tuple[NetDev, ...]) -> tuple[NetDev, ...]:
    for pattern in AUTOMATIC:
        found = tuple(device for device in usable if hca_filter(pattern, device.name, 0))
        if found:
            return found
    return ()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip().strip("[]"))
    except ValueError:
        return False
    return True


@check(
    "ENV-SOCKET-IFNAME",
    area="env",
    severity="fail",
    title="NCCL would meet its peers on the wrong interface",
    why="NCCL starts over TCP on one interface; if it is not there, or other nodes cannot reach it, the start fails or hangs.",
    fix="Set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to the interface that holds the node's address.",
    reference="https://github.com/NVIDIA/nccl/issues/286 https://github.com/NVIDIA/nccl/issues/1105 "
    "https://github.com/horovod/horovod/issues/584",
    needs=(GPU,),
)
def env_socket_ifname(context: Context) -> Iterator[Seen]:
    spec = setting(context, "NCCL_SOCKET_IFNAME")
    usable = _usable(context)
    if spec is None:
        chosen = _automatic(usable)
        how = "NCCL_SOCKET_IFNAME is not set"
    else:
        how = told(context, "NCCL_SOCKET_IFNAME")
        chosen = tuple(device for device in usable if hca_filter(spec, device.name, 0))
        if not chosen:
            yield _nothing_left(context, how, spec)
            return
    if not chosen:
        yield bad(f"{how}, and no interface is up with an address")
        return
    names = ", ".join(device.name for device in chosen)
    if context.num_nodes == 1:
        yield good(f"{how}: {names}")
        return
    yield from _reachable(context, how, spec, chosen)


def _nothing_left(context: Context, how: str, spec: str) -> Seen:
    named = [device for device in _interfaces(context) if hca_filter(spec, device.name, 0)]
    if named:
        return bad(f"{how}: {named[0].name} is down or has no address")
    names = ", ".join(device.name for device in _interfaces(context))
    return bad(f"{how} fits no interface; there are {names}")


def _reachable(context: Context, how: str, spec: str | None, chosen: tuple[NetDev, ...]) -> Iterator[Seen]:
    """NCCL takes the first of `chosen` in the kernel's order, which is not known here: all of them are looked at."""
    local = {device.name: why for device in chosen if (why := _is_local(device))}
    names = ", ".join(device.name for device in chosen)
    if len(local) == len(chosen):
        # Not every NCCL takes an IPv6 link-local address when it chooses by itself.
        guess = spec is None and all(entry.version == 6 for device in chosen for entry in _addresses(device))
        for name, why in local.items():
            yield bad(f"{how}: {name} {why}", severity="warn" if guess else None)
        return
    if spec is not None and spec.startswith("^") and len(chosen) > 1:
        if local:
            name, why = next(iter(local.items()))
            yield bad(f"{how} leaves {names}; {name} {why}", severity="warn")
        else:
            yield bad(f"{how} leaves {len(chosen)} interfaces: {names}", severity="info")
    off = _beside_master(context, chosen)
    if off:
        yield bad(f"{how}: {names}; {off}", severity="warn")
    else:
        yield good(f"{how}: {names}")


def _beside_master(context: Context, chosen: tuple[NetDev, ...]) -> str:
    """Another interface is the one on MASTER_ADDR's network, and the chosen ones are no fabric cards."""
    master = setting(context, "MASTER_ADDR") or ""
    if not _is_address(master):
        return ""
    address = ipaddress.ip_address(master.strip().strip("[]"))
    fabric = {name for device in value_or(context.node.rdma.devices, ()) for name in value_or(device.netdevs, ())}
    if any(device.name in fabric for device in chosen):
        return ""  # IPoIB or RoCE: other nodes are on that network, too
    nets = {device.name: [entry.network for entry in _addresses(device)] for device in _usable(context)}
    if any(address in net for device in chosen for net in nets[device.name]):
        return ""
    holder = next((name for name, own in nets.items() if any(address in net for net in own)), "")
    return f"MASTER_ADDR {master} is on the network of {holder}" if holder else ""


@check(
    "ENV-GLOO-IFNAME-SYNTAX",
    area="env",
    severity="fail",
    title="An interface setting has a form that is not understood",
    why="gloo takes plain interface names, NCCL no IP address; with anything else every rank stops when it looks up its address.",
    fix="Set GLOO_SOCKET_IFNAME to the plain name of the interface on the route to MASTER_ADDR.",
    reference="https://github.com/aws-samples/aws-do-eks/issues/51 https://github.com/AMD-AGI/Primus/issues/1063",
    needs=(GPU,),
)
def env_gloo_ifname_syntax(context: Context) -> Iterator[Seen]:
    sound = True
    nccl = setting(context, "NCCL_SOCKET_IFNAME")
    if nccl is not None and any(_is_address(part.strip("^=")) for part in nccl.split(",")):
        sound = False
        yield bad(f"{told(context, 'NCCL_SOCKET_IFNAME')} is an address, NCCL wants a name")
    gloo = setting(context, "GLOO_SOCKET_IFNAME")
    # PyTorch splits the setting at commas; each part must be the exact name of an interface.
    for part in [] if gloo is None else gloo.split(","):
        wrong = _gloo_part(context, part)
        if wrong:
            sound = False
            yield bad(f"{told(context, 'GLOO_SOCKET_IFNAME')}: {wrong}")
    if sound:
        yield good(f"GLOO_SOCKET_IFNAME is {gloo or 'unset'}, NCCL_SOCKET_IFNAME is {nccl or 'unset'}")


def _gloo_part(context: Context, part: str) -> str:
    if _is_address(part):
        return f"{part} is an address, gloo wants a name"
    if not part or part[0] in "^=":
        return f"{part!r} is NCCL's syntax, gloo wants a plain name"
    names = {device.name for device in _interfaces(context)}
    return "" if part in names else f"there is no interface {part!r}"
