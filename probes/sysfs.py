"""Small values of sysfs, each as a fact that the snapshot can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from epctl.core.fact import Absent, Fact
from epctl.probes.source import Source, text

PCI = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?![0-9a-fA-F])")
_INTEGER = re.compile(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")
_MAX = 2**63 - 1
"""What the snapshot's JSON holds in any reader."""


def word(source: Source, path: str) -> Fact[str]:
    """First line of a small file; unsupported when it is empty."""
    found = text(source, path)
    if isinstance(found, Absent):
        return found
    line = found.split("\n", 1)[0].strip()
    return line[:400] if line else Absent("unsupported", f"{path} is empty")


def integer(source: Source, path: str) -> Fact[int]:
    """A decimal or 0x… integer of at most 63 bits."""
    found = word(source, path)
    return found if isinstance(found, Absent) else integer_of(found, path)


def integer_of(value: str, what: str) -> Fact[int]:
    """`value` as an integer of at most 63 bits; `what` is named when it is none."""
    if _INTEGER.fullmatch(value):
        number = int(value, 16) if value[:2].lower() == "0x" else int(value)
        if -_MAX <= number <= _MAX:
            return number
    return Absent("unparsable", f"{what} holds no integer", value[:80])


def numa_node(source: Source, path: str) -> Fact[int]:
    """Content of a `numa_node` file; the kernel says -1 where the firmware names no node."""
    found = integer(source, path)
    if isinstance(found, int) and found < 0:
        return Absent("unsupported", "the firmware assigns no NUMA node")
    return found


def names(source: Source, path: str) -> Fact[tuple[str, ...]]:
    """Names in a folder, without those that are no valid text."""
    found = source.entries(path)
    return found if isinstance(found, Absent) else tuple(name for name in found if is_text(name))


def names_or_none(source: Source, path: str, parent: str) -> Fact[tuple[str, ...]]:
    """Names in a folder; none when it is not there although its `parent` can be listed, so that its absence is a fact."""
    found = names(source, path)
    if isinstance(found, Absent) and found.absent == "not_found" and isinstance(source.entries(parent), tuple):
        return ()
    return found


def target(source: Source, path: str) -> str | Absent:
    """Real path of a link."""
    found = source.target(path)
    if isinstance(found, str) and not is_text(found):
        return Absent("unparsable", f"{path} points to a name that is no text", ascii(found)[:80])
    return found


def base(source: Source, path: str) -> Fact[str]:
    """Last part of a link's real path."""
    found = target(source, path)
    if isinstance(found, Absent):
        return found
    name = found.rstrip("/").rpartition("/")[2]
    return name if name else Absent("unparsable", f"{path} points to no name", found[:80])


def pci_of(target: str) -> str | None:
    """Last PCI address in a real path, lower case."""
    found = PCI.findall(target[-4096:])
    return str(found[-1]).lower() if found else None


def first(facts: Iterable[Fact[Any]]) -> Fact[Any]:
    """The first that is not absent, else the first reason."""
    why: Absent | None = None
    for fact in facts:
        if not isinstance(fact, Absent):
            return fact
        why = why or fact
    return why or Absent("not_found")


def is_text(name: str) -> bool:
    """False for bytes that are no UTF-8 (os.listdir escapes them)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
