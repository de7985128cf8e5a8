"""Access Control Services in the configuration space of a PCI function."""

from __future__ import annotations

import struct
from typing import NamedTuple

from epctl.core.fact import Absent, Fact

_STANDARD_BYTES = 64
"""What the kernel shows to users other than root."""
_EXTENDED = 0x100
_END = 0x1000
_ACS = 0x000D
_CONTROL = 6
_SOURCE_VALIDATION, _REQUEST_REDIRECT = 0x01, 0x04
"""Extended capability id and fields of PCI Express Base Specification, section `ACS Extended Capability`."""


class Acs(NamedTuple):
    """The two bits of ACS Control that send peer-to-peer traffic through the root complex."""

    source_validation: Fact[bool]
    request_redirect: Fact[bool]


def both(why: Absent) -> Acs:
    """The two, absent for the same reason."""
    return Acs(why, why)


def acs_of(raw: bytes) -> Acs:
    """ACS of the function whose sysfs file `config` holds `raw`. Total: any bytes give bits or a reason."""
    if len(raw) < _STANDARD_BYTES:
        return both(Absent("unparsable", f"configuration space of {len(raw)} bytes"))
    if raw[:4] == b"\xff\xff\xff\xff":
        return both(Absent("failed", "the function does not answer (configuration space reads as ones)"))
    if len(raw) == _STANDARD_BYTES:
        return both(Absent("permission", "the kernel shows extended capabilities to root only"))
    offset, seen = _EXTENDED, set[int]()
    while _EXTENDED <= offset <= min(len(raw), _END) - 4 and offset not in seen:
        seen.add(offset)
        header = struct.unpack_from("<I", raw, offset)[0]
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == _ACS:
            return _control(raw, offset)
        offset = header >> 20 & 0xFFC
    return both(Absent("unsupported", "no ACS capability"))


def _control(raw: bytes, offset: int) -> Acs:
    if offset + _CONTROL + 2 > len(raw):
        return both(Absent("unparsable", "configuration space ends inside the ACS capability"))
    word = struct.unpack_from("<H", raw, offset + _CONTROL)[0]
    return Acs(bool(word & _SOURCE_VALIDATION), bool(word & _REQUEST_REDIRECT))
