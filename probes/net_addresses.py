"""Addresses and default routes: from `ip -j`, else from the tables of /proc/net."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from epctl.core.fact import Absent, Fact
from epctl.probes.source import Source, text

Addresses = dict[str, tuple[str, ...]]
"""Interface → addresses with prefix length."""

_HEX8 = re.compile(r"[0-9A-Fa-f]{8}")
_LEAF = re.compile(r"\|-- (\d{1,3}(?:\.\d{1,3}){3})$", re.ASCII)
_RTF_UP, _RTF_GATEWAY = 0x1, 0x2
_MAX_LINES = 20_000
_MAX_ADDRESSES = 4096

Route = tuple[str, ipaddress.IPv4Network, int]
"""Interface, destination, flags."""


def ip_json(source: Source, what: str) -> list[Any] | Absent:
    """The JSON list that `ip -j addr` or `ip -j route` prints; old versions and busybox have no -j."""
    found = source.run("ip", "-j", what)
    if isinstance(found, Absent):
        return found
    try:
        decoded = msgspec.json.decode(found.stdout or b"[]") if found.code == 0 else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = None
    if isinstance(decoded, list):
        return decoded
    return Absent(
        "unparsable", f"`ip -j {what}` printed no JSON list", found.raw[:80].decode("utf-8", "replace").strip()
    )


def addresses(source: Source, listing: list[Any] | Absent) -> Addresses | Absent:
    """Addresses by interface; an interface without an address is not in it."""
    if isinstance(listing, list):
        return {name: tuple(_listed(entry)) for name, entry in _named(listing)}
    old, new = _ipv4(source), _ipv6(source)
    if isinstance(old, Absent) and isinstance(new, Absent):
        return listing if old.absent == "not_found" else old
    found: dict[str, tuple[str, ...]] = {} if isinstance(old, Absent) else dict(old)
    for name, further in ({} if isinstance(new, Absent) else new).items():
        found[name] = found.get(name, ()) + further
    return found


def _named(listing: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry in listing:
        name = entry.get("ifname") if isinstance(entry, dict) else None
        if isinstance(name, str):
            yield name, entry


def _listed(entry: dict[str, Any]) -> Iterator[str]:
    infos = entry.get("addr_info")
    for info in infos[:_MAX_ADDRESSES] if isinstance(infos, list) else ():
        local = info.get("local") if isinstance(info, dict) else None
        length = info.get("prefixlen") if isinstance(info, dict) else None
        if isinstance(local, str) and isinstance(length, int) and not isinstance(length, bool):
            try:
                yield str(ipaddress.ip_interface(f"{local[:64]}/{length}"))
            except ValueError:
                continue


def default_interfaces(source: Source, listing: list[Any] | Absent) -> Fact[frozenset[str]]:
    """Interfaces that carry a default route of the main table, IPv4 or IPv6."""
    if isinstance(listing, list):
        old: frozenset[str] | Absent = frozenset(name for entry in listing for name in _defaults(entry))
    else:
        routes = _routes(source)
        old = (
            routes
            if isinstance(routes, Absent)
            else frozenset(name for name, network, _ in routes if network.prefixlen == 0)
        )
    new = _default_ipv6(source)
    if isinstance(old, Absent):
        return old if isinstance(new, Absent) or not new else new
    return old if isinstance(new, Absent) else old | new


def _defaults(entry: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    if not isinstance(entry, dict) or entry.get("dst") != "default":
        return
    hops = entry.get("nexthops")
    for hop in [entry, *(hops[:256] if isinstance(hops, list) else ())]:
        if isinstance(hop, dict) and isinstance(hop.get("dev"), str):
            yield hop["dev"]


def _lines(source: Source, path: str) -> list[str] | Absent:
    found = text(source, path)
    return found if isinstance(found, Absent) else found.split("\n")[:_MAX_LINES]


def _routes(source: Source) -> list[Route] | Absent:
    """/proc/net/route: numbers in the byte order of the machine, which is little endian wherever GPUs of interest are."""
    lines = _lines(source, "/proc/net/route")
    if isinstance(lines, Absent):
        return lines
    found: list[Route] = []
    for line in lines[1:]:
        words = line.split()
        if len(words) >= 8 and all(_HEX8.fullmatch(words[i]) for i in (1, 2, 7)):
            network = _network(words[1], words[7])
            flags = int(words[3], 16) if re.fullmatch(r"[0-9A-Fa-f]{1,8}", words[3]) else 0
            if network is not None and flags & _RTF_UP:
                found.append((words[0], network, flags))
    return found


def _network(address: str, mask: str) -> ipaddress.IPv4Network | None:
    plain, ones = (ipaddress.IPv4Address(bytes.fromhex(digits)[::-1]) for digits in (address, mask))
    try:
        return ipaddress.IPv4Network(f"{plain}/{ones}")
    except ValueError:
        return None


def _ipv4(source: Source) -> Addresses | Absent:
    """Local addresses of /proc/net/fib_trie, each given to the interface whose connected network is the smallest around it."""
    lines, routes = _lines(source, "/proc/net/fib_trie"), _routes(source)
    if isinstance(lines, Absent):
        return lines
    if isinstance(routes, Absent):
        return routes
    connected = [(name, network) for name, network, flags in routes if network.prefixlen and not flags & _RTF_GATEWAY]
    connected.append(("lo", ipaddress.IPv4Network("127.0.0.0/8")))
    connected.sort(key=lambda entry: -entry[1].prefixlen)
    found: dict[str, dict[str, None]] = {}
    for address in _local(lines):
        name, network = next(((name, network) for name, network in connected if address in network), ("", None))
        if network is not None:
            found.setdefault(name, {})[f"{address}/{network.prefixlen}"] = None
    return {name: tuple(known) for name, known in found.items()}


def _local(lines: list[str]) -> Iterator[ipaddress.IPv4Address]:
    """Leaves of the trie that are marked `/32 host LOCAL`."""
    address = ""
    seen: set[str] = set()
    for line in lines:
        stripped = line.strip()
        if leaf := _LEAF.match(stripped):
            address = leaf.group(1)
        elif stripped == "/32 host LOCAL" and address not in seen and len(seen) < _MAX_ADDRESSES:
            seen.add(address)
            try:
                yield ipaddress.IPv4Address(address)
            except ValueError:
                continue


def _ipv6(source: Source) -> Addresses | Absent:
    """/proc/net/if_inet6: address, index, prefix length, scope, flags (hexadecimal) and name."""
    lines = _lines(source, "/proc/net/if_inet6")
    if isinstance(lines, Absent):
        return lines
    found: dict[str, tuple[str, ...]] = {}
    for words in (line.split() for line in lines[:_MAX_ADDRESSES]):
        if (
            len(words) == 6
            and re.fullmatch(r"[0-9A-Fa-f]{32}", words[0])
            and re.fullmatch(r"[0-9A-Fa-f]{1,2}", words[2])
        ):
            length = int(words[2], 16)
            if length <= 128:
                address = ipaddress.IPv6Address(int(words[0], 16))
                found[words[5]] = (*found.get(words[5], ()), f"{address}/{length}")
    return found


def _default_ipv6(source: Source) -> frozenset[str] | Absent:
    """Interfaces with a route ::/0 in /proc/net/ipv6_route other than the kernel's reject entry on lo."""
    lines = _lines(source, "/proc/net/ipv6_route")
    if isinstance(lines, Absent):
        return lines
    rows = [line.split() for line in lines]
    return frozenset(
        row[9] for row in rows if len(row) == 10 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
    )
