"""Network interfaces: /sys/class/net, `ip -j addr`, `ip -j route`, priority flow control."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from epctl.core.fact import Absent
from epctl.probes.source import Output
from tests.samples.parts import Argv, Part

NET = "/sys/class/net"
SILENT = -1
"""Speed of a link whose driver tells none."""


class Interface(Struct, frozen=True):
    """One interface. `place`: real path of its PCI function, '' for a virtual one; `speed`: Mb/s."""

    name: str
    mac: str
    mtu: int = 1500
    speed: int = SILENT
    place: str = ""
    addresses: tuple[str, ...] = ()
    gateway: str = ""
    up: bool = True
    kind: str = "ether"
    pfc: tuple[int, ...] | None = None
    """Lossless priorities that `dcb` tells; None: it is not asked."""


LOOPBACK = Interface("lo", "00:00:00:00:00:00", 65536, addresses=("127.0.0.1/8", "::1/128"), kind="loopback")


def network(interfaces: tuple[Interface, ...]) -> Part:
    """The interfaces, the loopback one among them."""
    every = (LOOPBACK, *interfaces)
    files: dict[str, str | bytes | Absent] = {"/proc/net/ipv6_route": _ipv6_route(interfaces)}
    targets: dict[str, str | Absent] = {}
    commands: dict[Argv, str | Output] = {
        ("ip", "-j", "addr"): json.dumps([_addr(i + 1, entry) for i, entry in enumerate(every)]) + "\n",
        ("ip", "-j", "route"): json.dumps([route for entry in interfaces for route in _routes(entry)]) + "\n",
    }
    for i, entry in enumerate(every):
        folder = f"{NET}/{entry.name}"
        no_speed = Absent("failed", f"{folder}/speed: Invalid argument")
        files |= {
            f"{folder}/ifindex": f"{i + 1}\n",
            f"{folder}/mtu": f"{entry.mtu}\n",
            f"{folder}/operstate": "unknown\n" if entry.kind == "loopback" else "up\n" if entry.up else "down\n",
            f"{folder}/flags": "0x9\n" if entry.kind == "loopback" else "0x1003\n",
            f"{folder}/speed": no_speed if entry.speed == SILENT else f"{entry.speed}\n",
        }
        if entry.place:
            targets[f"{folder}/device"] = entry.place
        if entry.pfc is not None:
            commands[("dcb", "-j", "pfc", "show", "dev", entry.name)] = _pfc(entry.pfc)
    return Part(files, targets, {}, commands)


def _ipv6_route(interfaces: tuple[Interface, ...]) -> str:
    """Link-local networks, and the kernel's reject entry on lo."""
    none = "0" * 32
    rows = [
        f"fe80{'0' * 28} 40 {none} 00 {none} 00000100 00000001 00000000 00000001 {entry.name:>8}\n"
        for entry in interfaces
        if entry.up
    ]
    return "".join(rows) + f"{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200       lo\n"


def _addr(index: int, entry: Interface) -> dict[str, Any]:
    state = "UNKNOWN" if entry.kind == "loopback" else "UP" if entry.up else "DOWN"
    flags = ["LOOPBACK", "UP", "LOWER_UP"] if entry.kind == "loopback" else ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"]
    if not entry.up:
        flags = ["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"]
    return {
        "ifindex": index,
        "ifname": entry.name,
        "flags": flags,
        "mtu": entry.mtu,
        "qdisc": "noqueue" if entry.kind == "loopback" else "mq",
        "operstate": state,
        "group": "default",
        "txqlen": 1000,
        "link_type": entry.kind,
        "address": entry.mac,
        "addr_info": [_info(address) for address in entry.addresses],
    }


def _info(address: str) -> dict[str, Any]:
    local, _, length = address.partition("/")
    family = "inet6" if ":" in local else "inet"
    scope = "host" if local in ("127.0.0.1", "::1") else "link" if local.startswith("fe80") else "global"
    return {"family": family, "local": local, "prefixlen": int(length), "scope": scope, "valid_life_time": 4294967295}


def _routes(entry: Interface) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if entry.gateway:
        found.append({"dst": "default", "gateway": entry.gateway, "dev": entry.name, "protocol": "static", "flags": []})
    for address in entry.addresses:
        local, _, length = address.partition("/")
        if "." in local and length == "24":
            net = f"{local.rpartition('.')[0]}.0/24"
            found.append(
                {"dst": net, "dev": entry.name, "protocol": "kernel", "scope": "link", "prefsrc": local, "flags": []}
            )
    return found


def _pfc(priorities: tuple[int, ...]) -> str:
    flags = [i in priorities for i in range(8)]
    return json.dumps({"pfc_cap": 8, "macsec_bypass": False, "delay": 0, "prio_pfc": flags}) + "\n"
