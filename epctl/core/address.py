"""IPv6 addresses and GIDs as text in one form on every Python."""

from __future__ import annotations

from ipaddress import IPv6Address


def groups(address: IPv6Address) -> str:
    """Eight groups of four hex digits. Not `exploded`: Python 3.13 writes the tail of a mapped IPv4 address with dots."""
    digits = f"{int(address):032x}"
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))
