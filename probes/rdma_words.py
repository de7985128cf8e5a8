"""Words and numbers of RDMA tools as facts of the snapshot; what a tool leaves out, or says in no known word, is not read."""

from __future__ import annotations

import re
from typing import Any

from epctl.core.address import groups
from epctl.core.fact import NOT_READ, Fact
from epctl.probes.documents import is_int
from epctl.probes.rdma_tree import LINK_LAYERS, STATES

_STATE_WORDS = {"INITIALIZING": "INIT", "ACTIVE DEFER": "ACTIVE_DEFER", "NO CHANGE": "NOP"}
_PHYS_WORDS = {
    "LINK_UP": "LinkUp",
    "POLLING": "Polling",
    "DISABLED": "Disabled",
    "SLEEP": "Sleep",
    "PORT_CONFIGURATION_TRAINING": "PortConfigurationTraining",
    "LINK_ERROR_RECOVERY": "LinkErrorRecovery",
    "PHY_TEST": "Phy Test",
}
_GUID = re.compile(r"[0-9a-fA-F]{16}")


def stated(value: Any) -> Any:  # noqa: ANN401 - a fact of the value's type
    """A value that a tool states."""
    return NOT_READ if value is None or value == "" else value


def number(value: int | None) -> Fact[int]:
    """An integer of 64 bits."""
    return value if value is not None and is_int(value) else NOT_READ


def state(word: str) -> Fact[str]:
    """Logical state of a port, as sysfs writes it."""
    name = word.upper()
    name = _STATE_WORDS.get(name, name)
    return name if name in STATES else NOT_READ


def phys_state(word: str | None) -> Fact[str]:
    """Physical state of a port, as sysfs writes it."""
    return stated(_PHYS_WORDS.get(word or "", word))  # type: ignore[no-any-return]


def link_layer(word: str | None) -> Fact[str]:
    """InfiniBand, Ethernet or Unspecified."""
    name = "InfiniBand" if word == "IB" else word or ""
    return name if name in LINK_LAYERS else NOT_READ


def atomic_cap(word: str | None) -> Fact[str]:
    """ATOMIC_NONE, ATOMIC_HCA or ATOMIC_GLOB."""
    return word if word is not None and word.startswith("ATOMIC_") else NOT_READ


def hexadecimal(word: str | None) -> int | None:
    """A number of at most 32 bits behind 0x."""
    found = re.fullmatch(r"0x([0-9a-fA-F]{1,8})", word or "")
    return int(found.group(1), 16) if found else None


def guid(word: str | None) -> Fact[str]:
    """A GUID in the form of sysfs: four groups of four digits."""
    digits = (word or "").removeprefix("0x").replace(":", "").lower()
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4)) if _GUID.fullmatch(digits) else NOT_READ


def full_gid(word: str) -> str:
    """A GID as eight groups of four digits, '' for what is none or not set. Tools print it whole, or as an IPv6 address."""
    from ipaddress import AddressValueError, IPv6Address

    try:
        address = IPv6Address(word[:64].partition("%")[0])
    except AddressValueError:
        return ""
    return groups(address) if int(address) else ""
